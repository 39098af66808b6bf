//! What is logged: the words of `--log`.
//!
//! `tracing` takes a word that is no level for the name of a part of the program, which then logs
//! all, and everything else nothing. Whoever writes `warning` would lose the log without a word.

use tracing_subscriber::EnvFilter;

use crate::config::nearest;

/// The words for a level, the numbers 0 to 5 aside.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// What the names of this program's own parts begin with.
const OWN: &str = "fairlead";

/// The filter that `words` ask for.
///
/// # Errors
/// What is wrong with them, and what to write.
pub(super) fn parse(words: &str) -> Result<EnvFilter, String> {
    // `tracing` takes no spaces around a comma.
    let list: Vec<_> = words.split(',').map(str::trim).collect();
    list.iter().try_for_each(|word| check(word))?;
    EnvFilter::builder()
        .parse(list.join(","))
        .map_err(|error| format!("{words:?} says nothing about the log ({error}); {WHAT_TO_WRITE}"))
}

const WHAT_TO_WRITE: &str = "write error, warn, info, debug or trace, or a list such as \
                             info,fairlead::connection=debug";

/// Refuses what stands for a level and is none, alone or behind a `=`.
fn check(word: &str) -> Result<(), String> {
    let (part, level) = match word.rsplit_once('=') {
        Some((part, level)) => (Some(part), level.trim()),
        None => (None, word),
    };
    let is_level = LEVELS.iter().any(|one| one.eq_ignore_ascii_case(level))
        || matches!(level.as_bytes(), [b'0'..=b'5']);
    // Filters by span and field have brackets, and quotation marks in them what they like.
    let is_part = part.is_none() && (level.starts_with(OWN) || level.contains(['[', '{']));
    if is_level || is_part || level.is_empty() || level.ends_with(['}', ']']) {
        return Ok(());
    }
    let meant = match level.to_ascii_lowercase().as_str() {
        "none" | "quiet" => Some("off"),
        "critical" | "fatal" | "err" => Some("error"),
        "notice" => Some("info"),
        "all" | "verbose" => Some("trace"),
        other => nearest(other, LEVELS.into_iter()),
    };
    let help = match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => WHAT_TO_WRITE.to_owned(),
    };
    Err(format!("{level:?} is no level of the log; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_of_the_program_are_taken() {
        for words in [
            "off",
            "error",
            "WARN",
            "3",
            "info,fairlead::connection=debug",
            "info, fairlead::server=off",
            "fairlead",
            "warn,fairlead::connection",
            "info,[{client=10.0.0.1:4000}]=debug",
            "info,",
        ] {
            assert!(parse(words).is_ok(), "{words}: {:?}", parse(words).err());
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_the_level_that_was_meant() {
        for (words, meant) in [
            ("warning", "did you mean warn?"),
            ("inf", "did you mean info?"),
            ("err", "did you mean error?"),
            ("none", "did you mean off?"),
            ("verbose", "did you mean trace?"),
            ("loud", "write error, warn"),
            ("6", "write error, warn"),
            ("info,fairlead::connection=debgu", "did you mean debug?"),
            ("info,connection", "write error, warn"),
        ] {
            let refused = parse(words).expect_err(words);
            assert!(refused.contains(meant), "{words}: {refused}");
        }
        let refused = parse("loud=very=much").expect_err("two levels");
        assert!(refused.contains("\"much\""), "{refused}");
    }
}
