//! `[[service]]` and its routes.

use core::time::Duration;

use fairlead_base::Endpoint;
use fairlead_splice::config::{
    ACCESS_LISTS_MAX, Forwarded, LaterRequests, OnDenied, PoolId, Protocol, Route, Service, Source,
    Timeouts, Treatment, Unmatched,
};
use toml::de::DeValue;

use super::cache;
use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::host;
use super::keys::{Key, Standard, Value, read};
use super::matcher::{MATCHERS, MatcherDraft, Reads, matchers, values};
use super::names;
use super::page;
use super::quantity::endpoints;
use super::schema::ROUTE;
use super::section::{Node, Section, quoted, string, strings, word};
use crate::log::treatment_name;

/// A service as far as it could be read.
#[derive(Debug)]
pub(super) struct ServiceDraft {
    pub(super) span: Span,
    pub(super) name: Option<At<String>>,
    pub(super) listen: Vec<At<Endpoint>>,
    /// False when an endpoint could not be read.
    pub(super) listen_whole: bool,
    pub(super) protocol: Option<Protocol>,
    /// What clients without a route get is written.
    pub(super) says_unmatched: bool,
    /// What becomes of later requests is written.
    pub(super) says_later_requests: bool,
    /// The place of `source`, or of the service.
    pub(super) source_span: Span,
    /// The access lists that it names.
    pub(super) access: Vec<At<String>>,
    pub(super) routes: Vec<RouteDraft>,
    /// All of it but its access lists and routes.
    pub(super) service: Service,
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
    /// All of it but its name, conditions and pool.
    pub(super) route: Route,
}

const ROUTES_MAX: usize = 1_024;
const RETRIES_MAX: u64 = 8;
/// A client may not send more than the 65,535 bytes of an unscaled window before anything of it
/// is acknowledged, and a head is not acknowledged before a server has it.
const HEAD_BYTES_MAX: u64 = 63 << 10;
const _: () = assert!(
    HEAD_BYTES_MAX <= fairlead_wire::tls::HELLO_BYTES_MAX as u64,
    "as long a ClientHello is read as may be asked for"
);
const HEAD_BYTES_MIN: u64 = 512;

/// After this time Linux has given up a silent peer that it sent keep-alives to: 7,200 s and nine
/// times 75 s.
const KEEP_ALIVE: Duration = Duration::from_secs(7_200 + 9 * 75);

/// The longest time after which Linux asks a reader that has paused once more (`TCP_RTO_MAX`).
const PROBE_AFTER_MAX: Duration = Duration::from_secs(120);

impl Standard for Service {
    fn standard() -> Self {
        Self::new("", Vec::new(), Protocol::Http)
    }
}

