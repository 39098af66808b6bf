//! What is asked of a server, and how often.

use core::time::Duration;

/// How the servers of a pool are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub kind: Kind,
    /// The port that is asked; that of the server where it is `None`.
    pub port: Option<u16>,
    /// Between two checks of a server whose state is settled.
    pub interval: Duration,
    /// Between two checks while results and state disagree.
    pub fast_interval: Duration,
    /// Between two checks of a server that is down.
    pub down_interval: Duration,
    /// From the first packet to the end of the answer.
    pub timeout: Duration,
    /// Passed checks in a row until a server that was down is up.
    pub rise: u8,
    /// Failed checks in a row until a server that was up is down.
    pub fall: u8,
    /// What becomes of the connections of a server that goes down.
    pub on_down: OnDown,
    /// Whether a server is up before its first check.
    pub initially_up: bool,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            kind: Kind::Tcp,
            port: None,
            interval: Duration::from_secs(5),
            fast_interval: Duration::from_secs(1),
            down_interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
            on_down: OnDown::Leave,
            initially_up: true,
        }
    }
}

/// What is asked of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A handshake.
    Tcp,
    /// A TLS handshake.
    Tls {
        /// The server name that is asked for; without one, the server's address.
        sni: Option<String>,
        /// The application protocol that must be agreed on.
        alpn: Option<String>,
    },
    /// A request.
    Http {
        /// Its method.
        method: String,
        /// Its target.
        path: String,
        /// The value of `Host`; the server's address where it is `None`.
        host: Option<String>,
        /// The statuses that pass.
        expect_status: Vec<StatusRange>,
        /// What the first 16 KiB of the body must contain.
        expect_body: Option<String>,
    },
}

impl Kind {
    /// A GET of `/`, with every status from 200 to 399 taken for an answer.
    pub fn http() -> Self {
        Self::Http {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: None,
            expect_status: vec![StatusRange(200, 399)],
            expect_body: None,
        }
    }

    /// The word in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls { .. } => "tls",
            Self::Http { .. } => "http",
        }
    }
}

/// HTTP statuses from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange(pub u16, pub u16);

impl StatusRange {
    /// Reads `204` or `200-399`.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let status = |text: &str| {
            let number = text.parse().ok()?;
            (text.len() == 3 && (100..=599).contains(&number)).then_some(number)
        };
        let range = Self(status(from)?, status(to)?);
        (range.0 <= range.1).then_some(range)
    }

    /// Whether a status is one of them.
    pub fn contains(self, status: u16) -> bool {
        (self.0..=self.1).contains(&status)
    }
}

impl core::fmt::Display for StatusRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self(from, to) if from == to => write!(f, "{from}"),
            Self(from, to) => write!(f, "{from}-{to}"),
        }
    }
}

/// What becomes of the connections of a server that goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDown {
    /// They go on.
    #[default]
    Leave,
    /// Both ends get a RST.
    Reset,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_statuses_are_read_as_they_are_shown() {
        for text in ["200-399", "204", "100-599"] {
            assert_eq!(StatusRange::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "2",
            "99",
            "600",
            "399-200",
            "200-",
            "-",
            "+20",
            "2000",
            "200 - 300",
        ] {
            assert_eq!(StatusRange::parse(text), None, "{text}");
        }
        assert!(StatusRange(200, 399).contains(399) && !StatusRange(200, 399).contains(400));
    }
}
