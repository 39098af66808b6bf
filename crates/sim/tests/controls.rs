//! Controls: the world without a switch keeps every promise, and a switch that breaks one is
//! caught.

use std::time::Duration;

use fairlead_base::{Address, Endpoint, Instant};
use fairlead_datapath::config::{Config, Limits};
use fairlead_sim::{
    Budget, ClientPlan, Dialect, Expect, Faults, Finish, HostPlan, LinkPlan, Manner, Middle,
    Mutant, Quirks, RequestPlan, Scenario, ServerPlan, SocketPlan, Turn, World, WorldPlan,
    client_hello, http_request, run_scenario,
};

const CLIENT: [u8; 4] = [10, 7, 0, 1];
const SERVER: [u8; 4] = [10, 2, 0, 1];
const CALM_AT: Instant = Instant::from_millis(8_000);

fn faults(per_million: u32) -> Faults {
    Faults {
        loss_ppm: per_million,
        duplicate_ppm: per_million,
        reorder_ppm: per_million,
        corrupt_ppm: per_million,
        delay: Duration::from_millis(5),
        jitter: Duration::from_millis(2),
    }
}

fn host(name: &str, addr: [u8; 4], per_million: u32, servers: Vec<ServerPlan>) -> HostPlan {
    let faults = faults(per_million);
    HostPlan {
        name: name.to_owned(),
        addrs: vec![Address::v4(addr)],
        mtu: 1_500,
        link: LinkPlan {
            up: faults,
            down: faults,
            mtu_up: usize::MAX,
            mtu_down: 1_300,
        },
        quirks: Quirks {
            isn_before_wrap: Some(20_000),
            paws: true,
            ..Quirks::default()
        },
        timestamps: Some(7),
        servers,
    }
}

fn end(addr: [u8; 4], port: u16) -> Endpoint {
    Endpoint {
        addr: Address::v4(addr),
        port,
    }
}

fn server(port: u16, dialect: Dialect) -> ServerPlan {
    ServerPlan {
        name: format!("s{port}"),
        endpoint: end(SERVER, port),
        dialect,
        proxy: None,
        manner: Manner::Willing,
        socket: SocketPlan::default(),
    }
}

fn client(token: u64, port: u16, dialect: Dialect, turns: Vec<Turn>) -> ClientPlan {
    ClientPlan {
        start: Instant::from_millis(1_000 + token * 10),
        after: None,
        target: end(SERVER, port),
        port: None,
        token,
        dialect,
        turns,
        first_bytes: 0,
        first_pace: None,
        pace: None,
        read_pace: None,
        finish: if token.is_multiple_of(2) {
            Finish::Close
        } else {
            Finish::HalfClose
        },
        patience: Duration::from_secs(600),
        expect: Expect::Anything,
        socket: SocketPlan::default(),
    }
}

fn http_turns(token: u64) -> Vec<Turn> {
    let turn = |number: usize| {
        let plan = RequestPlan {
            number,
            reply_bytes: 40_000,
            head_only: false,
        };
        let fields = [("Host", "a.example")];
        let bytes = http_request(
            "POST",
            "/x",
            &fields,
            token,
            Some(30_000),
            number == 1,
            &plan,
        );
        Turn {
            bytes,
            replies_before: number,
            requests: vec![plan],
        }
    };
    (0..3).map(turn).collect()
}

fn wire_world(seed: u64, per_million: u32) -> World {
    let dialects = [
        (80, Dialect::Http),
        (443, Dialect::Tls),
        (7, Dialect::Raw { greeting: false }),
        (8, Dialect::Raw { greeting: true }),
    ];
    let servers = dialects
        .iter()
        .map(|&(port, dialect)| server(port, dialect))
        .collect();
    let config = Config {
        limits: Limits {
            connections: 16,
            ..Limits::default()
        },
        ..Config::new(Vec::new(), Vec::new())
    };
    let mut world = World::new(WorldPlan {
        seed,
        config,
        tcb_cache: None,
        hosts: vec![
            host("client", CLIENT, per_million, Vec::new()),
            host("server", SERVER, per_million, servers),
        ],
        middle: Middle::Wire,
        offload: false,
        grid: Duration::from_micros(50),
        calm_at: Some(CALM_AT),
        budget: Budget {
            until: Instant::from_millis(600_000),
            ..Budget::default()
        },
        printed: false,
        mutant: None,
        uptime: Duration::ZERO,
    })
    .unwrap();
    for token in 1..=8 {
        let (port, dialect) = dialects[token as usize % dialects.len()];
        let turns = match dialect {
            Dialect::Http => http_turns(token),
            Dialect::Tls => {
                let bytes = client_hello(token, Some("a.example"), &["h2"], 1_216, 700);
                vec![Turn {
                    bytes,
                    ..Turn::default()
                }]
            }
            Dialect::Raw { greeting } => {
                let bytes = token.to_be_bytes().to_vec();
                let first = Turn {
                    bytes,
                    replies_before: usize::from(greeting),
                    requests: Vec::new(),
                };
                let more = Turn {
                    bytes: vec![9; 70_000],
                    ..first.clone()
                };
                vec![first, more]
            }
        };
        world.add_client(0, client(token, port, dialect, turns));
    }
    world
}

#[test]
fn hosts_links_and_oracles_agree_when_nothing_stands_between() {
    for seed in 0..12 {
        let per_million = [0, 10_000, 50_000][seed as usize % 3];
        let mut world = wire_world(seed, per_million);
        world.run().unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(world.served(), 8, "seed {seed}");
    }
}

#[test]
fn a_world_that_cannot_end_is_a_failure_and_not_a_hang() {
    let mut world = wire_world(1, 0);
    let dialect = Dialect::Http;
    // Nobody listens where this client's reply would come from: it waits for more than was asked.
    let mut turns = http_turns(99);
    turns[2].replies_before = 7;
    world.add_client(0, client(99, 80, dialect, turns));
    let failure = world.run().expect_err("an end that cannot be");
    assert!(failure.what.contains("time was over"), "{failure}");
}

/// Seeds for each mutant; one that is caught costs little, for it is caught at once.
const SEEDS: u64 = 16;

#[test]
fn every_mutant_of_the_switch_is_caught() {
    let mut escaped = Vec::new();
    for mutant in Mutant::ALL {
        let caught = (0..SEEDS)
            .filter(|&seed| {
                let mut scenario = Scenario::draw(seed);
                scenario.world.mutant = Some(mutant);
                scenario.world.budget.until = CALM_AT + Duration::from_secs(60);
                run_scenario(&scenario).is_err()
            })
            .count();
        // Some need what not every scenario has: timestamps, losses with SACK, wide windows.
        if caught < 4 {
            escaped.push((mutant, caught));
        }
        eprintln!("{mutant:?}: caught in {caught} of {SEEDS}");
    }
    assert!(
        escaped.is_empty(),
        "mutants that were not caught: {escaped:?}"
    );
}