/// The keys of `[[service]]`.
pub(crate) const KEYS: [Key<Service>; 23] = [
    Key::special(
        "name",
        "required",
        |one| one.name.clone(),
        "its name in logs and metrics",
    ),
    Key::special(
        "listen",
        "required",
        |one| {
            let listen: Vec<_> = one.listen.iter().map(ToString::to_string).collect();
            listen.join(" ")
        },
        "the addresses and ports that clients connect to; each belongs to one service only",
    ),
    Key::special(
        "protocol",
        "required",
        |one| protocol_name(one.protocol).to_owned(),
        "what is read before a server is chosen: `http` a request head (HTTP/1.0 or 1.1), `tls` a \
         ClientHello, `tcp` nothing",
    ),
    Key::new(
        "source",
        Value::Word {
            words: || vec!["snat", "transparent"],
            get: |one| match one.source {
                Source::Snat => "snat",
                Source::Transparent => "transparent",
            },
            set: |one, at| one.source = [Source::Snat, Source::Transparent][at],
        },
        "the source address towards servers: `snat` (one of `[network]`) or `transparent` (that of \
         the client)",
    ),
    Key::special(
        "access",
        "none",
        |one| {
            let names: Vec<_> = one.access.iter().map(|list| list.name()).collect();
            names.join(" ")
        },
        "[access lists](#access-who-may-connect) of which each must allow a client; 8 at most",
    ),
    Key::new(
        "on_denied",
        Value::Word {
            words: || vec!["drop", "reset"],
            get: |one| match one.on_denied {
                OnDenied::Drop => "drop",
                OnDenied::Reset => "reset",
            },
            set: |one, at| one.on_denied = [OnDenied::Drop, OnDenied::Reset][at],
        },
        "what a client gets that an access list denies: nothing (`drop`) or a RST (`reset`)",
    ),
    Key::special(
        "unmatched",
        "`404`, TLS `\"alert\"`",
        |one| match (one.protocol, one.unmatched) {
            (Protocol::Tcp, _) => String::new(),
            (_, Unmatched::NotFound) => "404".to_owned(),
            (_, Unmatched::Misdirected) => "421".to_owned(),
            (_, Unmatched::Alert) => "alert".to_owned(),
            (_, Unmatched::Reset) => "reset".to_owned(),
        },
        "what a client without a matching route gets: HTTP `404` Not Found or `421` Misdirected \
         Request, TLS `\"alert\"` or `\"reset\"`; with this key `check` asks for no default route",
    ),
    Key::special(
        "unmatched_page",
        "none",
        |one| page::show(one.unmatched_page.as_ref()),
        "(HTTP only) absolute path of a file of at most 16 KiB, read with the configuration: the \
         body of the answer to a client without a matching route",
    ),
    Key::special(
        "unavailable_page",
        "none",
        |one| page::show(one.unavailable_page.as_ref()),
        "(HTTP only) the same for the answer 503, when no server can be reached",
    ),
    Key::<Service>::new(
        "later_requests",
        Value::Word {
            words: || vec!["pass", "count", "close"],
            get: |one| match one.later_requests {
                LaterRequests::Pass => "pass",
                LaterRequests::Count => "count",
                LaterRequests::Close => "close",
            },
            set: |one, at| {
                one.later_requests = [
                    LaterRequests::Pass,
                    LaterRequests::Count,
                    LaterRequests::Close,
                ][at];
            },
        },
        "(HTTP only) [requests behind the first one](#later-requests) that another pool would get: \
         `pass` forwards them to the same server, `count` counts them as well, in one connection \
         of 64, `close` resets the connection instead",
    )
    .default("`\"pass\"`; `\"count\"` where routes can disagree"),
    Key::<Service>::new(
        "head_limit",
        Value::Size {
            from: HEAD_BYTES_MIN,
            to: HEAD_BYTES_MAX,
            get: |one| one.head_bytes_max.into(),
            set: |one, most| one.head_bytes_max = most as u32,
        },
        "the longest head, `\"512B\"` to `\"63KiB\"`; a longer one is refused (HTTP: 431 or 414)",
    )
    .default("`\"16KiB\"`, TLS `\"32KiB\"`"),
    Key::new(
        "head_timeout",
        Value::Duration {
            from: Duration::from_millis(100),
            to: Duration::from_secs(600),
            get: |one| one.timeouts.head,
            set: |one, after| one.timeouts.head = after,
        },
        "from the first data of a client to its complete head; `\"100ms\"` to `\"10m\"`",
    ),
    Key::new(
        "first_bytes_timeout",
        Value::OptionalDuration {
            from: Duration::from_millis(10),
            to: Duration::from_secs(60),
            get: |one| one.timeouts.first_bytes,
            set: |one, after| one.timeouts.first_bytes = Some(after),
        },
        "(TLS only) a client that has sent nothing for so long does not speak TLS, and takes the \
         first route for such clients; `\"10ms\"` to `\"1m\"`",
    ),
    Key::new(
        "sleep_max",
        Value::Duration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(7 * 86_400),
            get: |one| one.timeouts.sleep,
            set: |one, after| one.timeouts.sleep = after,
        },
        "(routes with `sleep`) how long a connection without a socket waits for its next request; \
         `\"1s\"` to `\"7d\"`",
    ),
    Key::new(
        "wake_wait",
        Value::Duration {
            from: Duration::from_millis(100),
            to: Duration::from_secs(600),
            get: |one| one.timeouts.wake,
            set: |one, after| one.timeouts.wake = after,
        },
        "(routes with `sleep`) how long such a request waits for a process to listen; `\"100ms\"` \
         to `\"10m\"`",
    ),
    Key::new(
        "keep_alive_timeout",
        Value::Duration {
            from: Duration::from_millis(100),
            to: Duration::from_secs(86_400),
            get: |one| one.per_request.keep_alive,
            set: |one, after| one.per_request.keep_alive = after,
        },
        "(routes with `per-request`) how long a connection without a request stays open; \
         `\"100ms\"` to `\"1d\"`",
    ),
    Key::new(
        "stalled_timeout",
        Value::Duration {
            from: Duration::from_millis(100),
            to: Duration::from_secs(86_400),
            get: |one| one.per_request.stalled,
            set: |one, after| one.per_request.stalled = after,
        },
        "(routes with `per-request`) a request of which no byte moves for so long is answered with \
         504, or reset in the middle of its response; `\"100ms\"` to `\"1d\"`",
    ),
    Key::new(
        "forwarded",
        Value::Word {
            words: || vec!["x-forwarded-for", "forwarded", "off"],
            get: |one| match one.per_request.forwarded {
                Forwarded::XForwardedFor => "x-forwarded-for",
                Forwarded::Standard => "forwarded",
                Forwarded::Off => "off",
            },
            set: |one, at| {
                one.per_request.forwarded = [
                    Forwarded::XForwardedFor,
                    Forwarded::Standard,
                    Forwarded::Off,
                ][at];
            },
        },
        "(routes with `per-request`) the field to which the client's address is added: \
         `X-Forwarded-For`, `Forwarded` (RFC 7239), or none",
    ),
    Key::new(
        "idle_timeout",
        Value::Duration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(7 * 86_400),
            get: |one| one.timeouts.idle,
            set: |one, after| one.timeouts.idle = after,
        },
        "without any packet on a spliced connection; `\"1s\"` to `\"7d\"`",
    ),
    Key::new(
        "max_lifetime",
        Value::OptionalDuration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(365 * 86_400),
            get: |one| one.timeouts.lifetime,
            set: |one, after| one.timeouts.lifetime = Some(after),
        },
        "a spliced connection of this age is reset at both ends, even an active one; `\"1s\"` to \
         `\"365d\"`",
    ),
    Key::new(
        "half_closed_timeout",
        Value::Duration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(86_400),
            get: |one| one.timeouts.half_closed,
            set: |one, after| one.timeouts.half_closed = after,
        },
        "without any packet after one side has closed; `\"1s\"` to `\"1d\"`, `\"2m\"` or more \
         advised",
    ),
    Key::new(
        "time_wait",
        Value::Duration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(600),
            get: |one| one.timeouts.time_wait,
            set: |one, after| one.timeouts.time_wait = after,
        },
        "how long a closed or reset connection stays in the table (2 MSL); `\"1s\"` to `\"10m\"`",
    ),
    Key::special(
        "route",
        "required",
        |_| String::new(),
        "its [routes](#serviceroute-which-connection-goes-where)",
    ),
];

