//! What a cache is made with.

use core::time::Duration;

use fairlead_content::{BlockSize, Policy};

/// A part of the key. Path is always one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The request's host, lower-case, without port.
    Host,
    /// The path, as it was sent.
    Path,
    /// The query, as it was sent; a request without one has another key than one with an empty one.
    Query,
    /// The values of a request field.
    Header(Box<str>),
}

/// Limits and rules of a cache. Times without a unit are seconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The memory limit in bytes: blocks, heads, keys, directory, policy, tags, fetches, readers.
    pub bytes: u64,
    /// Longer bodies are not stored.
    pub max_object: u64,
    /// Bodies lie in blocks of this size.
    pub block: BlockSize,
    /// What the key consists of.
    pub key: Vec<KeyPart>,
    /// Which objects stay.
    pub policy: Policy,
    /// How long a request waits for the head of a response to another request.
    pub collapse_wait: Duration,
    /// This cache's name in `Via` and `Cache-Status`.
    pub name: Box<str>,
    /// Whether answers have `Cache-Status` (RFC 9211).
    pub shows_status: bool,
    /// Whether answers have `Via`.
    pub shows_via: bool,
    /// Targeted fields in order of preference (RFC 9213).
    pub targets: Vec<Box<str>>,
    /// Whether responses with `Set-Cookie` may be stored, with the cookie.
    pub stores_cookies: bool,
    /// Whether requests with `Cookie` take part. RFC 9111 lets them, and servers that answer by
    /// cookie without saying so (`private`, `Vary`) need false.
    pub serves_cookies: bool,
    /// Whether `Cache-Control` and `Pragma` of requests have an effect.
    pub obeys_requests: bool,
    /// The longest freshness without an explicit one.
    pub heuristic_max: u32,
    /// Default of `stale-while-revalidate`.
    pub stale_while_revalidate: u32,
    /// Default of `stale-if-error`.
    pub stale_if_error: u32,
    /// How long requests for a key are not collapsed after an answer that could not be stored.
    pub remembers_uncacheable: u32,
    /// Whether there is a journal, so that what is stored outlives the process.
    pub journals: bool,
    /// Longest head of a request or response, in bytes.
    pub head_max: u32,
    /// Fetches at a time.
    pub fetches_max: u32,
    /// Requests that wait at a time.
    pub waiters_max: u32,
    /// Answers that are read at a time.
    pub readers_max: u32,
}

/// Fields of a client's request that are left out of a fetch: the cache answers conditions and
/// ranges from the whole response.
pub const NOT_FETCHED: [&str; 4] = ["if-none-match", "if-modified-since", "if-range", "range"];

/// Fields that change what some servers answer and are in no key. One client could choose with
/// them what all others get, so a fetch has them only if the key has.
pub const UNKEYED: [&str; 11] = [
    "x-forwarded-host",
    "x-forwarded-server",
    "x-forwarded-scheme",
    "x-forwarded-prefix",
    "x-host",
    "x-original-host",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

impl Settings {
    /// Whether a field of a client's request is sent with a fetch: not if it is in
    /// [`NOT_FETCHED`], nor if it is in [`UNKEYED`] and not in the key.
    pub fn fetches_with(&self, name: &str) -> bool {
        let is_in = |list: &[&str]| list.iter().any(|other| other.eq_ignore_ascii_case(name));
        let is_key = |part: &KeyPart| match part {
            KeyPart::Header(other) => other.eq_ignore_ascii_case(name),
            _ => false,
        };
        !is_in(&NOT_FETCHED) && (!is_in(&UNKEYED) || self.key.iter().any(is_key))
    }

    /// Defaults for a cache of this size.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            max_object: 16 << 20,
            block: BlockSize::PAGE,
            key: vec![KeyPart::Host, KeyPart::Path, KeyPart::Query],
            policy: Policy::S3Fifo,
            collapse_wait: Duration::from_millis(500),
            name: "fairlead".into(),
            shows_status: true,
            shows_via: true,
            targets: vec!["CDN-Cache-Control".into()],
            stores_cookies: false,
            serves_cookies: true,
            obeys_requests: true,
            heuristic_max: 86_400,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            remembers_uncacheable: 120,
            journals: false,
            head_max: 16 << 10,
            fetches_max: 4_096,
            waiters_max: 16_384,
            readers_max: 65_536,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_has_no_field_by_which_one_client_chooses_for_all() {
        let mut settings = Settings::new(1 << 20);
        for (name, is_sent) in [
            ("Accept", true),
            ("Cookie", true),
            ("Range", false),
            ("IF-NONE-MATCH", false),
            ("X-Forwarded-Host", false),
            ("x-original-url", false),
        ] {
            assert_eq!(settings.fetches_with(name), is_sent, "{name}");
        }
        settings
            .key
            .push(KeyPart::Header("x-forwarded-host".into()));
        assert!(settings.fetches_with("X-Forwarded-Host"));
        assert!(!settings.fetches_with("X-Original-URL"));
    }
}
