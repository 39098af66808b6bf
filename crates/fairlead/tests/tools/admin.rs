//! The admin pages end to end, on loopback.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead::admin::{
    AdminServer, AnnouncedStatus, Counters, FastPathState, HandoffStatus, Identity, ListenerStatus,
    ProcessCounters, Shared, Status, start,
};
use fairlead_base::{CounterSet as _, DropReason, Endpoint};
use fairlead_bpf_loader::{FlowLookups, KernelCounters};
use fairlead_datapath::tcb_cache::{Report, TcbCacheCounters};
use fairlead_datapath::{Admin, End, Offers, ServerState, Snapshot, Unavailable};
use fairlead_driver_tun::{DeviceCounters, SizeCounts};
use fairlead_splice::carried::Carried;
use fairlead_splice::snapshot::{
    PoolSnapshot, RouteSnapshot, ServerSnapshot, ServiceSnapshot, SwitchCounters,
};
use serde_json::Value;

fn identity() -> Identity {
    Identity {
        instance: "edge".into(),
        version: "1.2.3".into(),
        mode: "engine".into(),
        fast_path: FastPathState::engine("engine"),
        flow_table: "tcb-cache".into(),
        device: "fairlead0".into(),
    }
}

/// Counters of which every one is different.
fn snapshot() -> Snapshot {
    let mut next = 1_000;
    let mut count = || {
        next += 1;
        next
    };
    let mut snapshot = Snapshot::default();
    for at in 0..SwitchCounters::TABLE.len() {
        *snapshot.counters.value_mut(at) = count();
    }
    snapshot.ended = End::ALL.iter().map(|&end| (end, count())).collect();
    (snapshot.adopted, snapshot.time_wait_evicted) = (77, 78);
    for (index, &reason) in DropReason::ALL.iter().enumerate() {
        (0..=index).for_each(|_| snapshot.drops.add(reason));
    }
    let route = |name: &str, decisions| RouteSnapshot {
        name: name.into(),
        pool: "images".into(),
        decisions,
        requests: decisions,
        later_requests: [("#1".to_owned(), decisions + 1)].into(),
    };
    let carried = |base| {
        let mut carried = Carried {
            bytes_in: base + 3,
            bytes_out: base + 4,
            lived_ms: base + 5,
            ..Carried::default()
        };
        (carried.by_duration[0], carried.by_duration[10]) = (base + 6, 2);
        carried
    };
    snapshot.services = vec![ServiceSnapshot {
        name: "web".into(),
        accepted: count(),
        refused: count(),
        denied: vec![("office".into(), count())],
        carried: carried(1),
        routes: vec![route("#1", count()), route("#2", count())],
    }];
    let endpoint = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
    let server = |address: &str, base: u64, state, offers| ServerSnapshot {
        endpoint: endpoint(address),
        weight: 7,
        active: base as u32,
        total: base + 1,
        failures: base + 2,
        carried: carried(base),
        state,
        offers,
        admin: Admin::Drain,
        check: Some(false),
        unavailable: Some(Unavailable::Draining),
        weight_eighths: 28,
        backup: true,
        ejections: base + 8,
    };
    let offers = Offers {
        mss: 1_460,
        window_scale: Some(9),
        sack: true,
        timestamps: false,
    };
    snapshot.pools = vec![PoolSnapshot {
        name: "images".into(),
        servers: vec![
            server("10.2.0.1:8081", 5_000, ServerState::Up, Some(offers)),
            server("[2001:db8::1]:80", 6_000, ServerState::Down, None),
            server("10.2.0.3:80", 7_000, ServerState::Unknown, None),
        ],
    }];
    snapshot
}

