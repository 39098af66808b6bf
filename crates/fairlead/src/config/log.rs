//! `[log]`.

use std::path::PathBuf;

use super::diagnostic::{Diagnostic, Problems};
use super::keys::{Key, Standard, Value, read};
use super::section::{Section, boolean, quoted, string, word};
use crate::log::LogFormat;

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Which connections have a line.
    pub access: Access,
    /// The form of the lines; that of the other log lines if `None`.
    pub format: Option<LogFormat>,
    /// Of connections that both sides closed, one in this number has a line.
    pub sample: u32,
    /// Where the lines go.
    pub target: Target,
    /// How many bytes of hosts, paths and names of live connections are kept.
    pub details_bytes: u64,
}

/// Which connections have a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None.
    Off,
    /// Those that were refused, within a rate.
    Refused,
    /// All.
    All,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Among the other log lines.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::Refused, Self::All];

    /// The word in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Refused => "refused",
            Self::All => "all",
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl Standard for LogSettings {
    fn standard() -> Self {
        Self {
            access: Access::Refused,
            format: None,
            sample: 1,
            target: Target::Stderr,
            details_bytes: 32 << 20,
        }
    }
}

/// The keys of `[log]`.
pub(crate) const KEYS: [Key<LogSettings>; 5] = [
    Key::special(
        "access",
        "`\"refused\"`",
        |log: &LogSettings| log.access.name().to_owned(),
        "which connections have a line: `off` (none), `refused` (those turned away, at most 10 a \
         second for each reason) or `all`",
    )
    .renamed_from("instance", "log_connections"),
    Key::special(
        "target",
        "`\"stderr\"`",
        |log| log.target.to_string(),
        "where these lines go: `stderr` (among the other log lines), `stdout` or `file:PATH`, \
         opened anew on SIGUSR1",
    ),
    Key::special(
        "format",
        "that of `--log-format`",
        |log: &LogSettings| {
            let name = log.format.map(LogFormat::name);
            name.unwrap_or_default().to_owned()
        },
        "`text` or `json`; only with another `target` than `stderr`",
    ),
    Key::new(
        "sample",
        Value::Number {
            from: 1,
            to: 1_000_000,
            get: |log| log.sample.into(),
            set: |log, count| log.sample = count as u32,
        },
        "of connections that both sides closed, one in this number has a line; all others have \
         one each; 1 to 1,000,000",
    ),
    Key::new(
        "details_bytes",
        Value::Size {
            from: 64 << 10,
            to: 16 << 30,
            get: |log| log.details_bytes,
            set: |log, most| log.details_bytes = most,
        },
        "memory for what clients of live connections asked for, with `access = \"all\"`; \
         `\"64KiB\"` to `\"16GiB\"`",
    ),
];

pub(super) fn log(section: Option<Section<'_>>, problems: &mut Problems) -> LogSettings {
    let mut log = LogSettings::standard();
    let Some(section) = section else { return log };
    read(&KEYS, section, &mut log, problems);
    if let Some(node) = section.node("access") {
        if section.is_renamed("access") {
            if boolean(node, "log_connections", problems) == Some(true) {
                log.access = Access::All;
            }
        } else {
            let words = Access::ALL.map(|one| (one.name(), one));
            if let Some(one) = word(node, "access", &words, problems) {
                log.access = one.value;
            }
        }
    }
    let formats = [LogFormat::Text, LogFormat::Json].map(|one| (one.name(), one));
    if let Some(node) = section.node("format") {
        log.format = word(node, "format", &formats, problems).map(|one| one.value);
    }
    if let Some(target) = target(section, problems) {
        log.target = target;
    }
    if log.format.is_some() && log.target == Target::Stderr {
        let message = "lines on standard error have the form of the other log lines there";
        problems.push(
            Diagnostic::error(&section.key_span("format"), message)
                .help("use `--log-format`, or write another `target`"),
        );
    }
    for key in ["sample", "details_bytes"] {
        if log.access != Access::All && section.node(key).is_some() {
            let message = format!("`{key}` does nothing without access = \"all\"");
            problems.push(
                Diagnostic::warning(&section.key_span(key), message)
                    .help(format!("leave `{key}` out, or write access = \"all\"")),
            );
        }
    }
    log
}

fn target(section: Section<'_>, problems: &mut Problems) -> Option<Target> {
    const EXAMPLE: &str = "\"file:/var/log/fairlead/access.log\"";
    let text = string(section.node("target")?, "target", EXAMPLE, problems)?;
    match text.value {
        "stderr" => return Some(Target::Stderr),
        "stdout" => return Some(Target::Stdout),
        _ => {}
    }
    let path = text.value.strip_prefix("file:").map(PathBuf::from);
    match path {
        // The process may have been started anywhere.
        Some(path) if path.is_absolute() && !text.value.contains('\0') => Some(Target::File(path)),
        _ => {
            let message = format!("{} is no target", quoted(text.value));
            problems.push(Diagnostic::error(&text.span, message).help(format!(
                "write \"stderr\", \"stdout\" or {EXAMPLE}, a whole path"
            )));
            None
        }
    }
}