impl Standard for Route {
    fn standard() -> Self {
        Self::new("", Vec::new(), PoolId(0))
    }
}

/// The keys of `[[service.route]]`, its conditions apart.
pub(crate) const ROUTE_KEYS: [Key<Route>; 8] = [
    Key::special(
        "name",
        "its number, `#1`",
        |_| String::new(),
        "its name in logs and metrics",
    ),
    Key::special(
        "pool",
        "required",
        |_| String::new(),
        "the pool that gets the connections",
    ),
    Key::special(
        "listener",
        "required",
        |route| {
            let both = [route.listeners.v4, route.listeners.v6];
            let both: Vec<_> = both.iter().flatten().map(ToString::to_string).collect();
            both.join(" ")
        },
        "(`host` only) where a process of this machine listens, in place of `pool`; one address \
         for each IP version",
    ),
    Key::special(
        "fallback_pool",
        "none",
        |_| String::new(),
        "(`host` only) the pool of clients that the listener cannot have; without it they are \
         reset",
    ),
    Key::new(
        "treatment",
        Value::Word {
            words: || vec!["splice", "one-shot", "host", "per-request"],
            get: |route| treatment_name(route.treatment),
            set: |route, at| {
                route.treatment = [
                    Treatment::Splice,
                    Treatment::OneShot,
                    Treatment::Host,
                    Treatment::PerRequest,
                ][at];
            },
        },
        "`splice`: one decision for the whole connection; `one-shot` (HTTP only): one request, \
         sent with `Connection: close`; `host`: the connection becomes a socket of \
         [a process on this machine](handoff.md); `per-request` (HTTP only): \
         [each request is routed](per-request.md)",
    ),
    Key::special(
        "cache",
        "none",
        |route| cache::shown(route.cache.as_ref()),
        "(HTTP only) responses are stored, and requests answered from there; see \
         [Cache](#serviceroutecache-responses-kept)",
    ),
    Key::special(
        "sleep",
        "`false`",
        |route| {
            if route.sleep {
                "true".to_owned()
            } else {
                String::new()
            }
        },
        "(HTTP, `host` only) idle connections [outlive](handoff.md#sleepers) the process that has \
         their socket",
    ),
    Key::new(
        "retries",
        Value::Number {
            from: 0,
            to: RETRIES_MAX,
            get: |route| route.retries.into(),
            set: |route, most| route.retries = most as u8,
        },
        "how many further servers are tried after a refusal or timeout, 0 to 8",
    ),
];

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
    let example = "protocol = \"http\", \"tls\" or \"tcp\"";
    let protocol = section
        .require("protocol", example, problems)
        .and_then(|node| protocol(node, problems));
    let own_name = name.as_ref().map_or("", |name| name.value.as_str());
    let ends = listen.iter().map(|listen| listen.value).collect();
    let mut service = Service::new(own_name, ends, protocol.unwrap_or(Protocol::Http));
    read(&KEYS, section, &mut service, problems);
    if let Some(node) = section.node("unmatched")
        && let Some(protocol) = protocol
        && let Some(answer) = unmatched(node, protocol, problems)
    {
        service.unmatched = answer;
    }
    service.unmatched_page = page::page(section, "unmatched_page", protocol, problems);
    service.unavailable_page = page::page(section, "unavailable_page", protocol, problems);
    later_requests(section, protocol, problems);
    host::first_bytes_timeout(section, protocol, problems);
    let access = access_names(section, problems);
    idle_keys(section, protocol, problems);
    half_closed_timeout(section, &service.timeouts, problems);
    idle_timeout(section, &service, problems);
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
        says_unmatched: section.node("unmatched").is_some(),
        says_later_requests: section.node("later_requests").is_some(),
        source_span: section.key_span("source"),
        access,
        routes,
        service,
    }
}

