//! Drawing services, routes and pools, and the servers behind them. What a route leads to is known
//! by construction: requests are later made to fit a route, without matching anything here.

use core::time::Duration;
use std::sync::Arc;

use fairlead_base::{Address, Endpoint, Instant};
use fairlead_splice::backends::policy::every_balance;
use fairlead_splice::config::{
    Balance, Config, Limits, Matcher, NamePattern, PAGE_BYTES_MAX, Page, Pool, PoolId, Protocol,
    ProxyVersion, Route, Server, Service, Source, Timeouts, Treatment, Unmatched, ValuePattern,
};

use super::draw::{draw_pace, draw_server_socket, v6};
use crate::app::{Dialect, Manner, ServerPlan, page_body};
use crate::dice::Dice;
use crate::host::HostPlan;

/// What everything else is drawn on.
pub(super) struct Ground {
    /// True for IPv4.
    pub(super) families: Vec<bool>,
    /// How many of the hosts are clients; they come first.
    pub(super) clients: usize,
    pub(super) hosts: Vec<HostPlan>,
    pub(super) lossy: bool,
    pub(super) calm_at: Instant,
    pub(super) services: Vec<ServiceGround>,
}

/// A service as its clients know it.
#[derive(Clone, Debug)]
pub(super) struct ServiceGround {
    pub(super) listen: Endpoint,
    pub(super) dialect: Dialect,
    pub(super) source: Source,
    pub(super) head_bytes_max: u32,
    /// What is asked for, and who answers then.
    pub(super) doors: Vec<(Door, Party)>,
}

/// What a request must look like to take a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Suffix,
    Host,
    HostBelow,
    Field,
    Query,
    Cookie,
    Method,
    Sni,
    SniBelow,
    Alpn,
    /// Whatever no other route takes.
    Rest,
}

/// Who answers.
#[derive(Clone, Debug)]
pub(super) struct Party {
    /// Names of the servers that can; empty when none does.
    pub(super) names: Vec<String>,
    pub(super) one_shot: bool,
    /// The status when no route takes it.
    pub(super) unmatched: Option<u16>,
}

pub(super) fn draw_services(dice: &mut Dice, ground: &mut Ground) -> Config {
    let mut config = Config {
        limits: Limits {
            connections: 4_096,
            ..Limits::default()
        },
        details_bytes: 4_096,
        device_mss: dice.pick(&[1_460, 1_460, 8_960]),
        ..Config::new(Vec::new(), Vec::new())
    };
    let mut port = 8_000;
    for v4 in ground.families.clone() {
        for number in 0..dice.pick(&[1, 1, 2, 60u8]) {
            config.snat.push(if v4 {
                Address::v4([100, 64, 0, number])
            } else {
                v6(64, number)
            });
        }
        let mut kinds = vec![Dialect::Http];
        if dice.percent(60) {
            kinds.push(Dialect::Tls);
        }
        if dice.percent(50) {
            kinds.push(Dialect::Raw {
                greeting: dice.percent(40),
            });
        }
        if dice.percent(20) {
            kinds.remove(0);
        }
        if kinds.is_empty() {
            kinds.push(Dialect::Http);
        }
        for dialect in kinds {
            draw_service(dice, ground, &mut config, dialect, v4, &mut port);
        }
    }
    config
}

fn draw_service(
    dice: &mut Dice,
    ground: &mut Ground,
    config: &mut Config,
    dialect: Dialect,
    v4: bool,
    port: &mut u16,
) {
    let (protocol, listen_port, doors): (_, u16, &[Door]) = match dialect {
        Dialect::Http => (
            Protocol::Http,
            80,
            &[
                Door::Suffix,
                Door::Host,
                Door::HostBelow,
                Door::Field,
                Door::Query,
                Door::Cookie,
                Door::Method,
            ],
        ),
        Dialect::Tls => (Protocol::Tls, 443, &[Door::Sni, Door::SniBelow, Door::Alpn]),
        Dialect::Raw { .. } => (Protocol::Tcp, 7, &[]),
    };
    let addr = if v4 {
        Address::v4([10, 1, 0, 3])
    } else {
        v6(1, 3)
    };
    let listen = Endpoint {
        addr,
        port: listen_port,
    };
    let unmatched = dice.pick(&[Unmatched::NotFound, Unmatched::Misdirected]);
    let name = format!("{}{}", protocol_name(protocol), if v4 { 4 } else { 6 });
    let mut service = Service {
        source: dice.pick(&[Source::Snat, Source::Transparent]),
        unmatched,
        timeouts: Timeouts {
            head: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            time_wait: dice.millis(15_000, 60_000),
            ..Timeouts::default()
        },
        ..Service::new(name, vec![listen], protocol)
    };
    let mut known = ServiceGround {
        listen,
        dialect,
        source: service.source,
        head_bytes_max: service.head_bytes_max,
        doors: Vec::new(),
    };
    let mut chosen: Vec<Door> = doors.iter().copied().filter(|_| dice.percent(40)).collect();
    let default = doors.is_empty() || dice.percent(80);
    if default {
        chosen.push(Door::Rest);
    }
    for door in chosen {
        let pool = PoolId(config.pools.len() as u16);
        let names = draw_pool(dice, ground, config, dialect, v4, port);
        let one_shot = protocol == Protocol::Http && dice.percent(20);
        let servers = config.pools[usize::from(pool.0)].servers.len() as u8;
        let name = format!("#{}", service.routes.len() + 1);
        service.routes.push(Route {
            treatment: if one_shot {
                Treatment::OneShot
            } else {
                Treatment::Splice
            },
            retries: servers,
            ..Route::new(name, matchers(door), pool)
        });
        known.doors.push((
            door,
            Party {
                names,
                one_shot,
                unmatched: None,
            },
        ));
    }
    if !default {
        let status = if unmatched == Unmatched::NotFound {
            404
        } else {
            421
        };
        let nobody = Party {
            names: Vec::new(),
            one_shot: false,
            unmatched: Some(status),
        };
        known.doors.push((Door::Rest, nobody));
    }
    config.services.push(with_pages(service));
    ground.services.push(known);
}

