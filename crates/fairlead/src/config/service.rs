//! `[[service]]` and its routes.

use core::time::Duration;

use fairlead_base::Endpoint;
use fairlead_splice::config::{Protocol, Source, Timeouts, Treatment, Unmatched};
use toml::de::DeValue;

use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::matcher::{MatcherDraft, Reads, matchers};
use super::names;
use super::quantity::{duration, endpoints, size};
use super::schema::ROUTE;
use super::section::{Node, Section, integer, string, word};

/// A service as far as it could be read.
#[derive(Debug)]
pub(super) struct ServiceDraft {
    pub(super) span: Span,
    pub(super) name: Option<At<String>>,
    pub(super) listen: Vec<At<Endpoint>>,
    /// False when an endpoint could not be read.
    pub(super) listen_whole: bool,
    pub(super) protocol: Option<Protocol>,
    pub(super) source: Source,
    /// The place of `source`, or of the service.
    pub(super) source_span: Span,
    pub(super) routes: Vec<RouteDraft>,
    pub(super) unmatched: Unmatched,
    pub(super) timeouts: Timeouts,
    pub(super) head_bytes_max: u32,
}

/// A route as far as it could be read.
#[derive(Debug)]
pub(super) struct RouteDraft {
    pub(super) span: Span,
    pub(super) name: Option<At<String>>,
    pub(super) matchers: Vec<MatcherDraft>,
    /// False when a condition could not be read, so that nothing is concluded from the others.
    pub(super) whole: bool,
    pub(super) pool: Option<At<String>>,
    pub(super) treatment: Treatment,
    pub(super) retries: u8,
}

const ROUTES_MAX: usize = 1_024;
const RETRIES_MAX: u64 = 8;
/// Retries of a route that says nothing of them.
pub(crate) const RETRIES: u8 = 2;
/// A client may not send more than the 65,535 bytes of an unscaled window before anything of it
/// is acknowledged, and a head is not acknowledged before a server has it.
const HEAD_BYTES_MAX: u64 = 63 << 10;
const _: () = assert!(
    HEAD_BYTES_MAX <= fairlead_wire::tls::HELLO_BYTES_MAX as u64,
    "as long a ClientHello is read as may be asked for"
);
const HEAD_BYTES_MIN: u64 = 512;
const HTTP_HEAD_BYTES: u32 = 16 << 10;
const TLS_HEAD_BYTES: u32 = 32 << 10;

/// The longest time after which Linux asks a reader that has paused once more (`TCP_RTO_MAX`).
const PROBE_AFTER_MAX: Duration = Duration::from_secs(120);

pub(super) fn service(section: Section<'_>, problems: &mut Problems) -> ServiceDraft {
    let name = section
        .require("name", "name = \"web\"", problems)
        .and_then(|node| string(node, "name", "\"web\"", problems))
        .and_then(|text| names::name(&text, problems));
    let listen_node = section.require("listen", "listen = \"10.1.0.3:80\"", problems);
    let listen = listen_node
        .map(|node| endpoints(node, "listen", problems))
        .unwrap_or_default();
    let listen_whole = listen_node.is_some_and(|node| listen.len() == values(node));
    let protocol = section
        .require(
            "protocol",
            "protocol = \"http\", \"tls\" or \"tcp\"",
            problems,
        )
        .and_then(|node| {
            let words = [
                ("http", Protocol::Http),
                ("tls", Protocol::Tls),
                ("tcp", Protocol::Tcp),
            ];
            word(node, "protocol", &words, problems)
        })
        .map(|protocol| protocol.value);
    let source = section
        .node("source")
        .and_then(|node| {
            let words = [("snat", Source::Snat), ("transparent", Source::Transparent)];
            word(node, "source", &words, problems)
        })
        .map_or(Source::Snat, |source| source.value);
    let unmatched = section
        .node("unmatched")
        .and_then(|node| unmatched(node, problems));
    let head_limit = section
        .node("head_limit")
        .and_then(|node| {
            size(
                node,
                "head_limit",
                (HEAD_BYTES_MIN, HEAD_BYTES_MAX),
                problems,
            )
        })
        .map(|bytes| bytes.value as u32);
    idle_keys(section, protocol, problems);
    let standard = if protocol == Some(Protocol::Tls) {
        TLS_HEAD_BYTES
    } else {
        HTTP_HEAD_BYTES
    };
    let routes: Vec<RouteDraft> = section
        .tables("route", &ROUTE, ROUTES_MAX, problems)
        .into_iter()
        .map(|table| route(table, protocol, problems))
        .collect();
    if section
        .node("route")
        .is_none_or(|node| node.get_ref().as_array().is_some_and(|a| a.is_empty()))
    {
        problems.push(
            Diagnostic::error(&section.span(), "this service has no route")
                .help("write [[service.route]] and pool = \"…\" below it"),
        );
    }
    ServiceDraft {
        span: section.span(),
        name,
        listen,
        listen_whole,
        protocol,
        source,
        source_span: section.key_span("source"),
        routes,
        unmatched: unmatched.unwrap_or(Unmatched::NotFound),
        timeouts: timeouts(section, problems),
        head_bytes_max: head_limit.unwrap_or(standard),
    }
}

/// How many values a scalar or list has.
fn values(node: Node<'_>) -> usize {
    node.get_ref().as_array().map_or(1, |array| array.len())
}

