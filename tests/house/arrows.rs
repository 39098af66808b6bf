//! Who may import whom.
//!
//! `base → wire → tcp → splice → datapath → { sim } and { fairlead }`;
//! `base → cache → tcbcache → datapath`, `tcp → tcbcache`.
//! `base → netio → driver-* → fairlead`. Organs never import each other; they meet in `datapath`.
//! `base → trace → workload → lab`; `cache → content → lab, fairlead`;
//! `content, wire → http-cache`;
//! `http-cache, splice → http-front`.

use crate::metadata::{Dependency, Kind, Package, packages};
use crate::{CORE, report};

/// A room, and what it may import.
struct Room {
    name: &'static str,
    /// Rooms of ours.
    rooms: &'static [&'static str],
    /// Rooms of ours for its tests.
    for_tests: &'static [&'static str],
    /// Crates of others; `None` where that is not ruled. A core room grows by a line here, with a
    /// reason that the crate brings neither clock nor socket nor thread.
    others: Option<&'static [&'static str]>,
}

const ORGANS_AND_TCB_CACHE: &[&str] = &["base", "wire", "tcp", "tcbcache", "splice"];
const EVERYTHING_BUT_TESTKIT: &[&str] = &[
    "base",
    "announce",
    "wire",
    "tcp",
    "splice",
    "datapath",
    "netio",
    "bpf-loader",
    "driver-tun",
    "driver-pcap",
    "netns",
    "os-memory",
    "survey",
    "sim",
    "trace",
    "workload",
    "fairlead",
];

/// Every package of the workspace.
const ROOMS: &[Room] = &[
    core("base", &[], &["siphasher"]),
    // A tokeniser: bytes in, slices out.
    core("wire", &["base"], &["httparse", "siphasher"]),
    // A derive for errors; vectors, and the choice between instruction sets when it runs.
    core("cache", &["base"], &["thiserror", "fearless_simd"]),
    // The content cache; queues and bounds are those of the TCB cache.
    core("content", &["base", "cache"], &[]),
    // A keyed hash.
    core("http-cache", &["base", "wire", "content"], &["siphasher"]),
    core("announce", &["base", "wire"], &[]),
    core("check", &["base"], &[]),
    Room {
        // Seeded chance.
        for_tests: &["base"],
        ..core("handoff", &[], &[])
    },
    core("offload", &["handoff"], &[]),
    // A keyed hash.
    core("tcp", &["base", "wire"], &["siphasher"]),
    // Expressions of linear time; a keyed hash; a derive for errors.
    core(
        "splice",
        &["base", "check", "wire", "tcp"],
        &["regex", "siphasher", "thiserror"],
    ),
    // Heads of responses.
    core(
        "http-front",
        &["base", "wire", "splice", "http-cache"],
        &["httparse"],
    ),
    core("tcbcache", &["base", "wire", "cache", "tcp"], &[]),
    Room {
        // Its tests compare with the lab's simulation.
        for_tests: &["cache"],
        ..core("datapath", ORGANS_AND_TCB_CACHE, &[])
    },
    core("netio", &["base"], &[]),
    // A sans-IO TCP stack for simulated hosts.
    core(
        "sim",
        &["base", "wire", "tcp", "splice", "datapath", "netio"],
        &["smoltcp"],
    ),
    core("testkit", &["base", "tcp", "wire"], &[]),
    // Readers of captures (below), checksums, unpacking, search for bytes; derives, and the text of
    // a header.
    Room {
        // To report skipped tests.
        for_tests: &["netns"],
        ..core(
            "trace",
            &["base", "wire", "driver-pcap"],
            &[
                "crc32fast",
                "flate2",
                "memchr",
                "serde",
                "serde_json",
                "thiserror",
                "zstd",
            ],
        )
    },
    // Derives.
    core("workload", &["base", "trace"], &["serde", "thiserror"]),
    // For its tests, messages as routers send them.
    edge("driver-tun", &["base", "netio"], &["netns", "wire"]),
    edge("driver-pcap", &["base", "netio"], &[]),
    edge("netns", &["base"], &[]),
    // The store of the HTTP cache.
    edge("os-memory", &["http-cache"], &["base", "netns"]),
    edge("client", &["handoff", "os-tcp"], &["netns"]),
    edge("os-tcp", &["base", "tcp"], &["netns"]),
    // Offload: what the card and the library need of the system; the card; the library.
    edge("os-ring", &["offload"], &[]),
    edge(
        "card",
        &[
            "base",
            "bpf-loader",
            "handoff",
            "netns",
            "offload",
            "os-ring",
            "os-tcp",
        ],
        &[],
    ),
    edge("bypass", &["handoff", "offload", "os-ring", "os-tcp"], &[]),
    edge("survey", &[], &["netns"]),
    // The kernel's TCB cache is made from the cache's index functions. Its tests hold the kernel
    // program to the engine's own translation, and to the cache.
    edge(
        "bpf-loader",
        &["base", "wire", "cache", "tcp"],
        &["netns", "splice", "testkit"],
    ),
    // The simulation is what the demonstration falls back to where it may not use the network.
    edge(
        "fairlead",
        &[
            "base",
            "announce",
            "check",
            // The front hands connections off to its own switch.
            "client",
            "wire",
            "tcp",
            "splice",
            "datapath",
            "netio",
            "bpf-loader",
            "card",
            "driver-tun",
            "driver-pcap",
            "netns",
            "handoff",
            "http-cache",
            "content",
            "http-front",
            "os-memory",
            "os-tcp",
            "survey",
            "sim",
            "lab",
        ],
        // Traces of references are made by hand.
        &["trace"],
    ),
    // Threads for sweeps, files for traces and results; no unsafe code (its lib.rs forbids it).
    // For its tests, reports of skipped tests.
    edge(
        "lab",
        &["base", "cache", "content", "trace", "workload"],
        &["netns"],
    ),
    // Workloads that the lab traces, as programs of their own.
    edge("stacks", &["base", "wire", "datapath"], &[]),
    // The Python package; it computes nothing itself.
    edge(
        "lab-python",
        &["base", "cache", "content", "trace", "workload", "lab"],
        &[],
    ),
    edge("bench", EVERYTHING_BUT_TESTKIT, &[]),
    edge("e2e", EVERYTHING_BUT_TESTKIT, &[]),
    // Never shipped: the twins of `testkit` are its oracles.
    edge(
        "fuzz",
        &[
            "base",
            "card",
            "wire",
            "tcp",
            "splice",
            "datapath",
            "netio",
            "driver-pcap",
            "content",
            "handoff",
            "http-cache",
            "http-front",
            "offload",
            "testkit",
            "trace",
            "announce",
            "fairlead",
        ],
        &[],
    ),
    edge("house", &["base"], &[]),
];

