//! Runs a configuration without a network: simulates servers for its pools and a client with given
//! requests; each row shows which server answered and why.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::{Address, Endpoint, Instant};
use fairlead_datapath::{Event, Snapshot};
use fairlead_splice::config::{Config, Protocol, ProxyVersion};

use crate::app::{
    ClientApp, ClientPlan, Dialect, Expect, Finish, Manner, Reply, RequestPlan, ServerPlan,
    SocketPlan, Turn, client_hello, http_request,
};
use crate::host::HostPlan;
use crate::net::{LinkPlan, Quirks};
use crate::world::{Budget, Failure, Middle, World, WorldPlan};

/// One thing to ask, on a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoRequest {
    /// Where to ask: a listening endpoint of the configuration.
    pub listen: Endpoint,
    /// What to ask.
    pub ask: Ask,
}

/// The request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// HTTP requests.
    Http {
        /// `GET`, …
        method: String,
        /// The `Host` field; `None` leaves it out.
        host: Option<String>,
        /// Path and query of each request, one after the other on one connection.
        paths: Vec<String>,
        /// Further fields.
        fields: Vec<(String, String)>,
        /// Bytes of the body sent, if one is sent.
        body_bytes: Option<usize>,
        /// Bytes of the answer's body.
        reply_bytes: usize,
    },
    /// A TLS connection: its ClientHello. (There are no keys here; the server names itself in
    /// clear text where a ServerHello would be.)
    Tls {
        /// The requested server name.
        sni: Option<String>,
        /// The application protocols offered.
        alpn: Vec<String>,
    },
    /// A TCP connection without anything to read from it.
    Tcp,
}

/// An answer. One of `server`, `status` and `alert` at least is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The server that answered, by its own account; `None` when the switch did.
    pub server: Option<Endpoint>,
    /// The HTTP status.
    pub status: Option<u16>,
    /// The TLS alert with which the switch answered (RFC 8446, section 6).
    pub alert: Option<u8>,
    /// Bytes of the answer's body.
    pub body_bytes: usize,
}

/// A request and its outcome.
#[derive(Clone, Debug)]
pub struct DemoRow {
    /// The request.
    pub request: DemoRequest,
    /// The client's own endpoint.
    pub client: Endpoint,
    /// The client's endpoint as the server saw it.
    pub seen_as: Option<Endpoint>,
    /// The answers in their order; fewer than requests where the connection ended before.
    pub answers: Vec<Answer>,
    /// What the switch reported of this connection, in order: [`Event::Decided`] for each server
    /// tried, [`Event::Refused`], [`Event::Closed`].
    pub events: Vec<Event>,
    /// Virtual time from the client's SYN to the last byte that it received.
    pub took: Duration,
}

/// All rows, and the switch's counters at the end.
#[derive(Clone, Debug)]
pub struct DemoReport {
    /// One row a request, in their order.
    pub rows: Vec<DemoRow>,
    /// The switch's counters at the end.
    pub snapshot: Snapshot,
}

/// A configuration at work: ask one thing after the other.
pub struct Demo {
    world: World,
}

/// The client's addresses: from blocks set aside for documentation (RFC 5737, RFC 3849).
const CLIENT_V4: [u8; 4] = [203, 0, 113, 7];
const CLIENT_V6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
/// The first request comes when the servers have been probed.
const FIRST_REQUEST: Instant = Instant::from_millis(1_500);
const BETWEEN_REQUESTS: Duration = Duration::from_millis(100);

/// Runs `requests` one after the other against `config`, over links without faults.
///
/// # Errors
/// A configuration that the switch refuses, or a broken promise (a bug).
pub fn run(config: Config, requests: Vec<DemoRequest>, seed: u64) -> Result<DemoReport, Failure> {
    let mut demo = Demo::new(config, seed)?;
    let rows = requests
        .into_iter()
        .map(|request| demo.ask(request))
        .collect::<Result<_, _>>()?;
    Ok(DemoReport {
        rows,
        snapshot: demo.snapshot(),
    })
}

