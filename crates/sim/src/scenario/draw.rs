//! Drawing a scenario: first the ground (families, links, stacks), then services on it, then who
//! comes and what they do.

use core::time::Duration;

use fairlead_base::{Address, Instant};
use fairlead_datapath::Admin;
use fairlead_splice::config::{Check, Config, LaterRequests, Limits, Outlier};

use super::Scenario;
use super::clients::draw_clients;
use super::services::{Ground, draw_services};
use crate::app::{Expect, Finish, Pace, SocketPlan};
use crate::dice::Dice;
use crate::host::HostPlan;
use crate::net::{Faults, LinkPlan, Quirks};
use crate::order::{Order, ServerChange};
use crate::world::{Budget, Middle, WorldPlan};

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "ground");
        let families = dice.weighted(&[(5, vec![true]), (3, vec![false]), (2, vec![true, false])]);
        let mut hosts = Vec::new();
        let clients = dice.between(1, 3) as u8;
        let servers = dice.between(1, 2) as u8;
        let calm_links = dice.percent(30);
        for (role, count) in [("client", clients), ("server", servers)] {
            for number in 0..count {
                let host = draw_host(&mut dice, role, number, &families, calm_links);
                hosts.push(host);
            }
        }
        let calm_at = Instant::from_millis(u64::from(dice.between(4_000, 12_000)));
        let lossy = hosts.iter().any(|host| {
            let link = host.link;
            link.up.lossy() || link.down.lossy() || link.mtu_up.min(link.mtu_down) < 65_536
        });
        let mut ground = Ground {
            families,
            clients: usize::from(clients),
            hosts,
            lossy,
            calm_at,
            services: Vec::new(),
        };
        let mut config = draw_services(&mut Dice::new(seed, "services"), &mut ground);
        watch_later_requests(&mut Dice::new(seed, "later requests"), &mut config);
        let mut clients = draw_clients(&mut Dice::new(seed, "clients"), &ground);
        let mut dice = Dice::new(seed, "extras");
        let order = dice.weighted(&[
            (94, None),
            (3, Some(Order::Drain)),
            (3, Some(Order::AbortAll)),
        ]);
        let at = |dice: &mut Dice| Instant::ZERO + dice.millis(1_500, 9_000);
        let mut orders = Vec::from_iter(order.map(|order| (at(&mut dice), order)));
        orders.extend(draw_changes(&mut Dice::new(seed, "changes"), &mut config));
        let tight = tightened(&mut config, &mut dice);
        if tight || order.is_some() {
            for (_, client) in &mut clients {
                client.expect = Expect::Anything;
            }
        }
        let world = WorldPlan {
            seed,
            config,
            tcb_cache: None,
            hosts: ground.hosts,
            middle: Middle::Switch,
            offload: dice.percent(40),
            grid: Duration::from_micros(u64::from(dice.pick(&[1u32, 50, 200]))),
            calm_at: Some(calm_at),
            budget: Budget {
                until: calm_at + Duration::from_secs(1_200),
                ..Budget::default()
            },
            printed: false,
            mutant: None,
            uptime: Duration::ZERO,
        };
        Self {
            seed,
            world,
            clients,
            lossy,
            orders,
        }
    }
}

impl Scenario {
    /// The scenario of a seed, with strangers who know who talks to whom, and flood.
    pub fn draw_hostile(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let mut dice = Dice::new(seed, "strangers");
        for _ in 0..dice.between(10, 80) {
            let at = Instant::ZERO + dice.millis(1_100, 9_000);
            let count = dice.pick(&[1, 1, 1, 5, 60]);
            scenario.orders.push((at, Order::Mischief(count)));
        }
        scenario
    }
}

/// Slow starts, health checks, outliers and backups. From dice of its own, so that everything else
/// of a seed stays as it was.
fn draw_availability(dice: &mut Dice, config: &mut Config) {
    for pool in &mut config.pools {
        pool.slow_start = dice.pick(&[Duration::ZERO, Duration::from_secs(3)]);
        pool.outlier = dice.percent(20).then(Outlier::default);
        pool.check = dice.percent(30).then(Check::default);
        for server in pool.servers.iter_mut().skip(1) {
            server.backup = dice.percent(10);
        }
    }
}

/// What is ordered of servers, and what their health checks say. The first server of each pool
/// stays as it is, so that clients have one.
fn draw_changes(dice: &mut Dice, config: &mut Config) -> Vec<(Instant, Order)> {
    draw_availability(dice, config);
    let mut number = 0;
    let mut others = Vec::new();
    for pool in &config.pools {
        others.extend((number + 1..).take(pool.servers.len() - 1));
        number += pool.servers.len() as u16;
    }
    if others.is_empty() || dice.percent(60) {
        return Vec::new();
    }
    let changes = (0..dice.between(1, 12)).map(|_| {
        let change = match dice.between(0, 4) {
            0 => ServerChange::Weight(dice.between(0, 6) as u16),
            1 => ServerChange::Check(dice.percent(50)),
            _ => ServerChange::Admin(dice.pick(&Admin::ALL)),
        };
        let at = Instant::ZERO + dice.millis(1_100, 9_000);
        (at, Order::Server(dice.pick(&others), change))
    });
    changes.collect()
}

/// Limits that are reached: refusals must be counted, and nothing grow.
fn tightened(config: &mut Config, dice: &mut Dice) -> bool {
    let tight = dice.percent(6);
    if tight {
        tighten(config, dice);
    }
    tight
}

