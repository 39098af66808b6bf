//! Cache-Control of requests and responses (RFC 9111, section 5.2), Pragma, and targeted fields
//! (RFC 9213).

use fairlead_wire::http::members;

use crate::dictionary::{self, Value};
use crate::head::Field;

/// What is larger counts as this (RFC 9111, section 1.2.2).
pub(crate) const SECONDS_MAX: u32 = 1 << 31;

/// Directives of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseControl {
    /// Seconds; 0 for a value that is no number. The smallest of several.
    pub max_age: Option<u32>,
    /// As `max_age`, for shared caches.
    pub s_maxage: Option<u32>,
    /// Seconds after the end of freshness in which a stale response may be served while it is
    /// validated (RFC 5861).
    pub stale_while_revalidate: Option<u32>,
    /// Seconds after the end of freshness in which a stale response may replace an error.
    pub stale_if_error: Option<u32>,
    /// Must not be stored.
    pub no_store: bool,
    /// Must be validated before each use; with field names as well as without.
    pub no_cache: bool,
    /// For one user; with field names as well as without.
    pub private: bool,
    /// May be stored even if the request had `Authorization`.
    pub public: bool,
    /// Must not be served stale: `must-revalidate` or `proxy-revalidate`.
    pub must_revalidate: bool,
    /// `must-revalidate` alone.
    pub must_revalidate_itself: bool,
    /// Overrides `no-store` for a status that is understood.
    pub must_understand: bool,
    /// A targeted field took the place of `Cache-Control` and `Expires`.
    pub is_targeted: bool,
}

/// Directives of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestControl {
    /// The oldest age that the client accepts, in seconds.
    pub max_age: Option<u32>,
    /// How long the response must stay fresh, in seconds.
    pub min_fresh: Option<u32>,
    /// How stale a response the client accepts, in seconds; without a value, any.
    pub max_stale: Option<u32>,
    /// Not without validation; also `Pragma: no-cache` without `Cache-Control`.
    pub no_cache: bool,
    /// Nothing of this exchange may be stored.
    pub no_store: bool,
    /// Only from the cache.
    pub only_if_cached: bool,
}

impl ResponseControl {
    /// Of a response's fields. The first valid and non-empty field of `targets` replaces
    /// `Cache-Control`.
    pub fn new(fields: &[Field<'_>], targets: &[Box<str>]) -> Self {
        for target in targets {
            let lines = lines(fields, target);
            if let Some(control) = Self::targeted(lines) {
                return control;
            }
        }
        let mut control = Self::default();
        let mut seen = false;
        for line in lines(fields, "cache-control") {
            seen = true;
            for member in members(line) {
                let (name, value) = directive(member);
                control.take(name, value.map(seconds));
            }
        }
        let pragma = || lines(fields, "pragma").any(has_no_cache);
        control.no_cache |= !seen && pragma();
        control
    }

    fn take(&mut self, name: &[u8], value: Option<Option<u32>>) {
        // A value that is no number is the shortest time.
        let number = value.map(Option::unwrap_or_default);
        let number = number.unwrap_or_default();
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("max-age") {
            shortest(&mut self.max_age, number);
        } else if is("s-maxage") {
            shortest(&mut self.s_maxage, number);
        } else if is("stale-while-revalidate") {
            shortest(&mut self.stale_while_revalidate, number);
        } else if is("stale-if-error") {
            shortest(&mut self.stale_if_error, number);
        } else if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            self.no_cache = true;
        } else if is("private") {
            self.private = true;
        } else if is("public") {
            self.public = true;
        } else if is("must-revalidate") {
            self.must_revalidate = true;
            self.must_revalidate_itself = true;
        } else if is("proxy-revalidate") {
            self.must_revalidate = true;
        } else if is("must-understand") {
            self.must_understand = true;
        }
    }

    /// `None` without such a field, and for one that is empty, is no dictionary (RFC 8941), or
    /// has a known directive of another type.
    fn targeted<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut control = Self {
            is_targeted: true,
            ..Self::default()
        };
        let (mut is_empty, mut is_typed, mut is_dictionary) = (true, true, true);
        for line in lines {
            let read = dictionary::parse(line, |name, value| {
                is_empty = false;
                let with_number = matches!(
                    name,
                    b"max-age" | b"s-maxage" | b"stale-while-revalidate" | b"stale-if-error"
                );
                match value {
                    Value::Integer(number) if with_number => {
                        let number = u32::try_from(number.max(0)).unwrap_or(SECONDS_MAX);
                        control.take(name, Some(Some(number.min(SECONDS_MAX))));
                    }
                    _ if with_number => is_typed = false,
                    Value::Boolean(false) => {}
                    _ => control.take(name, None),
                }
            });
            is_dictionary &= read.is_some();
        }
        (is_dictionary && is_typed && !is_empty).then_some(control)
    }
}

