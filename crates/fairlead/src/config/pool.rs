//! `[[pool]]` and its servers.

use core::time::Duration;

use fairlead_splice::backends::policy::{REGISTRY, registered};
use fairlead_splice::config::{AllDown, Balance, HashOn, Pool, ProxyVersion, Server};

use super::check::{CHECK_KEYS, OUTLIER_KEYS, check, outlier};
use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::keys::{Key, Standard, Value, read, shown};
use super::names;
use super::quantity::endpoint;
use super::schema::{CHECK, OUTLIER, SERVER};
use super::section::{Section, boolean, integer, nearest, quoted, string, word};

/// A pool as far as it could be read.
#[derive(Debug)]
pub(super) struct PoolDraft {
    pub(super) name: Option<At<String>>,
    /// The place of `hash`, or of `balance`.
    pub(super) hash_span: Span,
    /// Its servers with their places.
    pub(super) servers: Vec<At<Server>>,
    /// All of it.
    pub(super) pool: Pool,
}

const SERVERS_MAX: usize = 1_024;

impl Standard for Pool {
    fn standard() -> Self {
        Self::new("", Vec::new())
    }
}

/// The keys of `[[pool]]`.
pub(crate) const KEYS: [Key<Pool>; 11] = [
    Key::special(
        "name",
        "required",
        |pool| pool.name.clone(),
        "its name, for routes",
    ),
    Key::special(
        "balance",
        "`\"round-robin\"`",
        |pool| registered(&pool.balance).name.to_owned(),
        "how a server is chosen (see below)",
    ),
    Key::special(
        "hash",
        "`\"client-address\"`",
        |pool| match pool.balance.hash_on() {
            None => String::new(),
            Some(HashOn::ClientAddress) => "client-address".to_owned(),
            Some(HashOn::Header(name)) => format!("header:{name}"),
            Some(HashOn::Cookie(name)) => format!("cookie:{name}"),
        },
        "what `maglev` hashes: `client-address` (without the port), `header:NAME` or \
         `cookie:NAME`; the last two for HTTP, with the address of the client as fallback",
    ),
    Key::new(
        "proxy_protocol",
        Value::Word {
            words: || vec!["v1", "v2"],
            get: |pool| match pool.proxy_protocol {
                None => "",
                Some(ProxyVersion::V1) => "v1",
                Some(ProxyVersion::V2) => "v2",
            },
            set: |pool, at| pool.proxy_protocol = Some([ProxyVersion::V1, ProxyVersion::V2][at]),
        },
        "`v1` or `v2`: send a PROXY protocol header before the first byte of the client",
    ),
    Key::new(
        "connect_timeout",
        Value::Duration {
            from: Duration::from_millis(10),
            to: Duration::from_secs(60),
            get: |pool| pool.connect_timeout,
            set: |pool, after| pool.connect_timeout = after,
        },
        "how long a server may take to answer a SYN before another is tried; `\"10ms\"` to \
         `\"1m\"`",
    ),
    Key::<Pool>::new(
        "probe_interval",
        Value::Duration {
            from: Duration::from_secs(1),
            to: Duration::from_secs(3_600),
            get: |pool| pool.probe_interval,
            set: |pool, every| pool.probe_interval = every,
        },
        "how often its servers are probed (see [Probes and health](#probes-and-health)); \
         `\"1s\"` to `\"1h\"`",
    )
    .renamed_from("instance", "probe_interval"),
    Key::special(
        "server",
        "required",
        |_| String::new(),
        "its servers: `address`, `weight` from 0 to 1000 (default 1; 0 takes no connections), \
         `backup = true` for one that serves while no other is available, `check = false` for one \
         without health checks",
    ),
    Key::special(
        "check",
        "none",
        |pool| {
            pool.check
                .as_ref()
                .map_or_else(String::new, |one| shown(&CHECK_KEYS, one))
        },
        "how its servers are checked (see [Health checks](#health-checks))",
    ),
    Key::special(
        "outlier",
        "none",
        |pool| {
            pool.outlier
                .as_ref()
                .map_or_else(String::new, |one| shown(&OUTLIER_KEYS, one))
        },
        "when a server that takes no connections is left out for a while (see [Health \
         checks](#health-checks))",
    ),
    Key::new(
        "slow_start",
        Value::Duration {
            from: Duration::ZERO,
            to: Duration::from_secs(3_600),
            get: |pool| pool.slow_start,
            set: |pool, time| pool.slow_start = time,
        },
        "how long a server that becomes available takes to get its whole share, in eight steps; \
         `\"0s\"` (at once) to `\"1h\"`",
    ),
    Key::new(
        "all_down",
        Value::Word {
            words: || vec!["try", "refuse"],
            get: |pool| match pool.all_down {
                AllDown::Try => "try",
                AllDown::Refuse => "refuse",
            },
            set: |pool, at| pool.all_down = [AllDown::Try, AllDown::Refuse][at],
        },
        "while no server is available: `try` one that is down, or `refuse` clients",
    ),
];

