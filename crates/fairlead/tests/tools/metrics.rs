//! `docs/metrics.md`: every metric of `/metrics`, as the program has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use fairlead::admin::{
    AnnouncedStatus, Counters, FastPathState, HandoffStatus, Identity, InterfaceStatus,
    ListenerStatus, Published, Shared, Status, metrics,
};
use fairlead_bpf_loader::FlowLookups;
use fairlead_datapath::tcb_cache::Report;
use fairlead_datapath::{Admin, Offers, ServerState, Snapshot, Unavailable};
use fairlead_splice::carried::Carried;
use fairlead_splice::snapshot::{PoolSnapshot, RouteSnapshot, ServerSnapshot, ServiceSnapshot};
use serde_json::Value;

const PATH: &str = "docs/metrics.md";

const OPENING: &str = "# Metrics

Everything on the admin page `/metrics`, in OpenMetrics text format. The key `admin` in
[`[instance]`](configuration.md#instance-the-process) sets the address. Counters end in `_total` and
start at 0 with the process and with each reload. A unit is part of the name (`bytes`, `seconds`).
`/status` has the same numbers as JSON.
[examples/alerts.yml](../examples/alerts.yml) has alerting rules for Prometheus,
[examples/grafana.json](../examples/grafana.json) a dashboard for Grafana.

Generated from the tables of counters in the source; after a change there:
`UPDATE=1 cargo test -p fairlead --test tools metrics`.
";

/// What a page has, and when: title, what is said below it, and whether it takes the kernel program
/// and the TCB cache.
const SECTIONS: [(&str, &str, bool, bool); 3] = [
    (
        "Always",
        "`fairlead_server_up` has no series for a server before its first probe; the four metrics of
its TCP options have none before its first answer. `fairlead_handoff_…` are there with
`adopt_socket`, `fairlead_host_listener_up` with `treatment = \"host\"` in the kernel.",
        false,
        false,
    ),
    (
        "With the fast path in the kernel",
        "Absent with `mode = \"engine\"` and where the kernel fast path is not available. Packets,
bytes, SYNs and drops counted here are included in the metrics above. With `flow_table = \"hash\"`,
`fairlead_flow_table_hits_total` is the only lookup counter that moves.",
        true,
        false,
    ),
    (
        "With a TCB cache",
        "Only with `enabled = true` in \
[`[tcb_cache]`](configuration.md#tcb_cache-a-small-cache-in-front-of-the-connection-table).
A line is ON for `on_time` after its last packet.",
        false,
        true,
    ),
];

/// Every label, whether its values are the same in every configuration, and what it says.
const LABELS: [(&str, bool, &str); 29] = [
    (
        "address",
        false,
        "a listening address in a subnet of an interface",
    ),
    (
        "change",
        true,
        "what became of an object of a cache; `restored` and `not_restored`: those of the process \
         before",
    ),
    (
        "command",
        false,
        "a [command](handoff.md#the-twelve-commands) of connection handoff",
    ),
    ("cpu", false, "the CPU, numbered from 0"),
    (
        "device",
        false,
        "the switch's device: `device` in `[network]`",
    ),
    (
        "direction",
        true,
        "`rx` and `tx`: received and sent; for the device, read and written. `in` and `out`: \
         payload from clients to servers and from servers to clients",
    ),
    (
        "end",
        true,
        "how a spliced connection ended: `aborted` by the operator; `replaced` by a new one \
         from the same address and port; `preamble_unacked`: the server did not acknowledge what \
         the switch sent it first. How a request ended that was routed by itself: see \
         [Requests routed one by one](per-request.md)",
    ),
    (
        "interface",
        false,
        "an interface of the fast path, derived or named in `[fastpath]`",
    ),
    ("le", true, "upper bound of a histogram bucket, seconds"),
    (
        "list",
        false,
        "an access list, by its name; a service without one has no series",
    ),
    (
        "listener",
        false,
        "a listening socket of this machine: `listener` of a route with `treatment = \"host\"`",
    ),
    (
        "map",
        false,
        "a map of the kernel program, by its name in `bpf/`",
    ),
    ("mode", false, "`mode` in `[fastpath]`, as configured"),
    ("name", false, "the instance: `name` in `[instance]`"),
    ("occupied", false, "number of lines of a set in use"),
    ("pool", false, "a pool, by its name"),
    (
        "reason",
        false,
        "a [drop reason](reasons.md); of handoff, a [refusal](handoff.md#why-a-pair-is-refused); \
         of sleepers, `layout`, `route` or `room`; of caches, as in `Cache-Status`",
    ),
    (
        "result",
        true,
        "what a cache did for a request: `stale` was sent while it was validated, `stale_on_error` \
         because the server failed, `passed` had no part in the cache",
    ),
    (
        "route",
        false,
        "a route, by its name, or its number in the service (`#1`)",
    ),
    (
        "scheme",
        false,
        "the scheme of the TCB cache, and what differs from its name's defaults",
    ),
    ("server", false, "a server's address and port"),
    ("service", false, "a service, by its name"),
    ("side", true, "whose connection it is"),
    ("status", true, "the first digit of an HTTP status"),
    (
        "up_to_bytes",
        true,
        "the longest packet of a class of lengths; not cumulative",
    ),
    ("version", false, "the program's version"),
    (
        "way",
        false,
        "`xdp`, `tc`, `xdp-generic`, or `engine` alone",
    ),
    (
        "why",
        true,
        "on reading: a packet that contradicts its device header; on writing: no memory or room, \
         device down, refused as malformed, or not representable in the device header",
    ),
    (
        "would_be",
        true,
        "the route that a later request would take as a first one, or `unmatched`",
    ),
];

/// A page's counters, every place in it taken.
fn counters(kernel: bool, tcb_cache: bool) -> Counters {
    let route = RouteSnapshot {
        name: "#1".into(),
        pool: "pages".into(),
        decisions: 0,
        requests: 1,
        later_requests: [("unmatched".to_owned(), 0)].into(),
    };
    let server = ServerSnapshot {
        endpoint: "10.2.0.1:80"
            .parse::<std::net::SocketAddr>()
            .unwrap()
            .into(),
        weight: 1,
        active: 0,
        total: 0,
        failures: 0,
        carried: Carried::default(),
        state: ServerState::Up,
        offers: Some(Offers {
            mss: 1_460,
            window_scale: Some(7),
            sack: true,
            timestamps: true,
        }),
        admin: Admin::Ready,
        check: Some(true),
        unavailable: Some(Unavailable::NoWeight),
        weight_eighths: 8,
        backup: false,
        ejections: 0,
    };
    let cache = Report {
        scheme: "spec".into(),
        sets_by_occupancy: vec![0, 0],
        ..Report::default()
    };
    Counters {
        switch: Snapshot {
            services: vec![ServiceSnapshot {
                name: "web".into(),
                denied: vec![("office".into(), 1)],
                routes: vec![route],
                ..ServiceSnapshot::default()
            }],
            pools: vec![PoolSnapshot {
                name: "pages".into(),
                servers: vec![server],
            }],
            ..Snapshot::default()
        },
        announced: vec![AnnouncedStatus {
            address: "10.1.0.3".into(),
            interface: "eth0".into(),
            state: "announced".into(),
        }],
        listeners: vec![ListenerStatus {
            listener: "127.0.0.1:8080".into(),
            up: true,
        }],
        handoff: Some(HandoffStatus {
            connections: 1,
            owners: 1,
            commands: [("ch_nic_handoff".to_owned(), 1)].into(),
            refused: [(
                "ch_nic_handoff".to_owned(),
                [("mss_unlike".to_owned(), 1)].into(),
            )]
            .into(),
            malformed: 0,
        }),
        kernel: kernel.then(|| fairlead_bpf_loader::Counters {
            map_bytes: [("fl_records".to_owned(), 64 << 20)].into(),
            lookups: vec![FlowLookups::default()],
            ..Default::default()
        }),
        front: Some(fairlead_http_front::Counts {
            caches: vec![fairlead_http_front::CacheView::default()],
            ..Default::default()
        }),
        tcb_cache: tcb_cache.then_some(cache),
        ..Counters::default()
    }
}

fn status(kernel: bool, tcb_cache: bool) -> Status {
    let shared = Shared::new(Identity {
        instance: "edge".into(),
        version: "1.2.3".into(),
        mode: "auto".into(),
        fast_path: FastPathState {
            way: if kernel { "tc" } else { "engine" }.into(),
            told: String::new(),
            interfaces: match kernel {
                true => [("eth0", true), ("eth1", false)]
                    .map(|(name, served)| InterfaceStatus {
                        name: name.into(),
                        served,
                    })
                    .to_vec(),
                false => Vec::new(),
            },
        },
        flow_table: "hash".into(),
        device: "fairlead0".into(),
    });
    let published = Published {
        counters: counters(kernel, tcb_cache),
        at: Instant::now(),
    };
    Status::of(&shared, &published)
}

/// One metric of a page.
pub(super) struct Family {
    /// The name of its series.
    pub(super) name: String,
    pub(super) kind: String,
    help: String,
    /// In the order of the page, each with the values that it has there.
    pub(super) labels: Vec<(String, Vec<String>)>,
}

/// The labels of a series, in their order. No value of this page has a quotation mark in it.
fn labels(series: &str) -> Vec<(&str, &str)> {
    let Some((_, inside)) = series.trim_end_matches('}').split_once('{') else {
        return Vec::new();
    };
    let pairs = inside.split("\",");
    pairs
        .map(|pair| pair.trim_end_matches('"').split_once("=\"").unwrap())
        .collect()
}

pub(super) fn families(kernel: bool, tcb_cache: bool) -> Vec<Family> {
    let page = metrics(status(kernel, tcb_cache)).unwrap();
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            families.push(Family {
                name: String::new(),
                kind: String::new(),
                help: rest.split_once(' ').unwrap().1.to_owned(),
                labels: Vec::new(),
            });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            rest.split_once(' ')
                .unwrap()
                .1
                .clone_into(&mut families.last_mut().unwrap().kind);
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let family = families.last_mut().unwrap();
            let mut name = series.split('{').next().unwrap();
            if family.kind == "histogram" {
                name = name.rsplit_once('_').unwrap().0; // `_sum`, `_count` and `_bucket`
            }
            name.clone_into(&mut family.name);
            for (label, value) in labels(series) {
                let known = family.labels.iter_mut().find(|(name, _)| name == label);
                match known {
                    Some((_, values)) if values.iter().any(|one| one == value) => {}
                    Some((_, values)) => values.push(value.to_owned()),
                    None => family
                        .labels
                        .push((label.to_owned(), vec![value.to_owned()])),
                }
            }
        }
    }
    for family in &families {
        let told = !family.name.is_empty() && !family.kind.is_empty();
        assert!(told, "of no series or no type: {}", family.help);
    }
    families
}

