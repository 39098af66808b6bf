//! Names of hosts.

use crate::config::NamePattern;

/// Whether a name matches any of the patterns; no name matches none.
pub(super) fn any(patterns: &[NamePattern], name: Option<&str>) -> bool {
    name.is_some_and(|name| patterns.iter().any(|pattern| pattern.matches(name)))
}

impl NamePattern {
    /// Whether a name, in lower case and without a trailing dot, is this one or below this suffix
    /// (by any number of labels). An address only matches when it is written out.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => name == exact,
            Self::Suffix(suffix) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_name_is_only_itself() {
        let pattern = NamePattern::Exact("example.com".into());
        assert!(pattern.matches("example.com"));
        for other in [
            "www.example.com",
            "example.co",
            "xample.com",
            "example.com.",
            "",
        ] {
            assert!(!pattern.matches(other), "{other}");
        }
    }

    #[test]
    fn a_suffix_is_everything_below_but_not_itself() {
        let pattern = NamePattern::Suffix(".example.com".into());
        for name in ["www.example.com", "a.b.example.com"] {
            assert!(pattern.matches(name), "{name}");
        }
        let others = [
            "example.com",
            ".example.com",
            "badexample.com",
            "www.example.com.evil.net",
            "",
        ];
        for other in others {
            assert!(!pattern.matches(other), "{other}");
        }
    }
}