impl RequestControl {
    /// Of a request's fields.
    pub fn new(fields: &[Field<'_>]) -> Self {
        let mut control = Self::default();
        let mut seen = false;
        for line in lines(fields, "cache-control") {
            seen = true;
            for member in members(line) {
                control.take(member);
            }
        }
        let pragma = || lines(fields, "pragma").any(has_no_cache);
        control.no_cache |= !seen && pragma();
        control
    }

    fn take(&mut self, member: &[u8]) {
        let (name, value) = directive(member);
        let number = value.and_then(seconds);
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("max-age") {
            shortest(&mut self.max_age, number.unwrap_or_default());
        } else if is("min-fresh") {
            let longest = self.min_fresh.unwrap_or_default();
            self.min_fresh = Some(number.unwrap_or_default().max(longest));
        } else if is("max-stale") {
            // Without a value any; a value that is no number allows nothing.
            let allowed = if value.is_none() {
                SECONDS_MAX
            } else {
                number.unwrap_or_default()
            };
            shortest(&mut self.max_stale, allowed);
        } else if is("no-cache") {
            self.no_cache = true;
        } else if is("no-store") {
            self.no_store = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        }
    }
}

pub(crate) fn lines<'a>(
    fields: &'a [Field<'a>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> + 'a {
    fields
        .iter()
        .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| *value)
}

fn shortest(kept: &mut Option<u32>, number: u32) {
    *kept = Some(kept.map_or(number, |kept| kept.min(number)));
}

fn has_no_cache(line: &[u8]) -> bool {
    members(line).any(|member| member.eq_ignore_ascii_case(b"no-cache"))
}

/// Name and value of a directive; of a quoted value, what is inside.
fn directive(member: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else {
        return (member, None);
    };
    let (name, value) = (&member[..at], &member[at + 1..]);
    let inside = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    (name, Some(inside.unwrap_or(value)))
}

/// Seconds: digits and nothing else. What is larger is the largest.
pub(crate) fn seconds(value: &[u8]) -> Option<u32> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = value.iter().fold(0u64, |number, digit| {
        (number * 10 + u64::from(digit - b'0')).min(u64::from(SECONDS_MAX))
    });
    Some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(values: &[&str]) -> ResponseControl {
        let fields: Vec<Field<'_>> = values
            .iter()
            .map(|value| ("Cache-Control", value.as_bytes()))
            .collect();
        ResponseControl::new(&fields, &[])
    }

    #[test]
    fn directives_of_responses_are_read() {
        for (values, max_age) in [
            (&["max-age=3600"][..], Some(3_600)),
            (&["MaX-aGe=3600"], Some(3_600)),
            (&["foobar, max-age=3600"], Some(3_600)),
            (&["max-age=\"3600\""], Some(3_600)),
            (&["max-age=003600"], Some(3_600)),
            (&["max-age='3600'"], Some(0)),
            (&["max-age=-1"], Some(0)),
            (&["max-age"], Some(0)),
            (&["max-age=3600.0"], Some(0)),
            (&["max-age=99999999999"], Some(SECONDS_MAX)),
            (&["max-age=1800, max-age=1"], Some(1)),
            (&["max-age=1", "max-age=1800"], Some(1)),
            (&["extension=\"max-age=3600\", max-age=1"], Some(1)),
            (&["extension=\"max-age=3600\""], None),
            (&["max-age =1"], None),
        ] {
            assert_eq!(response(values).max_age, max_age, "{values:?}");
        }
        let all = response(&["No-StOrE, no-cache=\"a, b\", private=\"x\"", "public"]);
        assert!(all.no_store && all.no_cache && all.private && all.public);
        assert!(response(&["proxy-revalidate"]).must_revalidate);
        assert!(!response(&["proxy-revalidate"]).must_revalidate_itself);
    }

    #[test]
    fn a_targeted_field_replaces_cache_control_if_it_is_valid() {
        let targets = [Box::from("CDN-Cache-Control")];
        for (value, wanted) in [
            ("max-age=7", Some(7)),
            ("foobar, max-age=7", Some(7)),
            ("max-age=99999999999", Some(SECONDS_MAX)),
            ("max-age=\"7\"", Some(60)),
            ("max-age=7, &&&&", Some(60)),
            ("", Some(60)),
            ("no-store=?0, max-age=7", Some(7)),
            ("MAX-AGE=7", Some(60)),
            ("private", None),
        ] {
            let fields: [Field<'_>; 2] = [
                ("cache-control", b"max-age=60"),
                ("cdn-cache-control", value.as_bytes()),
            ];
            let control = ResponseControl::new(&fields, &targets);
            assert_eq!(control.max_age, wanted, "{value}");
            assert!(!control.no_store);
        }
    }

    #[test]
    fn directives_of_requests_are_read() {
        let read = |fields: &[Field<'_>]| RequestControl::new(fields);
        let control = read(&[(
            "cache-control",
            b"max-stale, min-fresh=5, MAX-AGE=7, only-if-cached, no-store",
        )]);
        assert_eq!(control.max_stale, Some(SECONDS_MAX));
        assert_eq!((control.min_fresh, control.max_age), (Some(5), Some(7)));
        assert!(control.only_if_cached && control.no_store && !control.no_cache);
        assert_eq!(
            read(&[("cache-control", b"max-stale=x")]).max_stale,
            Some(0)
        );
        assert!(read(&[("pragma", b"a, no-cache")]).no_cache);
        assert!(!read(&[("pragma", b"no-cache"), ("cache-control", b"x")]).no_cache);
    }
}