/// The same, and what a device and the log count.
fn counters() -> Counters {
    let mut next = 20_000;
    let mut count = || {
        next += 1;
        next
    };
    let mut sizes = || SizeCounts {
        packets: count(),
        bytes: count(),
        super_packets: count(),
        longest_bytes: count(),
        by_size: std::array::from_fn(|_| count()),
    };
    let (rx, tx) = (sizes(), sizes());
    let device = DeviceCounters {
        rx,
        tx,
        rx_empty_reads: count(),
        rx_bad_header: count(),
        tx_no_room: count(),
        tx_down: count(),
        tx_refused: count(),
        tx_unsendable: count(),
    };
    Counters {
        switch: snapshot(),
        process: ProcessCounters {
            log_lines_lost: count(),
            access_log_lines_lost: count(),
            reloads_refused: 5_003,
            orders_refused: 5_004,
            announce_conflicts: 5_006,
            device_queue_dropped: 5_005,
            resident_bytes: 5_006,
            sleepers_full: 5_011,
            sleepers_kept: 5_007,
            sleepers_other_layout: 5_008,
            sleepers_no_route: 5_009,
            sleepers_no_room: 5_010,
            sleepers: 5_011,
        },
        listeners: vec![ListenerStatus {
            listener: "127.0.0.1:8080".into(),
            up: true,
        }],
        handoff: Some(HandoffStatus {
            connections: 5_012,
            owners: 5_013,
            commands: [("ch_nic_handoff".to_owned(), 5_014)].into(),
            refused: [(
                "ch_nic_handoff".to_owned(),
                [("mss_unlike".to_owned(), 5_015)].into(),
            )]
            .into(),
            malformed: 5_016,
        }),
        announced: vec![AnnouncedStatus {
            address: "10.1.0.3".into(),
            interface: "eth0".into(),
            state: "announced".into(),
        }],
        device,
        front: None,
        kernel: Some(fairlead_bpf_loader::Counters {
            kernel: KernelCounters {
                to_engine: 41,
                fins: 43,
                ..KernelCounters::default()
            },
            keys_anew: 5,
            map_bytes: [("fl_records".to_owned(), 16 << 20)].into(),
            lookups: vec![
                FlowLookups::default(),
                FlowLookups {
                    hits: 71,
                    misses: 72,
                    migrations: 73,
                    ..FlowLookups::default()
                },
            ],
            ..Default::default()
        }),
        tcb_cache: None,
    }
}

fn serve() -> (AdminServer, Arc<Shared>) {
    let shared = Arc::new(Shared::new(identity()));
    let server = start("127.0.0.1:0".parse().unwrap(), Arc::clone(&shared), None).unwrap();
    (server, shared)
}