/// Refuses `later_requests` where no requests are read.
fn later_requests(section: Section<'_>, protocol: Option<Protocol>, problems: &mut Problems) {
    if let (Some(node), Some(protocol)) = (section.node("later_requests"), protocol)
        && protocol != Protocol::Http
    {
        let message = format!(
            "a {} service reads no requests: `later_requests` is for HTTP",
            protocol_name(protocol)
        );
        problems.push(Diagnostic::error(&node.span(), message).help("leave it out"));
    }
}

/// The access lists that are named, each once.
fn access_names(section: Section<'_>, problems: &mut Problems) -> Vec<At<String>> {
    let Some(node) = section.node("access") else {
        if section.node("on_denied").is_some() {
            let message = "`on_denied` does nothing in this service: it has no access list";
            problems.push(
                Diagnostic::warning(&section.key_span("on_denied"), message)
                    .help("name a list under `access`, or leave `on_denied` out"),
            );
        }
        return Vec::new();
    };
    let texts = strings(node, "access", "\"office\"", problems);
    if texts.len() > ACCESS_LISTS_MAX {
        let message = format!("{} access lists, more than {ACCESS_LISTS_MAX}", texts.len());
        problems.push(Diagnostic::error(&node.span(), message).help("join some of the lists"));
    }
    let mut names: Vec<At<String>> = Vec::new();
    for text in texts.into_iter().take(ACCESS_LISTS_MAX) {
        if names.iter().any(|name| name.value == text.value) {
            let message = format!("access list {} is named twice", quoted(text.value));
            problems.push(Diagnostic::error(&text.span, message).help("name it once"));
            continue;
        }
        names.push(At::new(text.value.to_owned(), text.span));
    }
    names
}

/// The answer to clients without a route, as a service of this protocol can give it.
fn unmatched(node: Node<'_>, protocol: Protocol, problems: &mut Problems) -> Option<Unmatched> {
    if protocol == Protocol::Tcp {
        return None;
    }
    if protocol == Protocol::Tls {
        let words = [("alert", Unmatched::Alert), ("reset", Unmatched::Reset)];
        return word(node, "unmatched", &words, problems).map(|at| at.value);
    }
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
                Diagnostic::error(&node.span(), "`unmatched` is 404 or 421 in an HTTP service")
                    .help(
                        "write unmatched = 404 (Not Found) or unmatched = 421 (Misdirected \
                         Request)",
                    ),
            );
            None
        }
    }
}

