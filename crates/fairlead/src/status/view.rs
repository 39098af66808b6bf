//! The status as text: short, aligned, in colour on a terminal.

use fairlead_base::DropReason;

use super::plain_line;
use crate::admin::{
    AnnouncedStatus, CarriedStatus, ListenerStatus, PoolStatus, ServerStatus, ServiceStatus,
    Status, TcbCacheStatus,
};
use crate::screen::{
    BOLD, DIM, GREEN, Paint, RED, Side, YELLOW, bytes, columns, elapsed, grouped, plural,
};

/// Untrusted text, without terminal control characters.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .take(200)
        .map(|one| if one.is_control() { '\u{fffd}' } else { one })
        .collect()
}

/// The status as text.
pub(super) fn render(status: &Status, paint: Paint) -> String {
    let health = match status.health.as_str() {
        "ok" => paint.text(GREEN, "ok"),
        other => paint.text(YELLOW, &plain(other)),
    };
    let mut out = format!(
        "{}  fairlead {}, {} on {}, up {}, {health}\n",
        paint.text(BOLD, &plain(&status.instance)),
        plain(&status.version),
        plain(&status.mode),
        plain(&status.device),
        elapsed(status.uptime_s),
    );
    if !status.fast_path.is_empty() {
        out += &format!("fast path: {}\n", plain_line(&status.fast_path));
    }
    if !status.announced.is_empty() {
        let one =
            |one: &AnnouncedStatus| format!("{} on {} ({})", one.address, one.interface, one.state);
        let all: Vec<String> = status.announced.iter().map(one).collect();
        out += &format!("addresses: {}\n", plain_line(&all.join(", ")));
    }
    if !status.listeners.is_empty() {
        out += &listeners(status, paint);
    }
    if status.age_ms > 2_000 {
        let age = format!("these counters are {} old", elapsed(status.age_ms / 1_000));
        out += &format!("{}\n", paint.text(YELLOW, &age));
    }
    if status.process.log_lines_lost > 0 {
        let lost = format!(
            "the log is incomplete: {} lines were lost",
            grouped(status.process.log_lines_lost)
        );
        out += &format!("{}\n", paint.text(YELLOW, &lost));
    }
    if status.process.reloads_refused > 0 {
        let refused = format!(
            "{} refused; see the log for the reason",
            plural(status.process.reloads_refused as usize, "reload")
        );
        out += &format!("{}\n", paint.text(YELLOW, &refused));
    }
    out += &totals(status, paint);
    for service in &status.services {
        out += &service_lines(service, paint);
    }
    for pool in &status.pools {
        out += &pool_lines(pool, paint);
    }
    out += &drops(status, paint);
    out
}

/// Listening sockets of this machine.
fn listeners(status: &Status, paint: Paint) -> String {
    let one = |one: &ListenerStatus| match one.up {
        true => plain_line(&one.listener),
        false => {
            let text = format!("{} (nobody listens)", plain_line(&one.listener));
            paint.text(YELLOW, &text)
        }
    };
    let all: Vec<String> = status.listeners.iter().map(one).collect();
    format!("listeners: {}\n", all.join(", "))
}

fn totals(status: &Status, paint: Paint) -> String {
    let full = match status.records_max {
        0 => String::new(),
        max => format!(" ({:.1} %)", 100.0 * status.records as f64 / max as f64),
    };
    let both = |rx: String, tx: String| format!("{rx} in, {tx} out");
    let rows = [
        (
            "now",
            format!(
                "{} live, {} in setup, {} incomplete heads ({}), {} in TIME_WAIT",
                grouped(status.live),
                grouped(status.setups),
                grouped(status.half_read),
                bytes(status.buffered_bytes),
                grouped(status.time_wait),
            ),
        ),
        (
            "records",
            format!(
                "{} of {}{full}",
                grouped(status.records),
                grouped(status.records_max)
            ),
        ),
        (
            "connections",
            format!(
                "{} accepted, {} spliced, {}",
                grouped(status.accepted),
                grouped(status.spliced),
                match status.retries {
                    1 => "1 retry".to_owned(),
                    retries => format!("{} retries", grouped(retries)),
                },
            ),
        ),
        ("ended", ended(status)),
        (
            "handshakes",
            format!(
                "{} SYN, {} SYN-ACK",
                grouped(status.syns),
                grouped(status.syn_acks)
            ),
        ),
        (
            "packets",
            both(grouped(status.rx_packets), grouped(status.tx_packets)),
        ),
        (
            "bytes",
            both(bytes(status.rx_bytes), bytes(status.tx_bytes)),
        ),
        ("fast path", fast_path(status)),
        ("flow table", flow_table(status)),
        ("device", device(status)),
        ("memory", memory(status)),
        ("probes", grouped(status.probes_sent)),
    ];
    let cache = status.tcb_cache.as_ref().map(tcb_cache);
    let rows: Vec<_> = (rows.into_iter().chain(cache.into_iter().flatten()))
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    format!(
        "\n{}",
        dimmed_first(&columns(0, &[Side::Left; 2], &rows), paint)
    )
}