impl Demo {
    /// Servers for every pool of `config`, and a client.
    ///
    /// # Errors
    /// A configuration that the switch refuses.
    pub fn new(config: Config, seed: u64) -> Result<Self, Failure> {
        let mut hosts = vec![client_host()];
        hosts.extend(server_hosts(&config));
        let world = World::new(WorldPlan {
            seed,
            config,
            tcb_cache: None,
            hosts,
            middle: Middle::Switch,
            offload: false,
            grid: Duration::from_micros(1),
            calm_at: None,
            budget: Budget {
                until: Instant::from_millis(u64::MAX / 2_000_000),
                ..Budget::default()
            },
            printed: false,
            mutant: None,
            uptime: Duration::ZERO,
        })?;
        Ok(Self { world })
    }

    /// Asks, and waits until the connection is over.
    ///
    /// # Errors
    /// A broken promise (a bug).
    pub fn ask(&mut self, request: DemoRequest) -> Result<DemoRow, Failure> {
        let start = FIRST_REQUEST.max(self.world.now() + BETWEEN_REQUESTS);
        let token = self.world.seats.len() as u64 + 1;
        let number = self.world.add_client(0, client(&request, token, start));
        let events_before = self.world.events().len();
        self.world.run()?;
        Ok(row(&self.world, number, request, events_before))
    }

    /// Ends a server's process: its port is closed from now on.
    pub fn end_server(&mut self, server: Endpoint) {
        self.world.end_server(server);
    }

    /// The switch's counters.
    pub fn snapshot(&self) -> Snapshot {
        self.world.snapshot()
    }

    /// Everything that the switch reported so far.
    pub fn events(&self) -> &[Event] {
        self.world.events()
    }
}

fn host(name: String, addrs: Vec<Address>, servers: Vec<ServerPlan>) -> HostPlan {
    HostPlan {
        name,
        addrs,
        mtu: 1_500,
        link: LinkPlan::clean(Duration::from_micros(200)),
        quirks: Quirks::default(),
        timestamps: Some(0),
        servers,
    }
}

fn client_host() -> HostPlan {
    let addrs = vec![Address::v4(CLIENT_V4), Address::v6(CLIENT_V6)];
    host("client".to_owned(), addrs, Vec::new())
}

/// A host for every address that a pool names, with a server on every port.
fn server_hosts(config: &Config) -> Vec<HostPlan> {
    let mut servers: BTreeMap<Address, BTreeMap<u16, ServerPlan>> = BTreeMap::new();
    for service in &config.services {
        let dialect = match service.protocol {
            Protocol::Http => Dialect::Http,
            Protocol::Tls => Dialect::Tls,
            Protocol::Tcp => Dialect::Raw { greeting: false },
        };
        for route in &service.routes {
            let Some(pool) = route
                .pool
                .and_then(|pool| config.pools.get(usize::from(pool.0)))
            else {
                continue;
            };
            for server in &pool.servers {
                let plan = server_plan(server.endpoint, dialect, pool.proxy_protocol);
                let ports = servers.entry(server.endpoint.addr).or_default();
                ports.entry(server.endpoint.port).or_insert(plan);
            }
        }
    }
    let plan = |(addr, ports): (Address, BTreeMap<u16, ServerPlan>)| {
        host(addr.to_string(), vec![addr], ports.into_values().collect())
    };
    servers.into_iter().map(plan).collect()
}

fn server_plan(endpoint: Endpoint, dialect: Dialect, proxy: Option<ProxyVersion>) -> ServerPlan {
    ServerPlan {
        name: endpoint.to_string(),
        endpoint,
        dialect,
        proxy,
        manner: Manner::Willing,
        socket: SocketPlan::default(),
    }
}

fn client(request: &DemoRequest, token: u64, start: Instant) -> ClientPlan {
    let (dialect, turns) = match &request.ask {
        Ask::Http { .. } => (Dialect::Http, http_turns(&request.ask, token)),
        Ask::Tls { sni, alpn } => {
            let alpn: Vec<&str> = alpn.iter().map(String::as_str).collect();
            // A key share of today's browsers: the ClientHello needs two segments.
            let bytes = client_hello(token, sni.as_deref(), &alpn, 1_216, 16_384);
            (
                Dialect::Tls,
                vec![Turn {
                    bytes,
                    ..Turn::default()
                }],
            )
        }
        Ask::Tcp => {
            let bytes = token.to_be_bytes().to_vec();
            (
                Dialect::Raw { greeting: false },
                vec![Turn {
                    bytes,
                    ..Turn::default()
                }],
            )
        }
    };
    ClientPlan {
        start,
        after: None,
        target: request.listen,
        port: None,
        token,
        dialect,
        turns,
        first_bytes: 0,
        first_pace: None,
        pace: None,
        read_pace: None,
        finish: Finish::Close,
        patience: Duration::from_secs(30),
        expect: Expect::Anything,
        socket: SocketPlan::default(),
    }
}