/// Arrows from the core to rooms that are not of it, and why.
const OUT_OF_THE_CORE: [(&str, &str, &str); 1] = [(
    "trace",
    "driver-pcap",
    "reads captures from any reader; files are opened by whoever calls",
)];

const fn core(
    name: &'static str,
    rooms: &'static [&'static str],
    others: &'static [&'static str],
) -> Room {
    Room {
        name,
        rooms,
        for_tests: &[],
        others: Some(others),
    }
}

const fn edge(
    name: &'static str,
    rooms: &'static [&'static str],
    for_tests: &'static [&'static str],
) -> Room {
    Room {
        name,
        rooms,
        for_tests,
        others: None,
    }
}

/// The room of a package's name; `None` for others' crates.
fn room_name(package: &str) -> Option<&str> {
    if package == "fairlead" {
        return Some("fairlead");
    }
    package.strip_prefix("fairlead-")
}

fn check(package: &Package, room: &Room) -> Vec<String> {
    let mut complaints = Vec::new();
    for Dependency { name, kind } in &package.dependencies {
        let for_tests = *kind == Kind::Dev;
        let Some(target) = room_name(name) else {
            let ruled = room.others.filter(|_| !for_tests);
            if ruled.is_some_and(|allowed| !allowed.contains(&name.as_str())) {
                complaints.push(format!(
                    "{} → {name}: not in its list of others' crates",
                    room.name
                ));
            }
            continue;
        };
        // Tests may look at whatever lies below, and at the kit that is made for them.
        let allowed = room.rooms.contains(&target)
            || for_tests && (target == "testkit" || room.for_tests.contains(&target));
        if !allowed {
            complaints.push(format!(
                "{} → {target}: no such arrow ({kind:?})",
                room.name
            ));
        }
    }
    complaints
}

#[test]
fn arrows_are_those_of_the_architecture() {
    let mut complaints = Vec::new();
    for package in packages().iter().filter(|package| package.is_ours()) {
        let name = room_name(&package.name).unwrap_or(&package.name);
        match ROOMS.iter().find(|room| room.name == name) {
            Some(room) => complaints.extend(check(package, room)),
            None => complaints.push(format!("{name}: give it a line in tests/house/arrows.rs")),
        }
        if package.description.is_none() {
            complaints.push(format!("{name}: Cargo.toml has no description"));
        }
    }
    report("who may import whom: tests/house/arrows.rs", &complaints);
}

#[test]
fn core_rooms_import_core_rooms_only() {
    for room in ROOMS.iter().filter(|room| CORE.contains(&room.name)) {
        assert!(
            room.others.is_some(),
            "{}: others' crates are not ruled",
            room.name
        );
        for target in room.rooms {
            let told = OUT_OF_THE_CORE
                .iter()
                .any(|(from, to, _)| *from == room.name && to == target);
            assert!(
                CORE.contains(target) || told,
                "{} → {target}: out of the core",
                room.name
            );
        }
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let package = |dependencies: Vec<(&str, Kind)>| Package {
        name: "fairlead-wire".into(),
        version: "0".into(),
        licence: None,
        source: None,
        description: Some("x".into()),
        dependencies: dependencies
            .into_iter()
            .map(|(name, kind)| Dependency {
                name: name.into(),
                kind,
            })
            .collect(),
    };
    let room = ROOMS.iter().find(|room| room.name == "wire").expect("wire");
    let wrong = package(vec![
        ("fairlead-base", Kind::Normal),
        ("fairlead-testkit", Kind::Normal),
        ("fairlead-splice", Kind::Dev),
        ("tokio", Kind::Normal),
        ("tokio", Kind::Dev),
    ]);
    assert_eq!(check(&wrong, room).len(), 3);
    let right = package(vec![
        ("fairlead-base", Kind::Normal),
        ("fairlead-testkit", Kind::Dev),
        ("httparse", Kind::Normal),
        ("proptest", Kind::Dev),
    ]);
    assert_eq!(check(&right, room), Vec::<String>::new());
}