/// Packets handled without the engine.
fn fast_path(status: &Status) -> String {
    let share = match status.rx_packets {
        0 => String::new(),
        all => format!(
            " ({:.1} %)",
            100.0 * status.fast_packets as f64 / all as f64
        ),
    };
    format!(
        "{} packets{share}, {}; {} handled by the engine",
        grouped(status.fast_packets),
        bytes(status.fast_bytes),
        grouped(status.engine_packets),
    )
}

/// The kernel's flow table: its kind, and lookup results by CPU.
fn flow_table(status: &Status) -> String {
    let Some(kernel) = &status.kernel else {
        return "none: no kernel fast path".to_owned();
    };
    let cpus = kernel.lookups.iter().enumerate();
    let cpus = cpus.filter(|(_, one)| one.hits > 0 || one.misses > 0);
    let of = cpus.map(|(cpu, one)| {
        let mut text = format!("cpu {cpu}: {} hits", grouped(one.hits));
        if one.misses > 0 {
            text += &format!(
                ", {} misses, {} migrations",
                grouped(one.misses),
                grouped(one.migrations)
            );
        }
        text
    });
    let mut all = vec![plain(&status.flow_table)];
    all.extend(of);
    if kernel.keys_anew > 0 {
        all.push(format!("{} keys re-added", grouped(kernel.keys_anew)));
    }
    all.join("; ")
}

/// What the process has in RAM, and the kernel for the maps of its program, the largest first. Maps
/// that the process has mapped are in both.
fn memory(status: &Status) -> String {
    let process = format!("{} resident", bytes(status.process.resident_bytes));
    let Some(kernel) = status
        .kernel
        .as_ref()
        .filter(|one| !one.map_bytes.is_empty())
    else {
        return process;
    };
    let mut maps: Vec<_> = kernel.map_bytes.iter().collect();
    maps.sort_by_key(|(_, bytes)| core::cmp::Reverse(**bytes));
    let all: u64 = maps.iter().map(|(_, bytes)| **bytes).sum();
    let largest = maps.iter().take(LARGEST_MAPS);
    let largest: Vec<_> = largest
        .map(|(name, is)| format!("{} {}", plain(name), bytes(**is)))
        .collect();
    format!(
        "{process}; kernel maps {}: {}",
        bytes(all),
        largest.join(", ")
    )
}

/// How many maps are shown by name.
const LARGEST_MAPS: usize = 4;