fn http_turns(ask: &Ask, token: u64) -> Vec<Turn> {
    let Ask::Http {
        method,
        host,
        paths,
        fields,
        body_bytes,
        reply_bytes,
    } = ask
    else {
        return Vec::new();
    };
    let mut all: Vec<(&str, &str)> = host.iter().map(|host| ("Host", host.as_str())).collect();
    all.extend(
        fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    let turn = |(number, path): (usize, &String)| {
        let plan = RequestPlan {
            number,
            reply_bytes: *reply_bytes,
            head_only: method == "HEAD",
        };
        let bytes = http_request(method, path, &all, token, *body_bytes, false, &plan);
        Turn {
            bytes,
            replies_before: number,
            requests: vec![plan],
        }
    };
    paths.iter().enumerate().map(turn).collect()
}

fn row(world: &World, number: usize, request: DemoRequest, events_before: usize) -> DemoRow {
    let seat = &world.seats[number];
    let client = seat
        .role
        .map_or_else(Endpoint::default, |role| world.ledger.party(role).local);
    let server = seat.role.and_then(|role| world.ledger.peer(role));
    let of_client = |event: &&Event| match event {
        Event::Decided { client: of, .. }
        | Event::Given { client: of, .. }
        | Event::Refused { client: of, .. }
        | Event::Closed { client: of, .. } => *of == client,
        Event::Server { .. } | Event::Availability { .. } | Event::LaterRequest { .. } => false,
    };
    DemoRow {
        request,
        client,
        seen_as: server.map(|role| world.ledger.party(role).remote),
        answers: seat.app.as_ref().map_or_else(Vec::new, answers),
        events: world.events()[events_before..]
            .iter()
            .filter(of_client)
            .cloned()
            .collect(),
        took: seat.app.as_ref().map_or(Duration::ZERO, ClientApp::took),
    }
}

fn answers(app: &ClientApp) -> Vec<Answer> {
    let named = |name: &str| {
        name.parse::<core::net::SocketAddr>()
            .ok()
            .map(Endpoint::from)
    };
    if app.plan.dialect == Dialect::Http {
        let answer = |reply: &Reply| Answer {
            server: reply.server.as_deref().and_then(named),
            status: Some(reply.status),
            alert: None,
            body_bytes: reply.body_bytes,
        };
        return app.replies().iter().map(answer).collect();
    }
    let server = app.server().and_then(named);
    let alert = app.alert.as_ref().and_then(|record| record.last().copied());
    if server.is_none() && alert.is_none() {
        return Vec::new();
    }
    vec![Answer {
        server,
        alert,
        ..Answer::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_splice::config::{
        Limits, Matcher, NamePattern, Pool, PoolId, Route, Server, Service,
    };

    fn endpoint(text: &str) -> Endpoint {
        text.parse::<core::net::SocketAddr>().unwrap().into()
    }

    fn pool(name: &str, servers: &[&str]) -> Pool {
        let servers = servers.iter().map(|text| Server::new(endpoint(text)));
        Pool {
            connect_timeout: Duration::from_secs(1),
            ..Pool::new(name, servers.collect())
        }
    }

    fn service(name: &str, listen: &str, protocol: Protocol, routes: Vec<Route>) -> Service {
        Service {
            routes,
            ..Service::new(name, vec![endpoint(listen)], protocol)
        }
    }

    fn route(matchers: Vec<Matcher>, pool: u16) -> Route {
        Route::new(format!("#{pool}"), matchers, PoolId(pool))
    }

    fn get(host: &str, paths: &[&str]) -> DemoRequest {
        DemoRequest {
            listen: endpoint("10.1.0.3:80"),
            ask: Ask::Http {
                method: "GET".to_owned(),
                host: Some(host.to_owned()),
                paths: paths.iter().map(|&path| path.to_owned()).collect(),
                fields: Vec::new(),
                body_bytes: None,
                reply_bytes: 5_000,
            },
        }
    }

    fn config() -> Config {
        let suffix = Matcher::PathSuffix(vec![".jpg".to_owned()]);
        let name = |text: &str| NamePattern::Exact(text.to_owned());
        let web = vec![
            route(vec![suffix], 0),
            route(vec![Matcher::Host(vec![name("api.example.com")])], 1),
        ];
        let tls = vec![route(vec![Matcher::Sni(vec![name("a.example")])], 2)];
        let services = vec![
            service("web", "10.1.0.3:80", Protocol::Http, web),
            service("tls", "[fd00::3]:443", Protocol::Tls, tls),
        ];
        let pools = vec![
            pool("images", &["10.2.0.1:8081", "10.2.0.1:8082"]),
            pool("api", &["10.2.0.2:8083"]),
            pool("tls", &["[fd00::2:1]:8443"]),
        ];
        Config {
            snat: vec![Address::v4([100, 64, 0, 1]), endpoint("[fd00::64]:1").addr],
            limits: Limits {
                connections: 1_000,
                ..Limits::default()
            },
            ..Config::new(services, pools)
        }
    }

    #[test]
    fn rows_tell_who_answered_and_why() {
        let tls = |sni: &str| DemoRequest {
            listen: endpoint("[fd00::3]:443"),
            ask: Ask::Tls {
                sni: Some(sni.to_owned()),
                alpn: Vec::new(),
            },
        };
        let requests = vec![
            get("www.example.com", &["/a.jpg"]),
            get("www.example.com", &["/b.jpg", "/then"]),
            get("api.example.com", &["/v1"]),
            get("www.example.com", &["/"]),
            tls("a.example"),
            tls("b.example"),
        ];
        let report = run(config(), requests, 1).unwrap_or_else(|failure| panic!("{failure}"));
        let rows = &report.rows;
        let server = |row: &DemoRow| row.answers.first().and_then(|answer| answer.server);
        let images = [endpoint("10.2.0.1:8081"), endpoint("10.2.0.1:8082")];
        assert!(server(&rows[0]).is_some_and(|one| images.contains(&one)));
        assert!(server(&rows[1]).is_some_and(|one| images.contains(&one)));
        assert_ne!(server(&rows[0]), server(&rows[1]));
        assert_eq!(rows[1].answers.len(), 2);
        assert_eq!(rows[1].answers[0], rows[1].answers[1]);
        assert_eq!(rows[1].answers[0].body_bytes, 5_000);
        assert_eq!(server(&rows[2]), Some(endpoint("10.2.0.2:8083")));
        assert_eq!(
            rows[2].seen_as.map(|end| end.addr),
            Some(Address::v4([100, 64, 0, 1]))
        );
        assert_eq!(rows[3].answers[0].status, Some(404));
        assert_eq!(server(&rows[4]), Some(endpoint("[fd00::2:1]:8443")));
        assert_eq!(rows[5].answers[0].alert, Some(112));
        for row in rows {
            let right = row.events.iter().any(|event| match event {
                Event::Decided { server: chosen, .. } => server(row) == Some(*chosen),
                Event::Refused { .. } => server(row).is_none(),
                _ => false,
            });
            assert!(right, "{row:?}");
            assert!(
                row.took > Duration::ZERO && row.took < Duration::from_secs(1),
                "{row:?}"
            );
        }
        assert_eq!(report.snapshot.spliced, 4);
        let refused: u64 = report.snapshot.services.iter().map(|one| one.refused).sum();
        assert_eq!(refused, 2);
    }

    #[test]
    fn another_server_of_the_pool_answers_for_one_that_has_ended() {
        let mut demo = Demo::new(config(), 2).unwrap_or_else(|failure| panic!("{failure}"));
        demo.end_server(endpoint("10.2.0.1:8081"));
        for _ in 0..4 {
            let row = demo.ask(get("www.example.com", &["/a.jpg"])).unwrap();
            assert_eq!(row.answers[0].server, Some(endpoint("10.2.0.1:8082")));
        }
        demo.end_server(endpoint("10.2.0.1:8082"));
        let row = demo.ask(get("www.example.com", &["/a.jpg"])).unwrap();
        assert_eq!(
            (row.answers[0].server, row.answers[0].status),
            (None, Some(503))
        );
    }
}
