//! The keys of the file, section by section.

/// A kind of table in the file and the keys it takes.
#[derive(Debug)]
pub struct Table {
    /// As it is written, `[[service.route]]`.
    pub title: &'static str,
    /// Its keys.
    pub keys: &'static [&'static str],
}

/// The file itself.
pub const FILE: Table = Table {
    title: "the file",
    keys: &[
        "instance",
        "fastpath",
        "limits",
        "tcb_cache",
        "service",
        "pool",
    ],
};

/// `[instance]`
pub const INSTANCE: Table = Table {
    title: "[instance]",
    keys: &[
        "name",
        "admin",
        "log_connections",
        "drain_timeout",
        "on_stop",
        "probe_interval",
    ],
};

/// `[fastpath]`
pub const FASTPATH: Table = Table {
    title: "[fastpath]",
    keys: &[
        "mode",
        "device",
        "snat",
        "mtu",
        "interfaces",
        "flow_table",
        "flow_lines",
        "veth",
    ],
};

/// `[limits]`
pub const LIMITS: Table = Table {
    title: "[limits]",
    keys: &[
        "connections",
        "setups",
        "half_read_heads",
        "half_read_heads_per_client",
        "buffered_bytes",
    ],
};

/// `[tcb_cache]`
pub const TCB_CACHE: Table = Table {
    title: "[tcb_cache]",
    keys: &[
        "enabled",
        "scheme",
        "capacity",
        "ways",
        "on_time",
        "index_bits",
    ],
};

/// `[[service]]`
pub const SERVICE: Table = Table {
    title: "[[service]]",
    keys: &[
        "name",
        "listen",
        "protocol",
        "source",
        "unmatched",
        "head_limit",
        "head_timeout",
        "idle_timeout",
        "half_closed_timeout",
        "time_wait",
        "route",
    ],
};

/// `[[service.route]]`
pub const ROUTE: Table = Table {
    title: "[[service.route]]",
    keys: &[
        "name",
        "listen",
        "host",
        "path",
        "path_prefix",
        "path_suffix",
        "path_regex",
        "method",
        "header",
        "query",
        "cookie",
        "sni",
        "alpn",
        "pool",
        "treatment",
        "retries",
    ],
};

/// `[[pool]]`
pub const POOL: Table = Table {
    title: "[[pool]]",
    keys: &[
        "name",
        "balance",
        "hash",
        "proxy_protocol",
        "connect_timeout",
        "server",
    ],
};

/// One of a pool's servers.
pub const SERVER: Table = Table {
    title: "a pool's server",
    keys: &["address", "weight"],
};

/// A value pattern written as a table.
pub const PATTERN: Table = Table {
    title: "a value pattern",
    keys: &["regex", "present"],
};

/// Every kind of table.
pub const TABLES: [&Table; 10] = [
    &FILE, &INSTANCE, &FASTPATH, &LIMITS, &TCB_CACHE, &SERVICE, &ROUTE, &POOL, &SERVER, &PATTERN,
];

/// Where a key that was written elsewhere belongs.
pub(super) fn home_of(key: &str) -> Option<&'static str> {
    let mut homes = TABLES.iter().filter(|table| table.keys.contains(&key));
    let home = homes.next()?;
    homes.next().is_none().then_some(home.title)
}