/// The TCB cache: hit ratio and occupancy.
fn tcb_cache(cache: &TcbCacheStatus) -> [(&'static str, String); 2] {
    let mut did = format!(
        "{}, {}: {} of {} accesses hit ({:.1} %), {} migrations, {} hits by second lookup",
        plain(&cache.scheme),
        bytes(cache.capacity_bytes),
        grouped(cache.hits),
        grouped(cache.accesses),
        100.0 * cache.hit_ratio,
        grouped(cache.migrations),
        grouped(cache.second_lookup_hits),
    );
    if cache.mismatches > 0 {
        did += &format!("; {} mismatches", grouped(cache.mismatches));
    }
    let holds = format!(
        "{} of {} lines in use, {} ON; {} to {} of {} per set, mean {:.1}",
        grouped(cache.occupied),
        grouped(cache.lines),
        grouped(cache.on_lines),
        cache.occupancy_min,
        cache.occupancy_max,
        cache.ways,
        cache.occupancy_mean,
    );
    [("tcb cache", did), ("", holds)]
}

/// Ended spliced connections, by how they ended.
fn ended(status: &Status) -> String {
    let counted = status.ended.iter().filter(|(_, count)| **count > 0);
    let ends: Vec<_> = counted
        .map(|(how, count)| format!("{} {}", grouped(*count), plain(how)))
        .collect();
    if ends.is_empty() {
        return "none".to_owned();
    }
    ends.join(", ")
}

/// Use of the device. Each packet takes a system call, so large packets are cheaper.
fn device(status: &Status) -> String {
    let device = &status.device_use;
    let each = |all: u64, packets: u64| bytes(all.checked_div(packets).unwrap_or(0));
    let mut text = format!(
        "{} reads, mean {}; {} empty reads; {} writes, mean {}",
        grouped(device.rx.packets),
        each(device.rx.bytes, device.rx.packets),
        grouped(device.rx_empty_reads),
        grouped(device.tx.packets),
        each(device.tx.bytes, device.tx.packets),
    );
    for (count, why) in [
        (
            status.process.device_queue_dropped,
            "dropped at the full queue",
        ),
        (device.rx_bad_header, "with bad headers"),
        (device.tx_no_room, "dropped at a full transmit queue"),
        (device.tx_down, "while down"),
        (device.tx_refused, "refused"),
        (device.tx_unsendable, "unsendable"),
    ] {
        if count > 0 {
            text += &format!("; {} {why}", grouped(count));
        }
    }
    text
}

/// Dims the first column.
fn dimmed_first(text: &str, paint: Paint) -> String {
    if !paint.0 {
        return text.to_owned();
    }
    let mut out = String::new();
    for line in text.lines() {
        let end = line.find("  ").unwrap_or(line.len());
        let (word, rest) = line.split_at(end);
        out += &format!("{}{rest}\n", paint.text(DIM, word));
    }
    out
}

fn service_lines(service: &ServiceStatus, paint: Paint) -> String {
    let mut out = format!(
        "\n{} {}  {} accepted, {} refused; {}\n",
        paint.text(DIM, "service"),
        paint.text(BOLD, &plain(&service.name)),
        grouped(service.accepted),
        grouped(service.refused),
        ended_of(&service.carried),
    );
    let all = sum(service.routes.iter().map(|route| route.decisions));
    let rows: Vec<_> = service
        .routes
        .iter()
        .map(|route| {
            let share = match all {
                0 => String::new(),
                all => format!("{:.1} %", 100.0 * route.decisions as f64 / all as f64),
            };
            vec![
                plain(&route.name),
                format!("-> {}", plain(&route.pool)),
                grouped(route.decisions),
                share,
            ]
        })
        .collect();
    out += &columns(
        2,
        &[Side::Left, Side::Left, Side::Right, Side::Right],
        &rows,
    );
    out
}

/// A saturating sum: the numbers come from another program and may be arbitrary.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Ended connections of a service: number, bytes and mean duration.
fn ended_of(carried: &CarriedStatus) -> String {
    let connections = sum(carried.by_duration.iter().copied());
    if connections == 0 {
        return "none ended".to_owned();
    }
    let mean_s = carried.lived_ms as f64 / connections as f64 / 1e3;
    format!(
        "{} ended, {} in, {} out, mean {mean_s:.3} s",
        grouped(connections),
        bytes(carried.bytes_in),
        bytes(carried.bytes_out),
    )
}

fn pool_lines(pool: &PoolStatus, paint: Paint) -> String {
    let up = pool
        .servers
        .iter()
        .filter(|server| server.state == "up" && server.unavailable.is_none())
        .count();
    let mut out = format!(
        "\n{} {}  {} of {} up\n",
        paint.text(DIM, "pool"),
        paint.text(BOLD, &plain(&pool.name)),
        up,
        plural(pool.servers.len(), "server"),
    );
    let row = |server: &ServerStatus| {
        vec![
            plain(&server.endpoint),
            state(server),
            format!("weight {}", server.weight),
            format!("{} active", grouped(server.active)),
            format!("{} total", grouped(server.total)),
            format!("{} failed", grouped(server.failures)),
            format!("{} in", bytes(server.carried.bytes_in)),
            format!("{} out", bytes(server.carried.bytes_out)),
            options(server),
        ]
    };
    let rows: Vec<_> = pool.servers.iter().map(row).collect();
    let sides = [
        Side::Left,
        Side::Left,
        Side::Left,
        Side::Right,
        Side::Right,
        Side::Right,
        Side::Right,
        Side::Right,
        Side::Left,
    ];
    for (line, server) in columns(2, &sides, &rows).lines().zip(&pool.servers) {
        out += &match server.state.as_str() {
            "down" => paint.text(RED, line),
            _ => line.to_owned(),
        };
        out.push('\n');
    }
    out
}

/// Whether a server answers, and why it gets no connections otherwise.
fn state(server: &ServerStatus) -> String {
    match server.unavailable.as_deref() {
        Some(why) if why != "not_answering" => plain(&format!("{}, {why}", server.state)),
        _ => plain(&server.state),
    }
}

/// The TCP options of a server, in short form.
fn options(server: &ServerStatus) -> String {
    let Some(offers) = &server.offers else {
        return String::new();
    };
    let mut words = vec![format!("mss {}", offers.mss)];
    words.extend(offers.window_scale.map(|scale| format!("wscale {scale}")));
    words.extend(offers.sack.then(|| "sack".to_owned()));
    words.extend(offers.timestamps.then(|| "ts".to_owned()));
    words.join(", ")
}

fn drops(status: &Status, paint: Paint) -> String {
    let mut counted: Vec<(&String, u64)> = status
        .drops
        .iter()
        .map(|(name, count)| (name, *count))
        .filter(|one| one.1 > 0)
        .collect();
    if counted.is_empty() {
        return "\nnothing dropped or refused\n".to_owned();
    }
    counted.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), name.as_str()));
    let describe = |name: &str| {
        DropReason::ALL
            .iter()
            .find(|reason| reason.name() == name)
            .map_or(String::new(), |reason| reason.describe().to_owned())
    };
    let rows: Vec<_> = counted
        .iter()
        .map(|(name, count)| vec![grouped(*count), plain(name), describe(name)])
        .collect();
    let table = columns(2, &[Side::Right, Side::Left, Side::Left], &rows);
    format!("\n{}\n{table}", paint.text(DIM, "dropped or refused"))
}