fn table(text: &mut String, families: &[Family]) {
    *text += "| name | type | labels | meaning |\n|---|---|---|---|\n";
    for family in families {
        let labels: Vec<String> = family
            .labels
            .iter()
            .map(|(label, _)| format!("`{label}`"))
            .collect();
        writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            family.name,
            family.kind,
            labels.join(", "),
            family.help.replace('|', "\\|")
        )
        .unwrap();
    }
}

fn label_table(text: &mut String, families: &[Family]) {
    let mut seen: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (label, values) in families.iter().flat_map(|family| &family.labels) {
        let known = seen.entry(label).or_default();
        for value in values {
            if !known.contains(&value.as_str()) {
                known.push(value);
            }
        }
    }
    let described: Vec<&str> = LABELS.iter().map(|(label, ..)| *label).collect();
    let all: Vec<&str> = seen.keys().copied().collect();
    assert_eq!(
        all, described,
        "the labels, and those that LABELS describes"
    );
    *text += "\n## Labels\n\n| label | values | meaning |\n|---|---|---|\n";
    for (label, is_fixed, meaning) in LABELS {
        let values = if is_fixed { &seen[label][..] } else { &[] };
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        writeln!(text, "| `{label}` | {} | {meaning} |", values.join(", ")).unwrap();
    }
}