fn unmatched(node: Node<'_>, problems: &mut Problems) -> Option<Unmatched> {
    let number = match node.get_ref() {
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
        DeValue::String(text) => [404, 421].into_iter().find(|one| one.to_string() == **text),
        _ => None,
    };
    match number {
        Some(404) => Some(Unmatched::NotFound),
        Some(421) => Some(Unmatched::Misdirected),
        _ => {
            problems.push(
                Diagnostic::error(&node.span(), "`unmatched` is 404 or 421").help(
                    "write unmatched = 404 (Not Found) or unmatched = 421 (Misdirected Request)",
                ),
            );
            None
        }
    }
}

/// Warns of keys that do nothing in a service of this protocol.
fn idle_keys(section: Section<'_>, protocol: Option<Protocol>, problems: &mut Problems) {
    let idle: &[(&str, &str)] = match protocol {
        Some(Protocol::Tcp) => &[
            (
                "unmatched",
                "nothing is read, so there is no request to answer",
            ),
            ("head_limit", "nothing is read before a server is chosen"),
            ("head_timeout", "nothing is read before a server is chosen"),
        ],
        Some(Protocol::Tls) => &[("unmatched", "the answer there is a TLS alert")],
        _ => &[],
    };
    for (key, why) in idle {
        if section.node(key).is_some() {
            problems.push(
                Diagnostic::warning(
                    &section.key_span(key),
                    format!("`{key}` does nothing in this service: {why}"),
                )
                .help(format!("leave `{key}` out")),
            );
        }
    }
}

fn timeouts(section: Section<'_>, problems: &mut Problems) -> Timeouts {
    let mut timeouts = Timeouts::default();
    let mut read = |key: &str, low_ms: u64, high_s: u64, target: &mut Duration| {
        let bounds = (Duration::from_millis(low_ms), Duration::from_secs(high_s));
        if let Some(value) = section
            .node(key)
            .and_then(|node| duration(node, key, bounds, problems))
        {
            *target = value;
        }
    };
    read("head_timeout", 100, 600, &mut timeouts.head);
    read("idle_timeout", 1_000, 7 * 86_400, &mut timeouts.idle);
    read(
        "half_closed_timeout",
        1_000,
        86_400,
        &mut timeouts.half_closed,
    );
    read("time_wait", 1_000, 600, &mut timeouts.time_wait);
    if timeouts.half_closed < PROBE_AFTER_MAX
        && let Some(node) = section.node("half_closed_timeout")
    {
        let message = "a client that has sent all and pauses in reading the answer is reset";
        problems.push(
            Diagnostic::warning(&node.span(), message)
                .help("a server asks it again within 2m only; write \"150s\" or more"),
        );
    }
    timeouts
}

fn route(section: Section<'_>, protocol: Option<Protocol>, problems: &mut Problems) -> RouteDraft {
    let name = section
        .node("name")
        .and_then(|node| string(node, "name", "\"images\"", problems))
        .and_then(|text| names::name(&text, problems));
    let matchers = matchers(section, problems);
    let mut conditions = ROUTE.keys.iter().filter(|key| {
        section.node(key).is_some() && !matches!(**key, "name" | "pool" | "treatment" | "retries")
    });
    let whole = conditions.all(|key| matchers.iter().any(|matcher| matcher.key == *key));
    for matcher in &matchers {
        foreign(matcher, protocol, problems);
    }
    let pool = section
        .require("pool", "pool = \"…\", the name of a [[pool]]", problems)
        .and_then(|node| string(node, "pool", "\"pages\"", problems))
        .map(|text| At::new(text.value.to_owned(), text.span));
    let treatment = section.node("treatment").and_then(|node| {
        let words = [
            ("splice", Treatment::Splice),
            ("one-shot", Treatment::OneShot),
        ];
        word(node, "treatment", &words, problems)
    });
    if let (Some(treatment), Some(protocol)) = (&treatment, protocol)
        && treatment.value == Treatment::OneShot
        && protocol != Protocol::Http
    {
        problems.push(
            Diagnostic::error(
                &treatment.span,
                "one-shot is for HTTP: it rewrites the request head",
            )
            .help("write treatment = \"splice\", or leave `treatment` out"),
        );
    }
    let retries = section
        .node("retries")
        .and_then(|node| integer(node, "retries", 0..=RETRIES_MAX, problems))
        .map_or(RETRIES, |retries| retries as u8);
    RouteDraft {
        span: section.span(),
        name,
        matchers,
        whole,
        pool,
        treatment: treatment.map_or(Treatment::Splice, |treatment| treatment.value),
        retries,
    }
}

/// Refuses a condition on something that a service of this protocol never reads.
fn foreign(matcher: &MatcherDraft, protocol: Option<Protocol>, problems: &mut Problems) {
    let needs = match matcher.reads {
        Reads::Listen => return,
        Reads::Http => Protocol::Http,
        Reads::Tls => Protocol::Tls,
    };
    let Some(protocol) = protocol.filter(|protocol| *protocol != needs) else {
        return;
    };
    let (reads, own) = match protocol {
        Protocol::Http => ("the request head", "host"),
        Protocol::Tls => ("only the ClientHello", "sni"),
        Protocol::Tcp => ("nothing", "listen"),
    };
    let word = protocol_name(protocol);
    let key = matcher.key;
    problems.push(
        Diagnostic::error(
            &matcher.span,
            format!("`{key}` in a service of protocol {word}, which reads {reads}"),
        )
        .help(match (needs, key) {
            (Protocol::Tls, "sni") | (Protocol::Http, "host") => format!(
                "match by `{own}`, or write protocol = \"{}\" in the service",
                protocol_name(needs)
            ),
            _ => format!(
                "leave `{key}` out, or write protocol = \"{}\" in the service",
                protocol_name(needs)
            ),
        }),
    );
}

/// The word for a protocol in the file.
pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Tls => "tls",
        Protocol::Tcp => "tcp",
    }
}