#[cfg(test)]
mod tests {
    use fairlead_datapath::tcb_cache::TcbCacheCounters;
    use fairlead_splice::snapshot::SwitchCounters;

    use super::*;
    use crate::admin::{
        Counted, DeviceStatus, DirectionStatus, KernelStatus, Offers, ProcessCounters, RouteStatus,
    };

    fn status() -> Status {
        let server = |endpoint: &str, state: &str, offers| ServerStatus {
            endpoint: endpoint.into(),
            weight: 1,
            active: 3,
            total: 12_345,
            failures: 0,
            carried: CarriedStatus::default(),
            state: state.into(),
            offers,
            ..ServerStatus::default()
        };
        let offers = Offers {
            mss: 1_460,
            window_scale: Some(7),
            sack: true,
            timestamps: false,
        };
        let route = |name: &str, pool: &str, decisions| RouteStatus {
            name: name.into(),
            pool: pool.into(),
            decisions,
            requests: 0,
            later_requests: Default::default(),
        };
        Status {
            instance: "edge".into(),
            version: "0.1.0".into(),
            mode: "engine".into(),
            device: "fairlead0".into(),
            health: "ok".into(),
            uptime_s: 3_725,
            switch: Counted(SwitchCounters {
                rx_packets: 1_000_000,
                tx_packets: 999_990,
                rx_bytes: 5 << 30,
                fast_packets: 990_000,
                live: 12,
                records: 53,
                records_max: 1_048_576,
                accepted: 1_000,
                spliced: 998,
                retries: 1,
                ..SwitchCounters::default()
            }),
            process: Counted(ProcessCounters {
                access_log_lines_lost: 0,
                log_lines_lost: 4_321,
                reloads_refused: 2,
                orders_refused: 0,
                announce_conflicts: 0,
                device_queue_dropped: 6,
                resident_bytes: 12 << 20,
                ..ProcessCounters::default()
            }),
            device_use: DeviceStatus {
                rx: DirectionStatus {
                    packets: 2_000,
                    bytes: 3_000_000,
                    ..DirectionStatus::default()
                },
                rx_empty_reads: 1_234,
                tx_no_room: 7,
                ..DeviceStatus::default()
            },
            ended: [("finished".to_owned(), 980), ("aborted".to_owned(), 0)].into(),
            drops: [
                ("no_route".to_owned(), 3),
                ("not_tcp".to_owned(), 2_000),
                ("truncated".to_owned(), 0),
                ("from_the_future".to_owned(), 1),
            ]
            .into(),
            services: vec![ServiceStatus {
                name: "web".into(),
                accepted: 1_000,
                refused: 3,
                denied: [].into(),
                carried: CarriedStatus {
                    bytes_in: 5_000,
                    bytes_out: 7 << 20,
                    lived_ms: 2_469,
                    by_duration: vec![970, 0, 8, 0, 2],
                },
                routes: vec![route("#1", "images", 250), route("default", "pages", 750)],
            }],
            pools: vec![PoolStatus {
                name: "images".into(),
                servers: vec![
                    server("10.2.0.1:8081", "up", Some(offers)),
                    server("10.2.0.1:80", "down", None),
                ],
            }],
            ..Status::default()
        }
    }

