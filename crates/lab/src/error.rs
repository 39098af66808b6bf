//! What can be wrong with what the laboratory is given.

use std::path::{Path, PathBuf};

/// Why something could not be done. The text names the option, file or line, and says what to
/// write instead.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An option, or a key of a plan, with a value that cannot be used.
    #[error("{}: {problem}", [option.as_str(), value.as_str()].join(" ").trim())]
    Option {
        /// As it is written: `--capacity`, `capacity`.
        option: String,
        /// As it was given.
        value: String,
        /// What is wrong and what to write.
        problem: String,
    },
    /// A geometry or a scheme that cannot be built.
    #[error("{0}")]
    Geometry(String),
    /// A plan that cannot be read.
    #[error("{place}: {problem}")]
    Plan {
        /// File and line.
        place: String,
        /// What is wrong and what to write.
        problem: String,
    },
    /// A trace that cannot be read or used; the text begins with its name.
    #[error("{0}")]
    Trace(String),
    /// A synthetic workload, by its name, of which nothing is seen.
    #[error("{0}: no access falls into so short a time; raise seconds or sessions")]
    Empty(String),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The caller's [`Control`](crate::Control) said stop.
    #[error("stopped")]
    Stopped,
}

/// What a reader of TOML or JSON says of a value, with what to write instead of names of types.
pub fn in_words(message: &str) -> String {
    let kinds = [
        ("expected u8", "write a whole number from 0 to 255"),
        ("expected u16", "write a whole number from 0 to 65535"),
        ("expected u32", "write a whole number from 0 to 4294967295"),
        ("expected u64", "write a whole number from 0 on"),
        ("expected f64", "write a number"),
    ];
    // What a type of ours expects is said as what to write.
    let message = message.replace("expected write ", "write ");
    let kind = kinds.iter().find(|(name, _)| message.contains(name));
    kind.map_or_else(
        || message.clone(),
        |(name, instead)| message.replace(name, instead),
    )
}

impl LabError {
    /// A value of an option that cannot be used.
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

    /// What a command that ends like this gives back to the shell: 2 for what was asked, 1 for
    /// what was found, 130 for what was stopped.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Option { .. } | Self::Geometry(_) | Self::Plan { .. } | Self::Empty(_) => 2,
            Self::Trace(_) | Self::File { .. } => 1,
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
