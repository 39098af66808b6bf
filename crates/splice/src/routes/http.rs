//! The other parts of an HTTP request head.

use fairlead_wire::http::{RequestHead, members};

use crate::config::ValuePattern;

/// Whether the method is one of these, in the same case (RFC 9110, section 9.1).
pub(super) fn method(methods: &[String], head: &RequestHead<'_>) -> bool {
    methods.iter().any(|method| method == head.method)
}

/// Whether the fields of that name, in whatever case, have such a value: all of it, or one member
/// of the list that it is. It makes no difference whether the members came on one line or on
/// several (RFC 9110, section 5.3).
pub(super) fn header(name: &str, value: &ValuePattern, head: &RequestHead<'_>) -> bool {
    head.joined(name).is_some_and(|joined| {
        value.matches(&joined) || members(&joined).any(|member| value.matches(member))
    })
}

/// Whether the first query parameter of that name, decoded, has such a value.
pub(super) fn query(name: &str, value: &ValuePattern, head: &RequestHead<'_>) -> bool {
    head.query_param(name)
        .is_some_and(|text| value.matches(text.as_bytes()))
}

/// Whether the first cookie of that name has such a value.
pub(super) fn cookie(name: &str, value: &ValuePattern, head: &RequestHead<'_>) -> bool {
    head.cookie(name)
        .is_some_and(|text| value.matches(text.as_bytes()))
}

impl ValuePattern {
    /// Whether a value that is there looks like this. A value that is not UTF-8 matches no
    /// regular expression.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Exact(texts) => texts.iter().any(|text| text.as_bytes() == value),
            Self::Regex(expression) => {
                core::str::from_utf8(value).is_ok_and(|text| expression.is_match(text))
            }
        }
    }
}