fn with_pages(service: Service) -> Service {
    Service {
        unmatched_page: page_of(&service, 2),
        unavailable_page: page_of(&service, 3),
        ..service
    }
}

/// A page in place of the short text, or none. It follows from what is drawn already, so that a
/// seed stays the world that it was.
fn page_of(service: &Service, salt: usize) -> Option<Arc<Page>> {
    let drawn = service.timeouts.time_wait.as_millis() as usize / salt;
    let len = 100 + drawn % (PAGE_BYTES_MAX - 99);
    (!drawn.is_multiple_of(4)).then(|| {
        Arc::new(Page {
            path: format!("page-{len}"),
            content_type: "text/html",
            body: page_body(len),
        })
    })
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Tls => "tls",
        Protocol::Tcp => "tcp",
    }
}

fn matchers(door: Door) -> Vec<Matcher> {
    let exact = |text: &str| NamePattern::Exact(text.to_owned());
    let below = |text: &str| NamePattern::Suffix(text.to_owned());
    let value = |text: &str| ValuePattern::Exact(vec![text.to_owned()]);
    match door {
        Door::Suffix => vec![Matcher::PathSuffix(vec![".jpg".into(), ".png".into()])],
        Door::Host => vec![Matcher::Host(vec![exact("api.example.com")])],
        Door::HostBelow => vec![Matcher::Host(vec![below(".shop.example")])],
        Door::Field => vec![Matcher::Header("x-beta".into(), ValuePattern::Present)],
        Door::Query => vec![Matcher::Query("v".into(), value("two words"))],
        Door::Cookie => vec![Matcher::Cookie("group".into(), value("b"))],
        Door::Method => vec![Matcher::Method(vec!["PUT".into()])],
        Door::Sni => vec![Matcher::Sni(vec![exact("one.example")])],
        Door::SniBelow => vec![Matcher::Sni(vec![below(".two.example")])],
        Door::Alpn => vec![Matcher::Alpn(vec!["h2".into()])],
        Door::Rest => Vec::new(),
    }
}

/// A pool with its servers; returns the names of those that answer.
fn draw_pool(
    dice: &mut Dice,
    ground: &mut Ground,
    config: &mut Config,
    dialect: Dialect,
    v4: bool,
    port: &mut u16,
) -> Vec<String> {
    let proxy = dice.weighted(&[
        (70, None),
        (15, Some(ProxyVersion::V1)),
        (15, Some(ProxyVersion::V2)),
    ]);
    let mut pool = Pool {
        balance: draw_balance(dice),
        proxy_protocol: proxy,
        connect_timeout: dice.millis(300, 2_000),
        probe_interval: dice.millis(500, 20_000),
        ..Pool::new(format!("pool{}", config.pools.len()), Vec::new())
    };
    let hopeless = dice.percent(6);
    let count = dice.pick(&[1, 2, 2, 3]);
    let mut names = Vec::new();
    for number in 0..count {
        *port += 1;
        let host = dice.between(ground.clients as u32, ground.hosts.len() as u32 - 1) as usize;
        let addr = ground.hosts[host]
            .addrs
            .iter()
            .copied()
            .find(|addr| addr.is_v4() == v4);
        let endpoint = Endpoint {
            addr: addr.unwrap_or_default(),
            port: *port,
        };
        // The first is good, so that there is one, unless nothing is.
        let manner = if hopeless || (number > 0 && dice.percent(25)) {
            dice.pick(&[Manner::Refusing, Manner::Silent])
        } else {
            draw_manner(dice, dialect)
        };
        let name = format!("s{port}");
        if !matches!(manner, Manner::Refusing | Manner::Silent) {
            names.push(name.clone());
        }
        pool.servers.push(Server {
            weight: dice.between(1, 4) as u16,
            ..Server::new(endpoint)
        });
        ground.hosts[host].servers.push(ServerPlan {
            name,
            endpoint,
            dialect,
            proxy,
            manner,
            socket: draw_server_socket(dice),
        });
    }
    config.pools.push(pool);
    names
}

fn draw_balance(dice: &mut Dice) -> Balance {
    dice.pick(&every_balance("x-beta", "group"))
}

fn draw_manner(dice: &mut Dice, dialect: Dialect) -> Manner {
    let bytes = dice.between(1, 40_000) as usize;
    let pace = draw_pace(dice);
    // A greeting is said before anybody knows to whom.
    let abort = if matches!(dialect, Dialect::Raw { greeting: true }) {
        0
    } else {
        4
    };
    dice.weighted(&[
        (84, Manner::Willing),
        (abort, Manner::CloseAfter(bytes)),
        (abort, Manner::AbortAfter(bytes)),
        (6, Manner::Slow(pace)),
    ])
}