/// The protocol; a word that elsewhere stands for HTTP over TLS leads to `tls`.
fn protocol(node: Node<'_>, problems: &mut Problems) -> Option<Protocol> {
    if let DeValue::String(text) = node.get_ref()
        && ["https", "ssl", "http+tls", "wss"].contains(&text.to_ascii_lowercase().as_str())
    {
        let message = format!("{} is no value of `protocol`", quoted(text));
        problems.push(Diagnostic::error(&node.span(), message).help(
            "did you mean \"tls\"? Nothing is decrypted: routes see the server name (`sni`) and \
             `alpn`, and the servers have the certificates",
        ));
        return None;
    }
    let words = [
        ("http", Protocol::Http),
        ("tls", Protocol::Tls),
        ("tcp", Protocol::Tcp),
    ];
    word(node, "protocol", &words, problems).map(|protocol| protocol.value)
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

/// Warns where clients that only pause would be reset.
fn half_closed_timeout(section: Section<'_>, timeouts: &Timeouts, problems: &mut Problems) {
    if timeouts.half_closed < PROBE_AFTER_MAX
        && let Some(node) = section.node("half_closed_timeout")
    {
        let message = "a client that has sent all and pauses in reading the answer is reset";
        problems.push(
            Diagnostic::warning(&node.span(), message)
                .help("a server asks it again within 2m only; write \"150s\" or more"),
        );
    }
}

/// Warns where connections that keep-alives hold open would be reset. HTTP clients and servers have
/// time-outs of their own for connections that are not in use, and open new ones.
fn idle_timeout(section: Section<'_>, service: &Service, problems: &mut Problems) {
    if service.protocol != Protocol::Http
        && service.timeouts.idle < KEEP_ALIVE
        && let Some(node) = section.node("idle_timeout")
    {
        let message = "healthy connections without traffic are reset before Linux's keep-alives \
                       have found out that they are";
        problems.push(Diagnostic::warning(&node.span(), message).help(
            "these begin after 7,200 s and give up after nine more times 75 s; write \"2h15m\" or \
             more",
        ));
    }
}

fn route(section: Section<'_>, protocol: Option<Protocol>, problems: &mut Problems) -> RouteDraft {
    let name = section
        .node("name")
        .and_then(|node| string(node, "name", "\"images\"", problems))
        .and_then(|text| names::name(&text, problems));
    let matchers = matchers(section, problems);
    let mut conditions = MATCHERS
        .iter()
        .filter(|one| section.node(one.key).is_some());
    let whole = conditions.all(|one| matchers.iter().any(|matcher| matcher.key == one.key));
    for matcher in &matchers {
        foreign(matcher, protocol, problems);
    }
    let mut route = Route::standard();
    read(&ROUTE_KEYS, section, &mut route, problems);
    let pool = host::target(section, &mut route, problems);
    route.sleep = host::sleep(section, protocol, &route, problems);
    route.cache = cache::cache(section, protocol, problems);
    http_alone(section, protocol, &route, problems);
    RouteDraft {
        span: section.span(),
        name,
        matchers,
        whole,
        pool,
        route,
    }
}

/// Refuses treatments of requests where no requests are read.
fn http_alone(
    section: Section<'_>,
    protocol: Option<Protocol>,
    route: &Route,
    problems: &mut Problems,
) {
    let why = match route.treatment {
        Treatment::OneShot => "one-shot is for HTTP: it rewrites the request head",
        Treatment::PerRequest => "per-request is for HTTP: it reads every request",
        Treatment::Splice | Treatment::Host => return,
    };
    if let (Some(node), Some(protocol)) = (section.node("treatment"), protocol)
        && protocol != Protocol::Http
    {
        problems.push(
            Diagnostic::error(&node.span(), why)
                .help("write treatment = \"splice\", or leave `treatment` out"),
        );
    }
}

/// Refuses a condition on something that a service of this protocol never reads.
fn foreign(matcher: &MatcherDraft, protocol: Option<Protocol>, problems: &mut Problems) {
    let needs = match matcher.reads {
        Reads::Ends => return,
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
