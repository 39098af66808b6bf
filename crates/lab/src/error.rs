//! Errors of the laboratory.

use std::path::{Path, PathBuf};

/// An error. The text names the option, file or line, and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An option or plan key with an invalid value.
    #[error("{}: {problem}", [option.as_str(), value.as_str()].join(" ").trim())]
    Option {
        /// Its name: `--capacity`, `capacity`.
        option: String,
        /// Its value.
        value: String,
        /// The problem, and what to write.
        problem: String,
    },
    /// An impossible geometry or scheme.
    #[error("{0}")]
    Geometry(String),
    /// An invalid plan.
    #[error("{place}: {problem}")]
    Plan {
        /// File and line.
        place: String,
        /// The problem, and what to write.
        problem: String,
    },
    /// An unreadable or unusable trace; the text starts with its name.
    #[error("{0}")]
    Trace(String),
    /// A program that cannot be traced, or a trace of references that cannot be used.
    #[error("{0}")]
    Protocol(String),
    /// A packet costs more or less than it may.
    #[error("{0}")]
    Budget(String),
    /// This machine lacks what a measurement needs, or a program of it failed.
    #[error("{0}")]
    Machine(String),
    /// A synthetic workload without accesses, by name.
    #[error("{0}: no accesses in such a short time; increase seconds or sessions")]
    Empty(String),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Stopped by the caller's [`Control`](crate::Control).
    #[error("stopped")]
    Stopped,
}

/// Rewrites errors of the TOML or JSON parser: what to write instead of type names.
pub fn in_words(message: &str) -> String {
    let kinds = [
        ("expected u8", "write a whole number from 0 to 255"),
        ("expected u16", "write a whole number from 0 to 65535"),
        ("expected u32", "write a whole number from 0 to 4294967295"),
        ("expected u64", "write a whole number, 0 or more"),
        ("expected f64", "write a number"),
    ];
    // Our own types state what to write.
    let message = message.replace("expected write ", "write ");
    let kind = kinds.iter().find(|(name, _)| message.contains(name));
    kind.map_or_else(
        || message.clone(),
        |(name, instead)| message.replace(name, instead),
    )
}

impl LabError {
    /// An invalid value of an option.
    pub fn option(
        option: impl Into<String>,
        value: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Option {
            option: option.into(),
            value: value.into(),
            problem: problem.into(),
        }
    }

    /// A file that cannot be read or written.
    pub fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    /// Exit code for this error: 2 for invalid arguments, 1 for files, 130 for an interrupt.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Option { .. }
            | Self::Geometry(_)
            | Self::Plan { .. }
            | Self::Protocol(_)
            | Self::Empty(_) => 2,
            Self::Trace(_) | Self::Budget(_) | Self::Machine(_) | Self::File { .. } => 1,
            Self::Stopped => 130,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_said_in_words() {
        let said = in_words("invalid value: integer `4294967296`, expected u32");
        let wanted =
            "invalid value: integer `4294967296`, write a whole number from 0 to 4294967295";
        assert_eq!(said, wanted);
        assert_eq!(in_words("unknown field `x`"), "unknown field `x`");
    }
}