    #[test]
    fn the_view_is_aligned_and_complete() {
        let expected = "\
edge  fairlead 0.1.0, engine on fairlead0, up 1 h 2 min, ok
the log is incomplete: 4,321 lines were lost
2 reloads refused; see the log for the reason

now          12 live, 0 in setup, 0 incomplete heads (0 B), 0 in TIME_WAIT
records      53 of 1,048,576 (0.0 %)
connections  1,000 accepted, 998 spliced, 1 retry
ended        980 finished
handshakes   0 SYN, 0 SYN-ACK
packets      1,000,000 in, 999,990 out
bytes        5.0 GiB in, 0 B out
fast path    990,000 packets (99.0 %), 0 B; 0 handled by the engine
flow table   none: no kernel fast path
device       2,000 reads, mean 1.5 KiB; 1,234 empty reads; 0 writes, mean 0 B; \
6 dropped at the full queue; 7 dropped at a full transmit queue
memory       12.0 MiB resident
probes       0

service web  1,000 accepted, 3 refused; 980 ended, 4.9 KiB in, 7.0 MiB out, \
mean 0.003 s
  #1       -> images  250  25.0 %
  default  -> pages   750  75.0 %

pool images  1 of 2 servers up
  10.2.0.1:8081  up    weight 1  3 active  12,345 total  0 failed  0 B in  0 B out  \
mss 1460, wscale 7, sack
  10.2.0.1:80    down  weight 1  3 active  12,345 total  0 failed  0 B in  0 B out

dropped or refused
  2,000  not_tcp          Neither TCP nor an ICMP message that concerns a connection.
      3  no_route         No route matches.
      1  from_the_future
";
        assert_eq!(render(&status(), Paint(false)), expected);
    }

    #[test]
    fn memory_of_the_kernel_is_shown_with_its_largest_maps() {
        let sizes = [
            ("fl_a", 1 << 10),
            ("fl_b", 16 << 20),
            ("fl_c", 0),
            ("fl_d", 2 << 20),
            ("fl_e", 3),
        ];
        let kernel = KernelStatus {
            map_bytes: sizes.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
            ..KernelStatus::default()
        };
        let status = Status {
            kernel: Some(kernel),
            ..status()
        };
        assert_eq!(
            memory(&status),
            "12.0 MiB resident; kernel maps 18.0 MiB: fl_b 16.0 MiB, fl_d 2.0 MiB, fl_a 1.0 KiB, \
             fl_e 3 B"
        );
    }

