//! The filter of `--log`.
//!
//! `tracing` takes a word that is not a level for a target name: that target then logs everything,
//! and all others nothing. So a mistyped level such as `warning` would silently disable the log.

use tracing_subscriber::EnvFilter;

use crate::config::nearest;

/// Names of levels, besides the numbers 0 to 5.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Prefix of this program's own targets.
const OWN: &str = "fairlead";

/// Parses a filter.
///
/// # Errors
/// What is wrong, and what to write instead.
pub(super) fn parse(words: &str) -> Result<EnvFilter, String> {
    // `tracing` does not accept spaces around a comma.
    let list: Vec<_> = words.split(',').map(str::trim).collect();
    list.iter().try_for_each(|word| check(word))?;
    EnvFilter::builder()
        .parse(list.join(","))
        .map_err(|error| format!("{words:?} is not a log filter ({error}); {WHAT_TO_WRITE}"))
}

const WHAT_TO_WRITE: &str = "write error, warn, info, debug or trace, or a list such as \
                             info,fairlead::connection=debug";

/// Refuses a word in the place of a level that is not one, alone or after `=`.
fn check(word: &str) -> Result<(), String> {
    let (part, level) = match word.rsplit_once('=') {
        Some((part, level)) => (Some(part), level.trim()),
        None => (None, word),
    };
    let is_level = LEVELS.iter().any(|one| one.eq_ignore_ascii_case(level))
        || matches!(level.as_bytes(), [b'0'..=b'5']);
    // Filters by span and field have brackets, with arbitrary text in quotation marks.
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
    Err(format!("{level:?} is not a log level; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_are_accepted() {
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
    fn an_unknown_level_is_refused_with_a_suggestion() {
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
