//! A SYN flood: what it does to connections that are there, and to new ones. The generator takes a
//! share of the machine too; so the same flood, aimed at an address whose packets are dropped as
//! they come, is what it is compared with.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_base::{Address, Endpoint, FlowKey, Packet, Rng, SeqNumber};
use fairlead_netns::Host;
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use crate::held::Held;
use crate::open::resident_kib;
use crate::table::{median, ratio, row};
use crate::testbed::Testbed;
use crate::testbed::targets::Target;
use crate::testbed::wrk::Load;

/// Nobody has this address; the switch drops what comes for it.
const NOWHERE: [u8; 4] = [10, 1, 0, 77];
/// The listening address.
const LISTEN: [u8; 4] = [10, 1, 0, 3];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    /// Alternations; the median counts.
    pub(crate) rounds: usize,
    /// Seconds of each measurement.
    pub(crate) seconds: u32,
    /// Legitimate new connections a second, evenly spaced.
    pub(crate) legitimate: u32,
    /// SYNs a second, as a multiple of that.
    pub(crate) times: u32,
    /// Connections that are open all the time, and asked again and again.
    pub(crate) held: u32,
}

/// What happened in one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Connections a second that were made and answered, at an even pace.
    paced: f64,
    /// The same as fast as `wrk` can.
    unpaced: f64,
    /// SYNs a second that the generator sent.
    syns: f64,
    /// Open connections that have been lost by then.
    lost: usize,
}