/// Sends `request` as it is and returns the whole answer.
fn exchange(server: &AdminServer, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // What is refused half way may be reset while the rest is still being sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Status code, head and body of a page.
fn get(server: &AdminServer, path: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answer = exchange(server, request.as_bytes());
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn health_says_whether_connections_are_taken() {
    let (server, shared) = serve();
    let (code, _, body) = get(&server, "/healthz");
    assert_eq!((code, body.as_str()), (503, "starting"));
    for path in ["/metrics", "/status"] {
        assert_eq!(get(&server, path).0, 503, "{path}");
    }
    shared.publish(counters());
    let (code, head, body) = get(&server, "/healthz");
    assert_eq!((code, body.as_str()), (200, "ok"));
    assert!(head.contains("content-type: text/plain"), "{head}");
    let mut draining = counters();
    draining.switch.draining = true;
    shared.publish(draining);
    let (code, _, body) = get(&server, "/healthz");
    assert_eq!((code, body.as_str()), (503, "draining"));
}

#[test]
fn status_is_the_snapshot_and_who_runs() {
    let (server, shared) = serve();
    shared.publish(counters());
    let (code, head, body) = get(&server, "/status");
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(document["instance"], "edge");
    assert_eq!(document["version"], "1.2.3");
    assert_eq!(document["mode"], "engine");
    assert_eq!(document["device"], "fairlead0");
    assert_eq!(document["health"], "ok");
    assert_eq!(document["draining"], false);
    assert_eq!(document["rx_packets"], 1_001);
    let switch = snapshot();
    for (counter, value) in switch.counters.values() {
        assert_eq!(document[counter.name], value, "{}", counter.name);
    }
    let finished = switch
        .ended
        .iter()
        .find(|(end, _)| end.name() == "finished");
    assert_eq!(document["ended"]["finished"], finished.unwrap().1);
    assert_eq!(document["drops"]["truncated"], 1);
    assert_eq!(
        document["drops"].as_object().unwrap().len(),
        DropReason::ALL.len()
    );
    assert_eq!(document["services"][0]["routes"][1]["name"], "#2");
    let servers = &document["pools"][0]["servers"];
    assert_eq!(servers[0]["offers"]["window_scale"], 9);
    assert_eq!(servers[1]["endpoint"], "[2001:db8::1]:80");
    assert_eq!(servers[1]["state"], "down");
    assert_eq!(servers[2]["offers"], Value::Null);
    assert_eq!(document["device_use"]["rx"]["packets"], 20_001);
    assert_eq!(document["device_use"]["tx"]["by_size"][9], 20_028);
    assert_eq!(document["device_use"]["tx_unsendable"], 20_034);
    assert_eq!(document["device_queue_dropped"], 5_005);
    assert_eq!(document["log_lines_lost"], 20_035);
    assert_eq!(document["reloads_refused"], 5_003);
    assert_eq!(document["orders_refused"], 5_004);
    assert_eq!(document["flow_table"], "tcb-cache");
    assert_eq!(document["kernel"]["lookups"][1]["migrations"], 73);
    // What is published later is what is shown later.
    let mut later = counters();
    later.switch.live = 77;
    shared.publish(later);
    let status: Status = serde_json::from_str(&get(&server, "/status").2).unwrap();
    assert_eq!(status.live, 77);
}

/// A page of OpenMetrics text, read strictly: types by family, values by series.
struct Metrics {
    types: BTreeMap<String, String>,
    values: BTreeMap<String, f64>,
}

impl Metrics {
    fn read(page: &str) -> Self {
        let mut metrics = Self {
            types: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        let mut lines = page.lines();
        assert_eq!(lines.next_back(), Some("# EOF"));
        assert!(page.ends_with("# EOF\n"));
        let mut family = String::new();
        for line in lines {
            if let Some(comment) = line.strip_prefix("# ") {
                let (word, rest) = comment.split_once(' ').unwrap();
                let (name, text) = rest.split_once(' ').unwrap();
                match word {
                    "TYPE" => {
                        assert!(metrics.types.insert(name.into(), text.into()).is_none());
                        name.clone_into(&mut family);
                    }
                    "HELP" => assert!(text.ends_with('.'), "{line}"),
                    "UNIT" => {}
                    other => panic!("{other}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffixes: &[&str] = match metrics.types[&family].as_str() {
                "counter" => &["_total"],
                "info" => &["_info"],
                "gauge" => &[""],
                "histogram" => &["_sum", "_count", "_bucket"],
                other => panic!("{other}"),
            };
            let suffix = name.strip_prefix(&family);
            assert!(
                suffix.is_some_and(|one| suffixes.contains(&one)),
                "{line} is not of its family"
            );
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(
                metrics.values.insert(series.into(), value).is_none(),
                "{series} twice"
            );
        }
        metrics
    }

    fn value(&self, series: &str) -> f64 {
        *self
            .values
            .get(series)
            .unwrap_or_else(|| panic!("no {series}"))
    }
}

#[test]
fn metrics_are_openmetrics_and_name_every_reason() {
    let (server, shared) = serve();
    shared.publish(counters());
    let (code, head, body) = get(&server, "/metrics");
    assert_eq!(code, 200);
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    let metrics = Metrics::read(&body);
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        let series = format!("fairlead_drops_total{{reason=\"{}\"}}", reason.name());
        assert_eq!(metrics.value(&series), (index + 1) as f64);
    }
    for end in End::ALL {
        metrics.value(&format!("fairlead_ended_total{{end=\"{}\"}}", end.name()));
    }
    assert_eq!(
        metrics.value("fairlead_packets_total{direction=\"rx\"}"),
        1_001.0
    );
    assert_eq!(
        metrics.value("fairlead_bytes_total{direction=\"tx\"}"),
        1_004.0
    );
    assert_eq!(metrics.types["fairlead_live"], "gauge");
    let device = |series: &str| metrics.value(&format!("fairlead_device_{series}"));
    assert_eq!(device("packets_total{direction=\"tx\"}"), 20_015.0);
    let sizes = |tx, limit| {
        let direction = if tx { "tx" } else { "rx" };
        device(&format!(
            "packets_by_size_total{{direction=\"{direction}\",up_to_bytes=\"{limit}\"}}"
        ))
    };
    assert_eq!(
        (sizes(false, "128"), sizes(false, "+Inf")),
        (20_005.0, 20_014.0)
    );
    assert_eq!(sizes(true, "32768"), 20_027.0);
    assert_eq!(
        device("failures_total{direction=\"tx\",why=\"no_room\"}"),
        20_031.0
    );
    assert_eq!(device("queue_dropped_total"), 5_005.0);
    assert_eq!(metrics.value("fairlead_log_lines_lost_total"), 20_035.0);
    assert_eq!(metrics.value("fairlead_reloads_refused_total"), 5_003.0);
    assert_eq!(metrics.value("fairlead_orders_refused_total"), 5_004.0);
    assert_eq!(metrics.value("fairlead_kernel_to_engine_total"), 41.0);
    assert_eq!(metrics.value("fairlead_kernel_fins_total"), 43.0);
    let lookups = |what: &str| metrics.value(&format!("fairlead_flow_table_{what}"));
    assert_eq!(lookups("reinserted_keys_total"), 5.0);
    assert_eq!(lookups("hits_total{cpu=\"1\"}"), 71.0);
    assert_eq!(lookups("misses_total{cpu=\"1\"}"), 72.0);
    assert_eq!(lookups("migrations_total{cpu=\"0\"}"), 0.0);
    assert_eq!(
        metrics.value(
            "fairlead_instance_info{name=\"edge\",version=\"1.2.3\",mode=\"engine\",\
             device=\"fairlead0\"}"
        ),
        1.0
    );
    let route = "{service=\"web\",route=\"#2\",pool=\"images\"}";
    assert_eq!(
        metrics.value(&format!("fairlead_decisions_total{route}")),
        snapshot().services[0].routes[1].decisions as f64
    );
    let server_series = |name: &str, server: &str| {
        format!("fairlead_server_{name}{{pool=\"images\",server=\"{server}\"}}")
    };
    assert_eq!(
        metrics.value(&server_series("active", "10.2.0.1:8081")),
        5_000.0
    );
    assert_eq!(
        metrics.value(&server_series("connections_total", "[2001:db8::1]:80")),
        6_001.0
    );
    assert_eq!(metrics.value(&server_series("up", "10.2.0.1:8081")), 1.0);
    let of_server = "pool=\"images\",server=\"10.2.0.1:8081\"";
    for (of, labels, base) in [
        ("service", "service=\"web\"", 1.0),
        ("server", of_server, 5_000.0),
    ] {
        let bytes = |direction: &str| format!("{{{labels},direction=\"{direction}\"}}");
        let value = |rest: String| metrics.value(&format!("fairlead_{of}_{rest}"));
        assert_eq!(value(format!("bytes_total{}", bytes("in"))), base + 3.0);
        assert_eq!(value(format!("bytes_total{}", bytes("out"))), base + 4.0);
        let lived = |rest: String| value(format!("connection_seconds_{rest}"));
        assert_eq!(lived(format!("sum{{{labels}}}")), (base + 5.0) / 1e3);
        assert_eq!(lived(format!("count{{{labels}}}")), base + 8.0);
        for (limit, connections) in [("0.01", 6.0), ("3600.0", 6.0), ("+Inf", 8.0)] {
            let class = format!("bucket{{le=\"{limit}\",{labels}}}");
            assert_eq!(lived(class), base + connections, "{limit}");
        }
    }
    assert_eq!(metrics.value(&server_series("up", "[2001:db8::1]:80")), 0.0);
    assert!(
        !metrics
            .values
            .contains_key(&server_series("up", "10.2.0.3:80"))
    );
    assert_eq!(
        metrics.value(&server_series("mss_bytes", "10.2.0.1:8081")),
        1_460.0
    );
}

#[test]
fn every_number_of_the_status_is_a_metric() {
    fn numbers(value: &Value, path: &str, out: &mut Vec<(String, f64)>) {
        match value {
            Value::Object(fields) => {
                fields
                    .iter()
                    .for_each(|(name, value)| numbers(value, &format!("{path}.{name}"), out));
            }
            Value::Array(items) => {
                items.iter().for_each(|item| numbers(item, path, out));
            }
            Value::Number(number) => out.push((path.to_owned(), number.as_f64().unwrap())),
            _ => {}
        }
    }
    let (server, shared) = serve();
    shared.publish(counters());
    let status: Value = serde_json::from_str(&get(&server, "/status").2).unwrap();
    let metrics = Metrics::read(&get(&server, "/metrics").2);
    let mut all = Vec::new();
    numbers(&status, "", &mut all);
    assert!(all.len() > 90, "{}", all.len());
    for (path, number) in all {
        let is_clock = path == ".age_ms" || path == ".uptime_s";
        // A class of the page has those of shorter connections, too: looked at by itself above.
        let is_class = path.ends_with(".by_duration");
        let number = match path.ends_with(".lived_ms") {
            true => number / 1e3,
            false => number,
        };
        assert!(
            is_clock || is_class || metrics.values.values().any(|&value| value == number),
            "{path} = {number} is no metric"
        );
    }
}

#[test]
fn other_pages_and_methods_are_refused() {
    let (server, shared) = serve();
    shared.publish(counters());
    let (code, _, body) = get(&server, "/");
    assert!(code == 200 && body.contains("/metrics"), "{body}");
    assert_eq!(get(&server, "/secret").0, 404);
    assert_eq!(get(&server, "/status/../healthz").0, 404);
    let post =
        b"POST /status HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nabcd";
    assert!(exchange(&server, post).starts_with("HTTP/1.1 405"));
    let head = b"HEAD /status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(&server, head);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn heads_that_are_too_large_or_no_heads_are_refused() {
    let (server, shared) = serve();
    shared.publish(counters());
    let long = format!(
        "GET /healthz HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(40_000)
    );
    assert!(exchange(&server, long.as_bytes()).starts_with("HTTP/1.1 431"));
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(200));
    assert!(exchange(&server, many.as_bytes()).starts_with("HTTP/1.1 431"));
    let uri = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "u".repeat(70_000));
    let answer = exchange(&server, uri.as_bytes());
    assert!(
        answer.starts_with("HTTP/1.1 414") || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    assert!(
        exchange(&server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            .starts_with("HTTP/1.1 400")
    );
    assert_eq!(get(&server, "/healthz").0, 200, "and it still answers");
}

#[test]
fn a_client_that_sends_nothing_holds_nobody_up_and_is_ended() {
    let (server, shared) = serve();
    shared.publish(counters());
    let mut silent = TcpStream::connect(server.address()).unwrap();
    let mut half = TcpStream::connect(server.address()).unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost:").unwrap();
    assert_eq!(get(&server, "/healthz").0, 200);
    let mut rest = Vec::new();
    for stream in [&mut silent, &mut half] {
        stream
            .set_read_timeout(Some(Duration::from_secs(15)))
            .unwrap();
        // Ended by the server: an orderly close or a reset, but not our own time limit.
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}

#[test]
fn many_clients_are_served_and_the_pages_end_with_their_owner() {
    let (server, shared) = serve();
    shared.publish(counters());
    let idle: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    for _ in 0..20 {
        assert_eq!(get(&server, "/metrics").0, 200);
    }
    let address = server.address();
    drop(server);
    assert!(
        TcpStream::connect(address).is_err(),
        "nobody listens any more"
    );
    drop(idle);
}

/// Asks for many pages with a small receive buffer, and reads none.
fn slow_reader(runtime: &tokio::runtime::Runtime, server: &AdminServer) -> TcpStream {
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2 << 10).unwrap();
        let stream = socket.connect(server.address()).await.unwrap();
        stream.into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
    (&stream).write_all(requests.as_bytes()).unwrap();
    stream
}

fn sockets() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().unwrap()
}

#[test]
fn slow_readers_shut_nobody_out() {
    let (server, shared) = serve();
    shared.publish(counters());
    let runtime = sockets();
    let slow: Vec<_> = (0..80).map(|_| slow_reader(&runtime, &server)).collect();
    for _ in 0..3 {
        // A switch that runs publishes all the time: what is old here would be called stalled.
        shared.publish(counters());
        let begun = Instant::now();
        let code = get(&server, "/healthz").0;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert_eq!(code, 200);
    }
    drop(slow);
}

#[test]
fn a_reader_that_takes_nothing_is_ended_in_a_few_seconds() {
    let (server, shared) = serve();
    shared.publish(counters());
    let mut slow = slow_reader(&sockets(), &server);
    let until = Instant::now() + Duration::from_secs(15);
    while slow.write_all(b"\r\n").is_ok() {
        assert!(Instant::now() < until, "it is still served");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_taken_address_is_an_error_at_once() {
    let (server, shared) = serve();
    let error = start(server.address(), shared, None).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn the_tcb_cache_is_on_both_pages_where_there_is_one() {
    let (server, shared) = serve();
    shared.publish(counters());
    assert!(!get(&server, "/metrics").2.contains("tcb_cache"));
    let mut counters = counters();
    counters.tcb_cache = Some(Report {
        scheme: "spec,bits=16".into(),
        counters: TcbCacheCounters {
            accesses: 31_000,
            hits: 21_000,
            migrations: 31_001,
            on_lines: 31_002,
            ..TcbCacheCounters::default()
        },
        hit_ratio: 0.6875,
        occupancy_mean: 1.5,
        sets_by_occupancy: vec![3, 2, 31_003],
    });
    shared.publish(counters);
    let document: Value = serde_json::from_str(&get(&server, "/status").2).unwrap();
    let cache = &document["tcb_cache"];
    assert_eq!(cache["hits"], 21_000);
    assert_eq!(cache["hit_ratio"], 0.6875);
    assert_eq!(cache["sets_by_occupancy"][2], 31_003);
    let metrics = Metrics::read(&get(&server, "/metrics").2);
    for (series, value) in [
        ("info{scheme=\"spec,bits=16\"}", 1.0),
        ("accesses_total", 31_000.0),
        ("hits_total", 21_000.0),
        ("hit_ratio", 0.6875),
        ("migrations_total", 31_001.0),
        ("on_lines", 31_002.0),
        ("set_occupancy_mean", 1.5),
        ("sets{occupied=\"0\"}", 3.0),
        ("sets{occupied=\"2\"}", 31_003.0),
    ] {
        let series = format!("fairlead_tcb_cache_{series}");
        assert_eq!(metrics.value(&series), value, "{series}");
    }
}