pub(super) fn pool(section: Section<'_>, problems: &mut Problems) -> PoolDraft {
    let mut pool = Pool::standard();
    let name = section
        .require("name", "name = \"pages\"", problems)
        .and_then(|node| string(node, "name", "\"pages\"", problems))
        .and_then(|text| names::name(&text, problems));
    read(&KEYS, section, &mut pool, problems);
    let (balance, hash_span) = balance(section, problems);
    pool.balance = balance;
    let servers = servers(section, problems);
    let table = section.table("check", &CHECK, problems);
    pool.check = table.and_then(|table| check(table, problems));
    let table = section.table("outlier", &OUTLIER, problems);
    pool.outlier = table.map(|table| outlier(table, problems));
    pool.name = name
        .as_ref()
        .map_or_else(String::new, |name| name.value.clone());
    pool.servers = servers.iter().map(|server| server.value).collect();
    PoolDraft {
        name,
        hash_span,
        servers,
        pool,
    }
}

fn balance(section: Section<'_>, problems: &mut Problems) -> (Balance, Span) {
    let words = REGISTRY.map(|policy| (policy.name, policy));
    let policy = match section.node("balance") {
        Some(node) => word(node, "balance", &words, problems).map(|policy| policy.value),
        None => Some(registered(&Balance::RoundRobin)),
    };
    let hash = section.node("hash").and_then(|node| {
        let text = string(node, "hash", "\"client-address\"", problems)?;
        hash_on(&text, problems)
    });
    let hash = hash.unwrap_or(HashOn::ClientAddress);
    let balance = policy.map_or(Balance::RoundRobin, |policy| (policy.balance)(hash));
    if section.node("hash").is_some() && policy.is_some() && balance.hash_on().is_none() {
        problems.push(
            Diagnostic::error(&section.key_span("hash"), "only maglev hashes")
                .help("write balance = \"maglev\", or leave `hash` out"),
        );
    }
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
    let message = format!("{} cannot be hashed", quoted(text.value));
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

fn servers(section: Section<'_>, problems: &mut Problems) -> Vec<At<Server>> {
    let example = "server = [{ address = \"10.2.0.1:8081\" }]";
    if section.require("server", example, problems).is_none() {
        return Vec::new();
    }
    let mut servers: Vec<At<Server>> = Vec::new();
    let listed = section
        .node("server")
        .and_then(|node| node.get_ref().as_array());
    let tables = section.tables("server", &SERVER, SERVERS_MAX, problems);
    if listed.is_some_and(|array| array.is_empty()) {
        problems.push(
            Diagnostic::error(&section.key_span("server"), "a pool without servers")
                .help(format!("write {example}")),
        );
    }
    for table in tables {
        let weight = match table.node("weight") {
            Some(node) => integer(node, "weight", 0..=1_000, problems),
            None => Some(1),
        };
        let mut flag = |key, without| match table.node(key) {
            Some(node) => boolean(node, key, problems),
            None => Some(without),
        };
        let (backup, check) = (flag("backup", false), flag("check", true));
        let address = table
            .require("address", "address = \"10.2.0.1:8081\"", problems)
            .and_then(|node| string(node, "address", "\"10.2.0.1:8081\"", problems));
        let place = address.as_ref().map(|text| text.span.clone());
        let endpoint = address.and_then(|text| endpoint(&text, "address", problems));
        let (Some(weight), Some(endpoint), Some(span)) = (weight, endpoint, place) else {
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
                backup: backup.unwrap_or_default(),
                check: check.unwrap_or_default(),
            },
            span,
        ));
    }
    servers
}