    #[test]
    fn why_there_is_no_better_fast_path_is_told_to_its_end() {
        let why = format!("engine ({})", "the kernel refused; ".repeat(30));
        let slow = Status {
            fast_path: format!("{why}\u{1b}"),
            ..status()
        };
        let text = render(&slow, Paint(false));
        assert!(text.contains(&why) && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn the_tcb_cache_is_shown_where_there_is_one() {
        let cached = Status {
            tcb_cache: Some(TcbCacheStatus {
                scheme: "spec".into(),
                counters: Counted(TcbCacheCounters {
                    capacity_bytes: 32 << 10,
                    lines: 512,
                    ways: 4,
                    accesses: 10_000,
                    hits: 7_500,
                    migrations: 12,
                    occupied: 300,
                    on_lines: 44,
                    occupancy_max: 4,
                    ..TcbCacheCounters::default()
                }),
                hit_ratio: 0.75,
                occupancy_mean: 2.34,
                ..TcbCacheStatus::default()
            }),
            ..status()
        };
        let expected = "
tcb cache    spec, 32.0 KiB: 7,500 of 10,000 accesses hit (75.0 %), 12 migrations, 0 hits by \
                        second lookup
             300 of 512 lines in use, 44 ON; 0 to 4 of 4 per set, mean 2.3
";
        let text = render(&cached, Paint(false));
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let painted = render(&status(), Paint(true));
        assert!(painted.contains("\x1b[32mok\x1b[0m"));
        assert!(painted.contains("\x1b[31m  10.2.0.1:80 "));
        let mut bare = String::new();
        let mut rest = painted.as_str();
        while let Some(at) = rest.find('\x1b') {
            bare += &rest[..at];
            rest = &rest[at + rest[at..].find('m').unwrap() + 1..];
        }
        assert_eq!(bare + rest, render(&status(), Paint(false)));
    }

    #[test]
    fn what_the_other_side_says_does_not_drive_the_terminal() {
        let hostile = Status {
            instance: "a\x1b[2Jb".into(),
            ..status()
        };
        assert!(!render(&hostile, Paint(false)).contains('\x1b'));
    }

    #[test]
    fn an_empty_status_is_shown_too() {
        let text = render(&Status::default(), Paint(false));
        assert!(text.contains("nothing dropped or refused"), "{text}");
        let stalled = Status {
            age_ms: 9_000,
            health: "stalled".into(),
            ..Status::default()
        };
        let text = render(&stalled, Paint(false));
        assert!(
            text.contains("stalled\nthese counters are 9 s old"),
            "{text}"
        );
    }

    /// Where the numbers of a JSON value are, as JSON pointers.
    fn numbers(value: &serde_json::Value, at: &str) -> Vec<String> {
        use serde_json::Value;
        match value {
            Value::Number(_) => vec![at.to_owned()],
            Value::Array(list) => {
                let each = list.iter().enumerate();
                each.flat_map(|(index, one)| numbers(one, &format!("{at}/{index}")))
                    .collect()
            }
            Value::Object(map) => {
                let each = map.iter();
                each.flat_map(|(key, one)| numbers(one, &format!("{at}/{key}")))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_largest_numbers_are_shown_as_well() {
        let kernel = KernelStatus {
            lookups: vec![Counted::default(); 2],
            ..KernelStatus::default()
        };
        let all = Status {
            kernel: Some(kernel),
            ..status()
        };
        let mut all = serde_json::to_value(all).unwrap();
        let mut changed = 0;
        for at in numbers(&all, "") {
            let number = all.pointer_mut(&at).unwrap();
            let before = std::mem::replace(number, u64::MAX.into());
            match serde_json::from_value::<Status>(all.clone()) {
                Ok(_) => changed += 1,
                // It is no u64.
                Err(_) => *all.pointer_mut(&at).unwrap() = before,
            }
        }
        assert!(changed > 50, "{changed}");
        let status = serde_json::from_value(all).unwrap();
        assert!(render(&status, Paint(false)).contains("18,446,744,073,709,551,615"));
    }
}
