//! `[service.route.cache]`.

use fairlead_http_cache::Policy;
use fairlead_splice::access::AccessList;
use fairlead_splice::config::{CacheKey, CacheRule, Protocol};

use super::Mode;
use super::access::prefixes;
use super::cross::Draft;
use super::diagnostic::{Diagnostic, Problems};
use super::keys::{Key, Standard, Value, read};
use super::schema::CACHE;
use super::section::{Section, boolean, quoted, strings};
use super::service::{RouteDraft, ServiceDraft};

impl Standard for CacheRule {
    fn standard() -> Self {
        Self::new(0)
    }
}

const SIZE_MIN: u64 = 1 << 20;
const SIZE_MAX: u64 = 1 << 40;

/// The keys of `[service.route.cache]`.
pub(crate) const CACHE_KEYS: [Key<CacheRule>; 7] = [
    Key::<CacheRule>::new(
        "size",
        Value::Size {
            from: SIZE_MIN,
            to: SIZE_MAX,
            get: |one| one.bytes,
            set: |one, bytes| one.bytes = bytes,
        },
        "all the memory that it takes: bodies, heads, directory and tags; `\"1MiB\"` to \
         `\"1024GiB\"`",
    )
    .default("required"),
    Key::new(
        "max_object",
        Value::Size {
            from: 1 << 10,
            to: 1 << 34,
            get: |one| one.max_object,
            set: |one, bytes| one.max_object = bytes,
        },
        "longer bodies are not stored; `\"1KiB\"` to `\"16GiB\"`",
    ),
    Key::special(
        "key",
        "`[\"host\", \"path\", \"query\"]`",
        |one| {
            let parts: Vec<_> = one.key.iter().map(show).collect();
            parts.join(" ")
        },
        "what requests for one object have in common: `host`, `path`, `query`, and \
         `header:NAME`. The path always is a part of it",
    ),
    Key::new(
        "policy",
        Value::Word {
            words: || Policy::ALL.map(Policy::name).to_vec(),
            get: |one| one.policy,
            set: |one, at| one.policy = Policy::ALL[at].name(),
        },
        "which responses stay if room is needed: `lru`, `fifo`, `clock`, `sieve`, `s3-fifo` or \
         `gdsf`. `fairlead cache advise` compares them",
    ),
    Key::special(
        "purge_from",
        "none",
        |one| {
            let entries = one.purge_from.iter().flat_map(|list| list.entries());
            let shown: Vec<_> = entries
                .map(|one| format!("{}/{}", one.first.to_ip(), one.bits))
                .collect();
            shown.join(" ")
        },
        "prefixes of clients whose `PURGE` requests are carried out; those of others get 403. \
         Without it `PURGE` is relayed like other methods",
    ),
    Key::new(
        "first",
        Value::Word {
            words: || vec!["cacheable", "always"],
            get: |one| match one.always {
                true => "always",
                false => "cacheable",
            },
            set: |one, at| one.always = at == 1,
        },
        "which connections read the cache: those that begin with GET or HEAD (`cacheable`), or \
         all (`always`). Others are spliced, and their later requests miss the cache",
    ),
    Key::special(
        "kernel",
        "`false`",
        |one| one.kernel.to_string(),
        "`true`: responses of one or two segments that are asked for often are sent by the kernel \
         ([hits in the kernel](kernel-hits.md))",
    ),
];

fn show(part: &CacheKey) -> String {
    match part {
        CacheKey::Host => "host".to_owned(),
        CacheKey::Path => "path".to_owned(),
        CacheKey::Query => "query".to_owned(),
        CacheKey::Header(name) => format!("header:{name}"),
    }
}

/// What of a cache `check` shows.
pub(crate) fn shown(rule: Option<&CacheRule>) -> String {
    rule.map_or_else(String::new, |rule| CACHE_KEYS[0].show(rule))
}

/// The cache of a route, if it has one.
pub(super) fn cache(
    section: Section<'_>,
    protocol: Option<Protocol>,
    problems: &mut Problems,
) -> Option<CacheRule> {
    let table = section.table("cache", &CACHE, problems)?;
    if let Some(protocol) = protocol.filter(|one| *one != Protocol::Http) {
        let why = match protocol {
            Protocol::Tls => "its requests are encrypted",
            _ => "it reads no requests",
        };
        let message = format!("a cache in a service of another protocol than http: {why}");
        problems.push(
            Diagnostic::error(&section.key_span("cache"), message)
                .help("leave it out, or cache behind what decrypts"),
        );
    }
    let example = "size = \"256MiB\"";
    table.require("size", example, problems)?;
    let mut rule = CacheRule::standard();
    read(&CACHE_KEYS, table, &mut rule, problems);
    if let Some(node) = table.node("key") {
        rule.key = Vec::new();
        for text in strings(node, "key", "\"host\"", problems) {
            match part(text.value) {
                Some(part) if !rule.key.contains(&part) => rule.key.push(part),
                Some(_) => {}
                None => {
                    let message = format!("{} is no part of a key", quoted(text.value));
                    problems.push(
                        Diagnostic::error(&text.span, message)
                            .help("write \"host\", \"path\", \"query\" or \"header:NAME\""),
                    );
                }
            }
        }
    }
    if let Some(node) = table.node("kernel") {
        rule.kernel = boolean(node, "kernel", problems).unwrap_or_default();
    }
    let from = prefixes(table, "purge_from", true, problems);
    if !from.is_empty() {
        let entries = from.into_iter().map(|one| one.value).collect();
        rule.purge_from = Some(AccessList::new("purge_from", false, entries));
    }
    if rule.max_object > rule.bytes / 2 {
        let message = "`max_object` is more than half of `size`: a few objects fill the cache";
        problems.push(
            Diagnostic::warning(&section.key_span("cache"), message)
                .help("write a larger `size` or a smaller `max_object`"),
        );
    }
    Some(rule)
}

/// Says why `kernel` does nothing, where it does not.
pub(super) fn check(
    draft: &Draft,
    service: &ServiceDraft,
    route: &RouteDraft,
    problems: &mut Problems,
) {
    let Some(rule) = route.route.cache.as_ref().filter(|rule| rule.kernel) else {
        return;
    };
    let mut matchers = service.routes.iter().flat_map(|one| &one.matchers);
    let odd = matchers.find(|one| !one.matcher.decided_by_plain_head());
    let in_key = rule
        .key
        .iter()
        .find(|part| matches!(part, CacheKey::Header(_)));
    let why = match (draft.fastpath.mode, odd, in_key) {
        (Mode::Engine, ..) => "mode = \"engine\" does without the kernel".to_owned(),
        (Mode::XdpGeneric, ..) => {
            "mode = \"xdp-generic\" cannot give packets to sockets".to_owned()
        }
        (_, Some(odd), _) => format!("a route of the service compares `{}`", odd.key),
        (_, _, Some(part)) => format!("`key` has {}", show(part)),
        _ => return,
    };
    problems.push(
        Diagnostic::warning(&route.span, format!("`kernel = true` has no effect: {why}"))
            .help("the front answers all requests, as without the key; leave it out"),
    );
}

fn part(text: &str) -> Option<CacheKey> {
    match text {
        "host" => Some(CacheKey::Host),
        "path" => Some(CacheKey::Path),
        "query" => Some(CacheKey::Query),
        _ => {
            let name = text.strip_prefix("header:")?;
            let token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
            let is_name = !name.is_empty() && name.bytes().all(token);
            is_name.then(|| CacheKey::Header(name.to_ascii_lowercase()))
        }
    }
}
