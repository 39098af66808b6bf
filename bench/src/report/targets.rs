//! The targets that were set before the measurements. A row that misses its target is marked.

/// Targets of one row of `peers`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) kind: &'static str,
    pub(crate) size: &'static str,
    /// Requests/s as a share of the best peer's, at least.
    pub(crate) best_peer: f64,
    /// Requests/s as a share of plain forwarding's, at least.
    pub(crate) direct: f64,
    /// Processor time above forwarding as a share of the cheapest peer's, at most.
    pub(crate) cost: f64,
}

/// The targets of `peers` and `cost`.
pub(crate) const PEERS: [Target; 6] = [
    target("connection per request", "1KiB", 0.95, 0.93, 0.20),
    target("connection per request", "64KiB", 0.90, 1.00, 0.10),
    target("connection per request", "1MiB", 1.10, 1.00, 0.10),
    target("keep-alive", "1KiB", 1.40, 0.95, 0.10),
    target("keep-alive", "64KiB", 1.60, 0.95, 0.10),
    target("keep-alive", "1MiB", 1.80, 0.95, 0.10),
];

/// Requests/s of the unpaced client under a flood, as a share of those beside the same flood when
/// it is dropped before the switch, at least.
pub(crate) const FLOOD_CLIENT: f64 = 0.70;

/// Spliced packets a second in memory with 1,000 and with 1,000,000 connections, at least.
pub(crate) const SPLICE_RATE: [(u64, f64); 2] = [(1_000, 10e6), (1_000_000, 4e6)];

/// SYN-ACKs a second in memory, at least.
pub(crate) const SYN_ACK_RATE: f64 = 1e6;

/// Bytes for each spliced connection, at most.
pub(crate) const CONNECTION_BYTES: f64 = 256.0;

const fn target(
    kind: &'static str,
    size: &'static str,
    best_peer: f64,
    direct: f64,
    cost: f64,
) -> Target {
    Target {
        kind,
        size,
        best_peer,
        direct,
        cost,
    }
}

/// The targets of the row with this kind and size.
pub(crate) fn of(kind: &str, size: &str) -> Option<Target> {
    PEERS
        .into_iter()
        .find(|target| target.kind == kind && target.size == size)
}

/// One row of the laboratory's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lab {
    pub(crate) what: &'static str,
    /// Where the record has `per_second` and `times_the_peer`.
    pub(crate) pointer: &'static str,
    /// Times libCacheSim's LRU, or another case's rate, at least.
    pub(crate) times: Option<f64>,
    /// Accesses or lines a second, at least.
    pub(crate) rate: Option<f64>,
}

/// The rows of the laboratory.
pub(crate) const LAB: [Lab; 15] = [
    lab(
        "512 lines, `2-lru`",
        "/one_configuration/512/2-lru",
        Some(10.0),
    ),
    lab(
        "512 lines, `2-universal`",
        "/one_configuration/512/2-universal",
        Some(10.0),
    ),
    lab(
        "512 lines, `spec`",
        "/one_configuration/512/spec",
        Some(5.0),
    ),
    lab(
        "512 lines, `tide`",
        "/one_configuration/512/tide",
        Some(5.0),
    ),
    lab(
        "8,192 lines, `2-lru`",
        "/one_configuration/8192/2-lru",
        Some(10.0),
    ),
    lab(
        "8,192 lines, `2-universal`",
        "/one_configuration/8192/2-universal",
        Some(10.0),
    ),
    lab(
        "8,192 lines, `spec`",
        "/one_configuration/8192/spec",
        Some(5.0),
    ),
    lab(
        "8,192 lines, `tide`",
        "/one_configuration/8192/tide",
        Some(5.0),
    ),
    lab(
        "20 LRU caches at once (one index, 5 ways × 4 sizes)",
        "/many_configurations/one core/LRU family, one core",
        Some(25.0),
    ),
    lab(
        "8 caches with two hashes at once",
        "/many_configurations/one core/2-lru and 2-universal, one core",
        None,
    ),
    lab(
        "24 caches of all kinds at once",
        "/many_configurations/one core/mixed plan, one core",
        Some(10.0),
    ),
    lab(
        "the same on 2 threads, against 1",
        "/many_configurations/all cores/mixed plan, 2 threads",
        None,
    ),
    reading("reading the laboratory's own files", "/reading/lab", 30e6),
    reading("reading `oracleGeneral`", "/reading/oracleGeneral", 30e6),
    reading(
        "reading common log format, lines",
        "/reading/common log format",
        3e6,
    ),
];

const fn lab(what: &'static str, pointer: &'static str, times: Option<f64>) -> Lab {
    Lab {
        what,
        pointer,
        times,
        rate: None,
    }
}

const fn reading(what: &'static str, pointer: &'static str, rate: f64) -> Lab {
    Lab {
        what,
        pointer,
        times: None,
        rate: Some(rate),
    }
}
