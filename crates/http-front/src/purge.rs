//! `PURGE` requests, as operators' programs send them to other caches.

use fairlead_base::Address;
use fairlead_http_cache::{Answer, AnyStore, Cache, Purge};
use fairlead_splice::access::AccessList;
use fairlead_wire::http::RequestHead;

/// The method. It is in no standard.
pub(crate) const METHOD: &str = "PURGE";

/// Tags in one request, at most.
const TAGS_MAX: usize = 256;

/// Fields with tags to purge, and whether it is done softly: those of Varnish's xkey module, and
/// of Fastly.
const TAG_FIELDS: [(&str, bool); 3] = [
    ("xkey-purge", false),
    ("xkey-softpurge", true),
    ("surrogate-key", false),
];

/// Fastly's: what is purged becomes stale.
const SOFT_FIELD: &str = "fastly-soft-purge";

/// Does what a request asks for, if its client may: drops a URL, or everything with one of its
/// tags. The head of the answer is appended to `out`, without the empty line at its end.
pub(crate) fn purge(
    cache: &mut Cache<AnyStore>,
    allowed: &AccessList,
    client: Address,
    head: &RequestHead<'_>,
    out: &mut Vec<u8>,
) -> Answer {
    let status = match allowed.allows(client) {
        true => carry_out(cache, head),
        false => 403,
    };
    let phrase = match status {
        200 => "Purged",
        403 => "Forbidden",
        _ => "Bad Request",
    };
    out.extend_from_slice(
        format!("HTTP/1.1 {status} {phrase}\r\nContent-Length: 0\r\n").as_bytes(),
    );
    Answer { status, body: None }
}

fn carry_out(cache: &mut Cache<AnyStore>, head: &RequestHead<'_>) -> u16 {
    let is_soft = head
        .headers()
        .any(|(name, value)| name.eq_ignore_ascii_case(SOFT_FIELD) && value == b"1");
    let mut tags = Vec::new();
    for (name, value) in head.headers() {
        let mut fields = TAG_FIELDS.iter();
        let Some((_, soft)) = fields.find(|(one, _)| name.eq_ignore_ascii_case(one)) else {
            continue;
        };
        let words = value.split(|byte| matches!(byte, b' ' | b',' | b'\t'));
        let words = words.filter(|word| !word.is_empty());
        tags.extend(words.map(|word| (word, *soft || is_soft)));
    }
    let Some(host) = head.host.as_deref().filter(|_| tags.len() <= TAGS_MAX) else {
        return 400;
    };
    let mut done = Ok(());
    if tags.is_empty() {
        let target = head.target;
        done = cache.purge(Purge::Url { host, target }, is_soft);
    }
    for (tag, soft) in tags {
        done = done.and(cache.purge(Purge::Tag(tag), soft));
    }
    if done.is_ok() { 200 } else { 400 }
}
