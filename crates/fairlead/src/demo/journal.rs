//! What the switch says of itself: its log, line by line, and its status page.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How many of the latest other lines are kept for the case that something goes wrong.
const OTHER_LINES_MAX: usize = 30;
/// Maximum number of entries; a demonstration makes some dozens.
const ENTRIES_MAX: usize = 65_536;

/// One thing that the switch reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It chose a server.
    Decided {
        /// The client.
        client: SocketAddr,
        /// The service.
        service: String,
        /// The route's name.
        route: String,
        /// The pool.
        pool: String,
        /// The server.
        server: SocketAddr,
        /// 0 for the first choice.
        attempt: u64,
        /// What it read.
        subject: String,
    },
    /// It turned a client away.
    Refused {
        /// The client.
        client: SocketAddr,
        /// The service.
        service: String,
        /// The reason's name.
        reason: String,
        /// The HTTP status it answered.
        status: Option<u64>,
        /// What it read.
        subject: String,
    },
    /// A spliced connection ended.
    Closed {
        /// The client.
        client: SocketAddr,
        /// The address and port that the server saw.
        source: SocketAddr,
        /// Stream bytes from client to server.
        bytes_in: u64,
        /// Stream bytes from server to client.
        bytes_out: u64,
        /// How.
        end: String,
    },
}

impl Entry {
    /// The client's address.
    pub(super) fn client(&self) -> SocketAddr {
        match self {
            Self::Decided { client, .. }
            | Self::Refused { client, .. }
            | Self::Closed { client, .. } => *client,
        }
    }

    /// Parses a line of the log; `None` for other lines.
    fn parse(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let field = |name: &str| match line.get("fields").and_then(|all| all.get(name)) {
            Some(value) => Some(value),
            None => line.get(name),
        };
        let text = |name: &str| Some(field(name)?.as_str()?.to_owned());
        let socket = |name: &str| field(name)?.as_str()?.parse().ok();
        let number = |name: &str| match field(name)? {
            Value::Number(number) => number.as_u64(),
            Value::String(digits) => digits.parse().ok(),
            _ => None,
        };
        match field("message")?.as_str()? {
            "decided" => Some(Self::Decided {
                client: socket("client")?,
                service: text("service")?,
                route: text("route")?,
                pool: text("pool")?,
                server: socket("server")?,
                attempt: number("attempt")?,
                subject: text("subject")?,
            }),
            "refused" => Some(Self::Refused {
                client: socket("client")?,
                service: text("service")?,
                reason: text("reason")?,
                status: number("status"),
                subject: text("subject")?,
            }),
            "closed" => Some(Self::Closed {
                client: socket("client")?,
                source: socket("source")?,
                bytes_in: number("bytes_in")?,
                bytes_out: number("bytes_out")?,
                end: text("end")?,
            }),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Pages {
    entries: Vec<Entry>,
    others: VecDeque<String>,
    ended: bool,
}

/// The log of a running switch, read by a thread.
#[derive(Clone, Default)]
pub(super) struct Journal {
    shared: Arc<(Mutex<Pages>, Condvar)>,
}

impl Journal {
    /// Starts reading.
    pub(super) fn follow(log: impl Read + Send + 'static) -> Self {
        let journal = Self::default();
        let writer = journal.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines() {
                let Ok(line) = line else { break };
                writer.add(&line);
            }
            writer.pages().ended = true;
            writer.shared.1.notify_all();
        });
        journal
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.shared
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn add(&self, line: &str) {
        let mut pages = self.pages();
        match Entry::parse(line) {
            Some(entry) if pages.entries.len() < ENTRIES_MAX => pages.entries.push(entry),
            Some(_) => {}
            None => {
                if pages.others.len() == OTHER_LINES_MAX {
                    pages.others.pop_front();
                }
                pages.others.push_back(line.to_owned());
            }
        }
        self.shared.1.notify_all();
    }

    /// All entries for `client` once `enough` returns true, or those available when `patience` runs
    /// out or the log ends.
    pub(super) fn about(
        &self,
        client: SocketAddr,
        patience: Duration,
        enough: impl Fn(&[Entry]) -> bool,
    ) -> Vec<Entry> {
        let until = Instant::now() + patience;
        let mut pages = self.pages();
        loop {
            let found: Vec<Entry> = pages
                .entries
                .iter()
                .filter(|entry| entry.client() == client)
                .cloned()
                .collect();
            let left = until.saturating_duration_since(Instant::now());
            if enough(&found) || left.is_zero() || pages.ended {
                return found;
            }
            pages = match self.shared.1.wait_timeout(pages, left) {
                Ok((pages, _)) => pages,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// The entries from number `from` on, waiting up to `patience` for one.
    pub(super) fn since(&self, from: usize, patience: Duration) -> Vec<Entry> {
        let mut pages = self.pages();
        if pages.entries.len() <= from && !pages.ended {
            pages = match self.shared.1.wait_timeout(pages, patience) {
                Ok((pages, _)) => pages,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        pages.entries.get(from..).unwrap_or_default().to_vec()
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.pages().entries.len()
    }

    /// The latest lines that are no entries, for error messages.
    pub(super) fn other_lines(&self) -> Vec<String> {
        self.pages().others.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECIDED: &str = r##"{"level":"INFO","fields":{"message":"decided","client":"10.1.0.10:4000","listen":"10.1.0.3:80","service":"web","route":"#1","pool":"images","server":"10.2.0.1:8081","attempt":0,"treatment":"splice","subject":"GET 10.1.0.3/a.jpg"}}"##;
    const REFUSED: &str = r##"{"message":"refused","client":"[fd00::1]:4001","service":"web","reason":"http_malformed","status":400,"subject":""}"##;

    #[test]
    fn lines_are_read_with_fields_nested_or_flat() {
        let Some(Entry::Decided {
            client,
            server,
            route,
            attempt,
            ..
        }) = Entry::parse(DECIDED)
        else {
            panic!("not read");
        };
        assert_eq!((client.port(), server.port(), attempt), (4000, 8081, 0));
        assert_eq!(route, "#1");
        let Some(Entry::Refused { client, status, .. }) = Entry::parse(REFUSED) else {
            panic!("not read");
        };
        assert_eq!((client.port(), status), (4001, Some(400)));
        assert_eq!(Entry::parse("listening"), None);
        assert_eq!(Entry::parse(r#"{"message":"decided"}"#), None);
    }

    #[test]
    fn entries_of_a_client_are_found_and_other_lines_kept() {
        let log = format!("starting\n{DECIDED}\n{REFUSED}\n");
        let journal = Journal::follow(std::io::Cursor::new(log));
        let client = "10.1.0.10:4000".parse().unwrap();
        let said = journal.about(client, Duration::from_secs(60), |found| !found.is_empty());
        assert_eq!(said.len(), 1);
        let nobody = "10.1.0.10:1".parse().unwrap();
        assert!(
            journal
                .about(nobody, Duration::from_millis(5), |all| !all.is_empty())
                .is_empty()
        );
        assert_eq!(journal.other_lines(), ["starting"]);
        assert_eq!(journal.since(1, Duration::ZERO).len(), 1);
        assert_eq!(journal.len(), 2);
    }
}
