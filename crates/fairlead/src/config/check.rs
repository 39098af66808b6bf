//! `[pool.check]` and `[pool.outlier]`.

use core::time::Duration;

use fairlead_splice::config::{Check, CheckKind, OnDown, Outlier, StatusRange};

use super::diagnostic::{Diagnostic, Problems};
use super::keys::{Key, Standard, Value, read};
use super::names;
use super::section::{Node, Section, quoted, string, strings, word};

impl Standard for Check {
    fn standard() -> Self {
        Self::default()
    }
}

impl Standard for Outlier {
    fn standard() -> Self {
        Self::default()
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// Shorter intervals would be a load of their own.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3_600);
/// Of a path, a host or an expected body, bytes.
const TEXT_BYTES_MAX: usize = 1_024;

/// The keys of `[pool.check]`.
pub(crate) const CHECK_KEYS: [Key<Check>; 17] = [
    Key::special(
        "type",
        "required",
        |check| check.kind.name().to_owned(),
        "what is asked: `http` (a request), `tls` (a TLS handshake) or `tcp` (a handshake)",
    ),
    Key::special(
        "method",
        "`\"GET\"`",
        |check| http(check, |method, _, _, _, _| method.to_owned()),
        "of `http`: the method",
    ),
    Key::special(
        "path",
        "`\"/\"`",
        |check| http(check, |_, path, _, _, _| path.to_owned()),
        "of `http`: the target of the request",
    ),
    Key::special(
        "host",
        "the address of the server",
        |check| {
            http(check, |_, _, host, _, _| {
                host.unwrap_or_default().to_owned()
            })
        },
        "of `http`: the value of `Host`",
    ),
    Key::special(
        "expect_status",
        "`[\"200-399\"]`",
        |check| http(check, |_, _, _, status, _| shown(status)),
        "of `http`: the statuses that pass, each alone or as a range",
    ),
    Key::special(
        "expect_body",
        "anything",
        |check| {
            http(check, |_, _, _, _, body| {
                body.unwrap_or_default().to_owned()
            })
        },
        "of `http`: what the first 16 KiB of the body must contain",
    ),
    Key::special(
        "sni",
        "the address of the server",
        |check| tls(check, |sni, _| sni),
        "of `tls`: the server name that is asked for; the certificate is not verified",
    ),
    Key::special(
        "alpn",
        "any",
        |check| tls(check, |_, alpn| alpn),
        "of `tls`: the application protocol that the server must agree to",
    ),
    Key::special(
        "port",
        "the port of the server",
        |check| check.port.map_or_else(String::new, |port| port.to_string()),
        "the port that is asked, 1 to 65535",
    ),
    Key::new(
        "interval",
        Value::Duration {
            from: INTERVAL_MIN,
            to: HOUR,
            get: |check| check.interval,
            set: |check, every| check.interval = every,
        },
        "between two checks; `\"100ms\"` to `\"1h\"`",
    ),
    Key::new(
        "fast_interval",
        Value::Duration {
            from: INTERVAL_MIN,
            to: HOUR,
            get: |check| check.fast_interval,
            set: |check, every| check.fast_interval = every,
        },
        "between two checks while results contradict the state of the server; `\"100ms\"` to \
         `\"1h\"`",
    ),
    Key::new(
        "down_interval",
        Value::Duration {
            from: INTERVAL_MIN,
            to: HOUR,
            get: |check| check.down_interval,
            set: |check, every| check.down_interval = every,
        },
        "between two checks of a server that is down; `\"100ms\"` to `\"1h\"`",
    ),
    Key::new(
        "timeout",
        Value::Duration {
            from: Duration::from_millis(10),
            to: Duration::from_secs(60),
            get: |check| check.timeout,
            set: |check, after| check.timeout = after,
        },
        "how long a check may take in all; `\"10ms\"` to `\"1m\"`",
    ),
    Key::new(
        "rise",
        Value::Number {
            from: 1,
            to: 255,
            get: |check| check.rise.into(),
            set: |check, count| check.rise = count as u8,
        },
        "passed checks in a row until a server that was down is up; 1 to 255",
    ),
    Key::new(
        "fall",
        Value::Number {
            from: 1,
            to: 255,
            get: |check| check.fall.into(),
            set: |check, count| check.fall = count as u8,
        },
        "failed checks in a row until a server that was up is down; 1 to 255",
    ),
    Key::new(
        "on_down",
        Value::Word {
            words: || vec!["leave", "reset"],
            get: |check| match check.on_down {
                OnDown::Leave => "leave",
                OnDown::Reset => "reset",
            },
            set: |check, at| check.on_down = [OnDown::Leave, OnDown::Reset][at],
        },
        "`leave` or `reset`: what becomes of the connections of a server that goes down",
    ),
    Key::new(
        "initial",
        Value::Word {
            words: || vec!["up", "down"],
            get: |check| if check.initially_up { "up" } else { "down" },
            set: |check, at| check.initially_up = at == 0,
        },
        "`up` or `down`: what a server is before its first check",
    ),
];

/// The keys of `[pool.outlier]`.
pub(crate) const OUTLIER_KEYS: [Key<Outlier>; 4] = [
    Key::new(
        "consecutive_connect_failures",
        Value::Number {
            from: 1,
            to: 1_000,
            get: |one| one.consecutive_connect_failures.into(),
            set: |one, count| one.consecutive_connect_failures = count as u32,
        },
        "a server is ejected after this many connections in a row that it refused or left \
         unanswered; 1 to 1000",
    ),
    Key::new(
        "ejection_time",
        Value::Duration {
            from: SECOND,
            to: HOUR,
            get: |one| one.ejection_time,
            set: |one, time| one.ejection_time = time,
        },
        "how long it gets no connections, times the number of ejections in a row; `\"1s\"` to \
         `\"1h\"`",
    ),
    Key::new(
        "ejection_time_max",
        Value::Duration {
            from: SECOND,
            to: HOUR,
            get: |one| one.ejection_time_max,
            set: |one, time| one.ejection_time_max = time,
        },
        "the longest ejection; `\"1s\"` to `\"1h\"`",
    ),
    Key::new(
        "ejection_percent_max",
        Value::Number {
            from: 0,
            to: 100,
            get: |one| one.ejection_percent_max.into(),
            set: |one, share| one.ejection_percent_max = share as u8,
        },
        "the share of the servers of a pool that may be ejected at once, in percent, 0 to 100; one \
         server may be in any case",
    ),
];

/// Reads `[pool.check]`.
pub(super) fn check(section: Section<'_>, problems: &mut Problems) -> Option<Check> {
    let mut check = Check::standard();
    read(&CHECK_KEYS, section, &mut check, problems);
    if let Some(node) = section.node("port") {
        let port = super::section::integer(node, "port", 1..=65_535, problems)?;
        check.port = Some(port as u16);
    }
    let kinds = [("http", 0), ("tls", 1), ("tcp", 2)];
    let node = section.require("type", "type = \"http\"", problems)?;
    let kind = word(node, "type", &kinds, problems)?.value;
    let foreign: &[&str] = match kind {
        0 => &["sni", "alpn"],
        1 => &["method", "path", "host", "expect_status", "expect_body"],
        _ => &[
            "method",
            "path",
            "host",
            "expect_status",
            "expect_body",
            "sni",
            "alpn",
        ],
    };
    let name = kinds[kind].0;
    for key in foreign.iter().filter(|key| section.node(key).is_some()) {
        problems.push(
            Diagnostic::error(
                &section.key_span(key),
                format!("`{key}` means nothing to a check of type \"{name}\""),
            )
            .help("leave it out, or write another `type`"),
        );
    }
    check.kind = match kind {
        0 => http_kind(section, problems),
        1 => CheckKind::Tls {
            sni: text(section, "sni", "\"example.com\"", problems),
            alpn: text(section, "alpn", "\"h2\"", problems),
        },
        _ => CheckKind::Tcp,
    };
    if check.timeout > check.interval {
        let message = "a check may take longer than the interval between two";
        problems.push(
            Diagnostic::warning(&section.key_span("timeout"), message)
                .help("a check ends before the next one begins, so they come less often"),
        );
    }
    Some(check)
}

/// Reads `[pool.outlier]`.
pub(super) fn outlier(section: Section<'_>, problems: &mut Problems) -> Outlier {
    let mut outlier = Outlier::standard();
    read(&OUTLIER_KEYS, section, &mut outlier, problems);
    outlier
}

fn http_kind(section: Section<'_>, problems: &mut Problems) -> CheckKind {
    let method = text(section, "method", "\"GET\"", problems);
    let method = method.unwrap_or_else(|| "GET".to_owned());
    if !names::is_token(&method) {
        let message = format!("{} is no method", quoted(&method));
        problems.push(
            Diagnostic::error(&section.key_span("method"), message).help("write method = \"GET\""),
        );
    }
    let path = text(section, "path", "\"/healthz\"", problems).unwrap_or_else(|| "/".to_owned());
    let visible = |one: char| ('\u{21}'..='\u{7e}').contains(&one);
    if !path.starts_with('/') || !path.chars().all(visible) {
        let message = format!("{} is no path", quoted(&path));
        problems.push(
            Diagnostic::error(&section.key_span("path"), message)
                .help("write a path that begins with \"/\", percent-encoded"),
        );
    }
    let expect_status = match section.node("expect_status") {
        Some(node) => statuses(node, problems),
        None => vec![StatusRange(200, 399)],
    };
    CheckKind::Http {
        method,
        path,
        host: text(section, "host", "\"example.com\"", problems),
        expect_status,
        expect_body: text(section, "expect_body", "\"ready\"", problems),
    }
}

fn statuses(node: Node<'_>, problems: &mut Problems) -> Vec<StatusRange> {
    let texts = strings(node, "expect_status", "[\"200-399\"]", problems);
    let mut ranges = Vec::new();
    for text in texts {
        match StatusRange::parse(text.value) {
            Some(range) => ranges.push(range),
            None => {
                let message = format!("{} is no HTTP status", quoted(text.value));
                problems.push(
                    Diagnostic::error(&text.span, message)
                        .help("write a status such as \"204\", or a range such as \"200-399\""),
                );
            }
        }
    }
    ranges
}

/// A text without control characters.
fn text(section: Section<'_>, key: &str, example: &str, problems: &mut Problems) -> Option<String> {
    let text = string(section.node(key)?, key, example, problems)?;
    let fits = !text.value.is_empty() && text.value.len() <= TEXT_BYTES_MAX;
    if !fits || text.value.chars().any(char::is_control) {
        let message =
            format!("`{key}` must have 1 to {TEXT_BYTES_MAX} bytes and no control characters");
        problems
            .push(Diagnostic::error(&text.span, message).help(format!("write {key} = {example}")));
        return None;
    }
    Some(text.value.to_owned())
}

/// Shows a part of a check by HTTP: of its method, path, host, statuses and body.
type ShowHttp = fn(&str, &str, Option<&str>, &[StatusRange], Option<&str>) -> String;

fn http(check: &Check, show: ShowHttp) -> String {
    match &check.kind {
        CheckKind::Http {
            method,
            path,
            host,
            expect_status,
            expect_body,
        } => show(
            method,
            path,
            host.as_deref(),
            expect_status,
            expect_body.as_deref(),
        ),
        CheckKind::Tls { .. } | CheckKind::Tcp => String::new(),
    }
}

fn tls(check: &Check, show: for<'a> fn(&'a str, &'a str) -> &'a str) -> String {
    match &check.kind {
        CheckKind::Tls { sni, alpn } => show(
            sni.as_deref().unwrap_or_default(),
            alpn.as_deref().unwrap_or_default(),
        )
        .to_owned(),
        CheckKind::Http { .. } | CheckKind::Tcp => String::new(),
    }
}

fn shown(statuses: &[StatusRange]) -> String {
    let texts: Vec<_> = statuses.iter().map(ToString::to_string).collect();
    texts.join(" ")
}