fn text() -> String {
    let mut text = OPENING.to_owned();
    let mut documented = BTreeSet::new();
    for (title, when, kernel, tcb_cache) in SECTIONS {
        let mut families = families(kernel, tcb_cache);
        families.retain(|family| documented.insert(family.name.clone()));
        write!(text, "\n## {title}\n\n{when}\n\n").unwrap();
        table(&mut text, &families);
    }
    let whole = families(true, true);
    let names: BTreeSet<String> = whole.iter().map(|family| family.name.clone()).collect();
    assert_eq!(names, documented, "all metrics, and those of the sections");
    label_table(&mut text, &whole);
    text
}

/// Where something is missing or empty, it may bring metrics of its own when it is there.
fn empty_places(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields
            .iter()
            .for_each(|(name, value)| empty_places(value, &format!("{path}.{name}"), out)),
        Value::Array(items) if !items.is_empty() => {
            items.iter().for_each(|item| empty_places(item, path, out));
        }
        Value::Object(_) | Value::Array(_) | Value::Null => out.push(path.to_owned()),
        _ => {}
    }
}

#[test]
fn the_whole_page_has_all_that_there_can_be() {
    let document = serde_json::to_value(status(true, true)).unwrap();
    let mut empty = Vec::new();
    empty_places(&document, "", &mut empty);
    assert_eq!(empty, Vec::<String>::new(), "not in this test's page");
}

#[test]
fn metrics_are_documented() {
    let expected = text();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join(PATH);
    if std::fs::read_to_string(&path).is_ok_and(|found| found == expected) {
        return;
    }
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    panic!("{PATH} is not up to date: UPDATE=1 cargo test -p fairlead --test tools metrics");
}
