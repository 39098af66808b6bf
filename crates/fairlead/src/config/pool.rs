//! `[[pool]]` and its servers.

use core::time::Duration;

use fairlead_splice::config::{Balance, HashOn, ProxyVersion, Server};

use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::names;
use super::quantity::{duration, endpoint};
use super::schema::SERVER;
use super::section::{Section, integer, nearest, quoted, string, word};

/// A pool as far as it could be read.
#[derive(Debug)]
pub(super) struct PoolDraft {
    pub(super) name: Option<At<String>>,
    pub(super) balance: Balance,
    /// The place of `hash`, or of `balance`.
    pub(super) hash_span: Span,
    pub(super) servers: Vec<At<Server>>,
    pub(super) proxy_protocol: Option<ProxyVersion>,
    pub(super) connect_timeout: Duration,
}

/// How long a server is given to answer a SYN: long enough for one retransmission (RFC 6298).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const SERVERS_MAX: usize = 1_024;

/// The ways to choose, before it is known what to hash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    RoundRobin,
    Weighted,
    LeastConnections,
    RandomTwo,
    Maglev,
}

const WAYS: [(&str, Way); 5] = [
    ("round-robin", Way::RoundRobin),
    ("weighted", Way::Weighted),
    ("least-connections", Way::LeastConnections),
    ("random-two", Way::RandomTwo),
    ("maglev", Way::Maglev),
];

pub(super) fn pool(section: Section<'_>, problems: &mut Problems) -> PoolDraft {
    let name = section
        .require("name", "name = \"pages\"", problems)
        .and_then(|node| string(node, "name", "\"pages\"", problems))
        .and_then(|text| names::name(&text, problems));
    let proxy_protocol = section
        .node("proxy_protocol")
        .and_then(|node| {
            let words = [("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)];
            word(node, "proxy_protocol", &words, problems)
        })
        .map(|version| version.value);
    let bounds = (Duration::from_millis(10), Duration::from_secs(60));
    let connect_timeout = section
        .node("connect_timeout")
        .and_then(|node| duration(node, "connect_timeout", bounds, problems))
        .unwrap_or(CONNECT_TIMEOUT);
    let (balance, hash_span) = balance(section, problems);
    let servers = servers(section, problems);
    PoolDraft {
        name,
        balance,
        hash_span,
        servers,
        proxy_protocol,
        connect_timeout,
    }
}

fn balance(section: Section<'_>, problems: &mut Problems) -> (Balance, Span) {
    let way = match section.node("balance") {
        Some(node) => word(node, "balance", &WAYS, problems).map(|way| way.value),
        None => Some(Way::RoundRobin),
    };
    let hash = section.node("hash").and_then(|node| {
        let text = string(node, "hash", "\"client-address\"", problems)?;
        hash_on(&text, problems)
    });
    if let (Some(_), Some(way)) = (section.node("hash"), way)
        && way != Way::Maglev
    {
        problems.push(
            Diagnostic::error(&section.key_span("hash"), "only maglev hashes")
                .help("write balance = \"maglev\", or leave `hash` out"),
        );
    }
    let balance = match way {
        Some(Way::Maglev) => Balance::Maglev(hash.unwrap_or(HashOn::ClientAddress)),
        Some(Way::Weighted) => Balance::Weighted,
        Some(Way::LeastConnections) => Balance::LeastConnections,
        Some(Way::RandomTwo) => Balance::RandomTwo,
        Some(Way::RoundRobin) | None => Balance::RoundRobin,
    };
    (balance, section.key_span("hash"))
}

fn hash_on(text: &At<&str>, problems: &mut Problems) -> Option<HashOn> {
    let (kind, name) = match text.value.split_once(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (text.value, None),
    };
    let help = match (kind, name) {
        ("client-address", None) => return Some(HashOn::ClientAddress),
        ("header", Some(name)) if names::is_token(name) => {
            return Some(HashOn::Header(name.to_ascii_lowercase()));
        }
        ("cookie", Some(name)) if names::is_token(name) => {
            return Some(HashOn::Cookie(name.to_owned()));
        }
        ("header" | "cookie", _) => format!("name it: hash = \"{kind}:name\""),
        ("client-address", Some(_)) => "write hash = \"client-address\"".to_owned(),
        _ => match nearest(kind, ["client-address", "header", "cookie"].into_iter()) {
            Some("client-address") => "did you mean \"client-address\"?".to_owned(),
            Some(near) => format!("did you mean \"{near}:{}\"?", name.unwrap_or("name")),
            None => "write \"client-address\", \"header:NAME\" or \"cookie:NAME\"".to_owned(),
        },
    };
    let message = format!("{} is nothing to hash", quoted(text.value));
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

fn servers(section: Section<'_>, problems: &mut Problems) -> Vec<At<Server>> {
    let example = "server = [{ address = \"10.2.0.1:8081\" }]";
    if section.require("server", example, problems).is_none() {
        return Vec::new();
    }
    let mut servers: Vec<At<Server>> = Vec::new();
    // False when a server could not be read; then nothing is said about what is left.
    let mut whole = true;
    let before = section
        .node("server")
        .and_then(|node| node.get_ref().as_array());
    let tables = section.tables("server", &SERVER, SERVERS_MAX, problems);
    match before {
        Some(array) if array.is_empty() => {
            problems.push(
                Diagnostic::error(&section.key_span("server"), "a pool without servers")
                    .help(format!("write {example}")),
            );
            whole = false;
        }
        Some(array) => whole &= array.len() == tables.len(),
        None => whole = false,
    }
    for table in tables {
        let weight = match table.node("weight") {
            Some(node) => integer(node, "weight", 0..=1_000, problems),
            None => Some(1),
        };
        let address = table
            .require("address", "address = \"10.2.0.1:8081\"", problems)
            .and_then(|node| string(node, "address", "\"10.2.0.1:8081\"", problems));
        let place = address.as_ref().map(|text| text.span.clone());
        let endpoint = address.and_then(|text| endpoint(&text, "address", problems));
        let (Some(weight), Some(endpoint), Some(span)) = (weight, endpoint, place) else {
            whole = false;
            continue;
        };
        if let Some(twin) = servers.iter().find(|twin| twin.value.endpoint == endpoint) {
            problems.push(
                Diagnostic::error(&span, format!("{endpoint} is in this pool twice"))
                    .related(&twin.span, "the other one")
                    .help("write it once, with a larger weight"),
            );
            continue;
        }
        servers.push(At::new(
            Server {
                endpoint,
                weight: weight as u16,
            },
            span,
        ));
    }
    if whole && servers.iter().all(|server| server.value.weight == 0) {
        problems.push(
            Diagnostic::error(&section.key_span("server"), "every server has weight 0")
                .help("give at least one server a weight of 1 or more"),
        );
    }
    servers
}