fn tighten(config: &mut Config, dice: &mut Dice) {
    config.limits = Limits {
        connections: dice.between(2, 6),
        setups: dice.between(1, 4),
        half_read: dice.between(1, 2),
        half_read_per_client: 1,
        silent_clients: 1,
        sleepers: 1,
        front_per_client: 1,
        buffered_bytes: u64::from(dice.between(2_000, 60_000)),
    };
}

fn draw_host(
    dice: &mut Dice,
    kind: &str,
    number: u8,
    families: &[bool],
    calm_links: bool,
) -> HostPlan {
    let net = if kind == "client" { 7 } else { 2 };
    let addrs = families
        .iter()
        .map(|&v4| {
            if v4 {
                Address::v4([10, net, 0, number + 1])
            } else {
                v6(net, number + 1)
            }
        })
        .collect();
    let mtus: &[usize] = if families.contains(&false) {
        &[1_500, 1_500, 1_500, 1_400, 1_280, 9_000]
    } else {
        &[1_500, 1_500, 1_500, 1_400, 1_280, 9_000, 576]
    };
    let quirk = |dice: &mut Dice| dice.percent(12);
    let quirks = Quirks {
        no_mss: quirk(dice),
        no_scale: quirk(dice),
        no_sack: quirk(dice),
        isn_before_wrap: dice.percent(25).then(|| dice.between(0, 100_000)),
        paws: dice.percent(50),
    };
    let link = if calm_links {
        LinkPlan::clean(Duration::from_micros(u64::from(dice.between(50, 20_000))))
    } else {
        draw_link(dice)
    };
    HostPlan {
        name: format!("{kind}{number}"),
        addrs,
        mtu: dice.pick(mtus),
        link,
        quirks,
        timestamps: dice
            .percent(60)
            .then(|| dice.pick(&[0, 1, u32::MAX - 2_000, 0x7fff_fc00])),
        servers: Vec::new(),
    }
}

fn draw_link(dice: &mut Dice) -> LinkPlan {
    let way = |dice: &mut Dice| {
        let delay = Duration::from_micros(u64::from(dice.between(50, 25_000)));
        let jitter = dice.micros(delay);
        let clean = Faults {
            jitter,
            ..Faults::none(delay)
        };
        let most = dice.weighted(&[(25, 0), (45, 10_000), (25, 60_000), (5, 150_000)]);
        let mut rate = |share: u32| {
            if most == 0 {
                0
            } else {
                dice.between(0, most) / share
            }
        };
        Faults {
            loss_ppm: rate(1),
            duplicate_ppm: rate(1),
            reorder_ppm: rate(1),
            corrupt_ppm: rate(2),
            ..clean
        }
    };
    let (up, down) = (way(dice), way(dice));
    let mut mtu = || {
        if dice.percent(10) {
            dice.pick(&[1_300, 1_420])
        } else {
            usize::MAX
        }
    };
    LinkPlan {
        up,
        down,
        mtu_up: mtu(),
        mtu_down: mtu(),
    }
}

/// `fd00:net::number`.
pub(super) fn v6(net: u8, number: u8) -> Address {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[3] = net;
    octets[15] = number;
    Address::v6(octets)
}

/// A server's socket. Its window is never below the one that the switch offers in its place before
/// it knows a server: smoltcp loses its retransmission timer when a window shrinks to nothing under
/// data on the way, and sends its keep-alives with a wrong byte at a number not yet acknowledged.
pub(super) fn draw_server_socket(dice: &mut Dice) -> SocketPlan {
    let socket = draw_socket(dice);
    SocketPlan {
        rx_bytes: socket.rx_bytes.max(32_768),
        ..socket
    }
}

/// A socket as some application might set it.
pub(super) fn draw_socket(dice: &mut Dice) -> SocketPlan {
    let sizes = [
        (1, 2_048),
        (2, 8_192),
        (5, 65_535),
        (3, 131_072),
        (1, 1 << 20),
    ];
    SocketPlan {
        rx_bytes: dice.weighted(&sizes),
        tx_bytes: dice.weighted(&sizes),
        nagle: dice.percent(60),
        ack_delay: dice.percent(80).then(|| dice.millis(1, 40)),
        keep_alive: Some(dice.millis(5_000, 40_000)),
        timeout: Duration::from_secs(150),
    }
}

/// A slow reader or writer.
pub(super) fn draw_pace(dice: &mut Dice) -> Pace {
    Pace {
        bytes: dice.pick(&[300, 1_000, 5_000]) as usize,
        pause: dice.millis(2, 40),
    }
}

/// A client that leaves before the end.
pub(super) fn draw_abort(dice: &mut Dice, sent: usize, received: usize) -> Finish {
    match dice.between(0, 2) {
        0 => Finish::AbortAfterSent(dice.between(0, sent as u32) as usize),
        1 => Finish::AbortAfterReceived(dice.between(1, received.max(1) as u32) as usize),
        _ => Finish::AbortAfter(dice.millis(1, 3_000)),
    }
}

/// A sample of the connections stays with the engine then, and nobody notices.
fn watch_later_requests(dice: &mut Dice, config: &mut Config) {
    for service in &mut config.services {
        if dice.percent(30) {
            service.later_requests = LaterRequests::Count;
        }
    }
}