/// Sends SYNs to `to` from ever other addresses until told to stop; how many.
fn syns(to: [u8; 4], per_second: u32, stop: &AtomicBool) -> std::io::Result<u64> {
    // IPPROTO_RAW: whole packets are given, headers too.
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let to_address: SocketAddr = SocketAddrV4::new(to.into(), 0).into();
    let mut options = Vec::new();
    SynOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
    }
    .emit(&mut options);
    let mut rng = Rng::new(0x5eed);
    let mut packet = Packet::with_capacity();
    let started = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
        if sent >= due {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let chance = rng.next_u64();
        let [a, b, c, ..] = chance.to_be_bytes();
        let key = FlowKey {
            src: Endpoint {
                // 172.16.0.0/12
                addr: Address::v4([172, 16 | (a & 15), b, c]),
                port: (chance as u16) | 1_024,
            },
            dst: Endpoint {
                addr: Address::v4(to),
                port: 80,
            },
        };
        let seq = SeqNumber((chance >> 16) as u32);
        let (ack, flags) = (SeqNumber(0), TcpFlags::SYN);
        crate::world::segment(&mut packet, key, seq, ack, flags, &options, &[]);
        match socket.send_to(&packet.bytes, &to_address.into()) {
            Ok(_) => sent += 1,
            // The device's queue is full: as good as a packet lost on a wire.
            Err(error) if error.raw_os_error() == Some(NO_BUFFERS) => sent += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// ENOBUFS.
const NO_BUFFERS: i32 = 105;

/// New connections at an even pace, each answered; how many a second.
fn paced(client: &Host, per_second: u32, seconds: u32) -> Result<f64> {
    const WORKERS: u32 = 8;
    let answered = AtomicU64::new(0);
    let address = Target::Fairlead.address();
    client.enter(|| {
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let answered = &answered;
                scope.spawn(move || {
                    let started = Instant::now();
                    let count = per_second * seconds / WORKERS;
                    for number in 0..count {
                        let turn = number * WORKERS + worker;
                        let due = Duration::from_secs_f64(f64::from(turn) / f64::from(per_second));
                        let ahead = due.saturating_sub(started.elapsed());
                        std::thread::sleep(ahead);
                        if started.elapsed().as_secs() >= u64::from(seconds) {
                            break;
                        }
                        if crate::held::one_off(address).is_ok() {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    })?;
    Ok(answered.into_inner() as f64 / f64::from(seconds))
}

/// One measurement with a flood towards `to`, or without one.
fn measure(
    testbed: &Testbed,
    stranger: &Host,
    storm: Storm,
    held: &mut Held,
    to: Option<[u8; 4]>,
) -> Result<Outcome> {
    let stop = AtomicBool::new(false);
    let per_second = storm.legitimate.saturating_mul(storm.times);
    std::thread::scope(|scope| {
        let flood = to.map(|to| {
            let stop = &stop;
            scope.spawn(move || {
                let started = Instant::now();
                let sent = stranger.enter(|| syns(to, per_second, stop))??;
                anyhow::Ok(sent as f64 / started.elapsed().as_secs_f64())
            })
        });
        let mut work = || -> Result<Outcome> {
            std::thread::sleep(Duration::from_millis(300));
            let paced = paced(&testbed.client, storm.legitimate, storm.seconds)?;
            let unpaced = testbed.measure(&Load {
                address: Target::Fairlead.address(),
                file: "1KiB",
                close: true,
                connections: 64,
                seconds: storm.seconds,
                distinct: false,
            })?;
            let lost = held.lost()?;
            Ok(Outcome {
                paced,
                unpaced: unpaced.rate,
                syns: 0.0,
                lost,
            })
        };
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        let syns = match flood {
            Some(flood) => flood.join().expect("the generator does not panic")?,
            None => 0.0,
        };
        Ok(Outcome { syns, ..outcome? })
    })
}

/// Measures without a flood, with one that leads nowhere, and with one at the listening address.
pub(crate) fn run(testbed: &Testbed, storm: Storm) -> Result<Value> {
    ensure!(storm.legitimate > 0 && storm.seconds > 0 && storm.rounds > 0);
    let stranger = testbed.stranger.clone();
    let stranger = stranger.context("a testbed without a stranger")?;
    testbed.switch.ip(&format!(
        "route add 172.16.0.0/12 via 10.3.0.1\nroute add blackhole {}/32\n",
        std::net::Ipv4Addr::from(NOWHERE)
    ))?;
    let mut held = Held::open(testbed, Target::Fairlead.address(), storm.held)?;
    let before_kib = resident_kib(testbed.fairlead_pid());
    let aims = [
        ("no flood", None),
        ("flood dropped first", Some(NOWHERE)),
        ("flood at the service", Some(LISTEN)),
    ];
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); aims.len()];
    for _ in 0..storm.rounds {
        for (all, (_, to)) in outcomes.iter_mut().zip(aims) {
            all.push(measure(testbed, &stranger, storm, &mut held, to)?);
        }
    }
    let after_kib = resident_kib(testbed.fairlead_pid());
    let of = |at: usize, what: fn(&Outcome) -> f64| -> Vec<f64> {
        outcomes[at].iter().map(what).collect()
    };
    let titles = ["SYNs/s", "paced conn/s", "wrk conn/s", "lost"];
    row("", titles);
    for (at, (name, _)) in aims.iter().enumerate() {
        let lost = outcomes[at].iter().map(|one| one.lost).max().unwrap_or(0);
        let whole = |what| format!("{:.0}", median(of(at, what)));
        let cells = [
            whole(|one| one.syns),
            whole(|one| one.paced),
            whole(|one| one.unpaced),
            lost.to_string(),
        ];
        row(name, cells);
    }
    let lost = outcomes.iter().flatten().map(|one| one.lost).max();
    let lost = lost.unwrap_or(0);
    let paced_share = ratio(&of(2, |one| one.paced), &of(1, |one| one.paced));
    let unpaced_share = ratio(&of(2, |one| one.unpaced), &of(1, |one| one.unpaced));
    println!(
        "of the flood that is dropped first: paced {paced_share:.2}, wrk {unpaced_share:.2}; \
         {lost} of {} open connections lost; memory {before_kib} -> {after_kib} KiB",
        storm.held
    );
    let shown = |at: usize| {
        json!({
            "syns_per_second": median(of(at, |one| one.syns)),
            "paced_connections_per_second": median(of(at, |one| one.paced)),
            "wrk_connections_per_second": median(of(at, |one| one.unpaced)),
        })
    };
    Ok(json!({
        "rounds": storm.rounds,
        "seconds": storm.seconds,
        "legitimate_per_second": storm.legitimate,
        "held": storm.held,
        "held_lost": lost,
        "no_flood": shown(0),
        "flood_dropped_first": shown(1),
        "flood_at_the_service": shown(2),
        "paced_to_flood_dropped_first": paced_share,
        "wrk_to_flood_dropped_first": unpaced_share,
        "paced_to_no_flood": ratio(&of(2, |one| one.paced), &of(0, |one| one.paced)),
        "fairlead_resident_kib": [before_kib, after_kib],
    }))
}
