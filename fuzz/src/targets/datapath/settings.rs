//! The switch that is fuzzed: small enough that every limit is reached by a short script.

use core::time::Duration;
use std::sync::{Arc, OnceLock};

use fairlead_base::Endpoint;
use fairlead_splice::backends::policy::every_balance;
use fairlead_splice::config::{
    Config, Limits, Matcher, NamePattern, PAGE_BYTES_MAX, Page, Pool, PoolId, Protocol,
    ProxyVersion, Route, Server, Service, Source, Timeouts, Treatment, Unmatched, ValuePattern,
};
use fairlead_testkit::endpoint;

/// The limits, which the oracle holds the switch to.
pub(super) const LIMITS: Limits = Limits {
    connections: 12,
    setups: 6,
    half_read: 4,
    half_read_per_client: 2,
    silent_clients: 2,
    sleepers: 2,
    front_per_client: 1,
    buffered_bytes: 48 << 10,
};

/// The listening endpoints that clients try, those of one service next to each other.
pub(super) const LISTENS: [&str; 7] = [
    "10.1.0.3:80",
    "10.1.0.3:81",
    "10.1.0.4:81",
    "10.1.0.3:443",
    "10.1.0.3:9000",
    "[2001:db8:1::3]:80",
    "[2001:db8:1::3]:9000",
];

/// Source addresses.
pub(super) const SNAT: [&str; 3] = ["100.64.0.1:0", "100.64.0.2:0", "[2001:db8:64::1]:0"];

fn listen(at: usize) -> Endpoint {
    endpoint(LISTENS[at])
}

/// The configuration, of which the seed chooses how pools balance; made once, for its expressions
/// take long to compile.
pub(super) fn config(seed: u64) -> Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let made = CONFIG.get_or_init(|| Config {
        snat: SNAT.iter().map(|text| endpoint(text).addr).collect(),
        limits: LIMITS,
        ..Config::new(with_pages(services()), pools())
    });
    let mut config = made.clone();
    let balances = every_balance("x-a", "sid");
    for (at, pool) in config.pools.iter_mut().enumerate() {
        pool.balance = balances[(seed as usize + at) % balances.len()].clone();
    }
    config
}

fn service(name: &str, listen: Vec<Endpoint>, protocol: Protocol, source: Source) -> Service {
    Service {
        source,
        timeouts: Timeouts {
            head: Duration::from_secs(2),
            first_bytes: None,
            sleep: Duration::from_secs(10),
            wake: Duration::from_secs(1),
            idle: Duration::from_secs(30),
            lifetime: Some(Duration::from_secs(20)),
            half_closed: Duration::from_secs(5),
            time_wait: Duration::from_secs(4),
        },
        head_bytes_max: 2_048,
        ..Service::new(name, listen, protocol)
    }
}

fn route(matchers: Vec<Matcher>, pool: u16, treatment: Treatment) -> Route {
    Route {
        treatment,
        retries: 1,
        ..Route::new(format!("to-{pool}"), matchers, PoolId(pool))
    }
}

fn with_pages(mut services: Vec<Service>) -> Vec<Service> {
    for service in &mut services {
        if service.unmatched == Unmatched::Misdirected {
            service.unmatched_page = Some(page(5_000));
            service.unavailable_page = Some(page(PAGE_BYTES_MAX));
        }
    }
    services
}

fn page(len: usize) -> Arc<Page> {
    Arc::new(Page {
        path: "/page".to_owned(),
        content_type: "text/html",
        body: vec![b'a'; len],
    })
}

fn services() -> Vec<Service> {
    let regex = |text: &str| regex::Regex::new(text).expect("an expression");
    let splice = Treatment::Splice;
    let mut plain = service("plain", vec![listen(0)], Protocol::Http, Source::Snat);
    plain.routes = vec![
        route(vec![Matcher::PathSuffix(vec![".jpg".into()])], 1, splice),
        route(
            vec![
                Matcher::Host(vec![NamePattern::Suffix(".example.com".into())]),
                Matcher::Method(vec!["GET".into()]),
            ],
            2,
            Treatment::OneShot,
        ),
        route(
            vec![Matcher::PathRegex(vec![regex("^/[0-9]+$")])],
            1,
            splice,
        ),
        route(
            vec![Matcher::Query("a".into(), ValuePattern::Present)],
            0,
            splice,
        ),
        route(
            vec![
                Matcher::Cookie("sid".into(), ValuePattern::Regex(regex("^x"))),
                Matcher::Header("x-a".into(), ValuePattern::Exact(vec!["b".into()])),
            ],
            2,
            splice,
        ),
        route(vec![], 0, splice),
    ];
    let ends = vec![listen(1), listen(2)];
    let mut once = service("once", ends, Protocol::Http, Source::Transparent);
    once.routes = vec![
        route(vec![Matcher::Listen(vec![listen(2)])], 1, splice),
        route(
            vec![Matcher::PathPrefix(vec!["/".into()])],
            0,
            Treatment::OneShot,
        ),
    ];
    let mut tls = service("tls", vec![listen(3)], Protocol::Tls, Source::Snat);
    tls.head_bytes_max = 4_096;
    tls.routes = vec![
        route(
            vec![Matcher::Sni(vec![NamePattern::Exact("a.example".into())])],
            2,
            splice,
        ),
        route(vec![Matcher::Alpn(vec!["h2".into()])], 0, splice),
    ];
    let mut raw = service("raw", vec![listen(4)], Protocol::Tcp, Source::Transparent);
    raw.routes = vec![route(vec![], 0, splice)];
    let mut six = service("six", vec![listen(5)], Protocol::Http, Source::Snat);
    six.unmatched = Unmatched::Misdirected;
    six.routes = vec![
        route(
            vec![Matcher::Host(vec![NamePattern::Exact("a.example".into())])],
            3,
            Treatment::OneShot,
        ),
        route(vec![Matcher::Path(vec!["/".into()])], 4, splice),
    ];
    let mut raw_six = service("raw-six", vec![listen(6)], Protocol::Tcp, Source::Snat);
    raw_six.routes = vec![route(vec![], 4, splice)];
    vec![plain, once, tls, raw, six, raw_six]
}

fn pools() -> Vec<Pool> {
    let pool = |name: &str, servers: &[(&str, u16)], proxy_protocol| {
        let servers = servers.iter().map(|(text, weight)| Server {
            weight: *weight,
            ..Server::new(endpoint(text))
        });
        Pool {
            proxy_protocol,
            connect_timeout: Duration::from_secs(1),
            ..Pool::new(name, servers.collect())
        }
    };
    vec![
        pool(
            "two",
            &[
                ("10.2.0.1:8081", 1),
                ("10.2.0.2:8082", 2),
                ("10.2.0.9:8089", 0),
            ],
            None,
        ),
        pool(
            "text",
            &[("10.2.0.3:8083", 1), ("10.2.0.4:8084", 1)],
            Some(ProxyVersion::V1),
        ),
        pool("binary", &[("10.2.0.5:8085", 1)], Some(ProxyVersion::V2)),
        pool("six", &[("[2001:db8:2::1]:8086", 3)], None),
        pool(
            "six-text",
            &[("[2001:db8:2::2]:8087", 1), ("[2001:db8:2::3]:8088", 1)],
            Some(ProxyVersion::V1),
        ),
    ]
}
