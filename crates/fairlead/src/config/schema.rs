//! The tables of the file and their keys.

use std::sync::OnceLock;

use super::keys::{Described, Key, Renamed, Standard, described};
use super::matcher::MATCHERS;
use super::{access, cache, check, instance, log, network, pool, service, tcb_cache};

/// A kind of table in the file and the keys it takes.
#[derive(Debug)]
pub struct Table {
    /// As it is written, `[[service.route]]`.
    pub title: &'static str,
    describe: fn() -> Vec<Described>,
    described: OnceLock<Vec<Described>>,
}

impl Table {
    const fn new(title: &'static str, describe: fn() -> Vec<Described>) -> Self {
        Self {
            title,
            describe,
            described: OnceLock::new(),
        }
    }

    /// Its keys with what the documentation has of them.
    pub fn described(&self) -> &[Described] {
        self.described.get_or_init(self.describe)
    }

    /// The names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.described().iter().map(|key| key.name)
    }
}

/// A key that only leads to a table, or stands in one that is described in another's text.
const fn bare(name: &'static str) -> Key<()> {
    Key::special(name, "", |()| String::new(), "")
}

impl Standard for () {
    fn standard() -> Self {}
}

/// The file itself.
pub static FILE: Table = Table::new("the file", || {
    described(&[
        bare("instance"),
        bare("log"),
        bare("network"),
        bare("fastpath"),
        bare("limits"),
        bare("tcb_cache"),
        bare("access"),
        bare("service"),
        bare("pool"),
    ])
});

/// `[instance]`
pub static INSTANCE: Table = Table::new("[instance]", || described(&instance::KEYS));

/// `[log]`
pub static LOG: Table = Table::new("[log]", || described(&log::KEYS));

/// `[network]`
pub static NETWORK: Table = Table::new("[network]", || described(&network::NETWORK_KEYS));

/// `[fastpath]`
pub static FASTPATH: Table = Table::new("[fastpath]", || described(&network::FASTPATH_KEYS));

/// `[limits]`
pub static LIMITS: Table = Table::new("[limits]", || described(&instance::LIMITS_KEYS));

/// `[tcb_cache]`
pub static TCB_CACHE: Table = Table::new("[tcb_cache]", || described(&tcb_cache::KEYS));

/// `[[access]]`
pub static ACCESS: Table = Table::new("[[access]]", || described(&access::KEYS));

/// `[[service]]`
pub static SERVICE: Table = Table::new("[[service]]", || described(&service::KEYS));

/// `[[service.route]]`
pub static ROUTE: Table = Table::new("[[service.route]]", || {
    let mut keys = described(&service::ROUTE_KEYS);
    keys.extend(conditions());
    keys
});

/// `[service.route.cache]`
pub static CACHE: Table = Table::new("[service.route.cache]", || described(&cache::CACHE_KEYS));

/// `[[pool]]`
pub static POOL: Table = Table::new("[[pool]]", || described(&pool::KEYS));

/// `[pool.check]`
pub static CHECK: Table = Table::new("[pool.check]", || described(&check::CHECK_KEYS));

/// `[pool.outlier]`
pub static OUTLIER: Table = Table::new("[pool.outlier]", || described(&check::OUTLIER_KEYS));

/// One of a pool's servers.
pub static SERVER: Table = Table::new("a pool's server", || {
    described(&[
        bare("address"),
        bare("weight"),
        bare("backup"),
        bare("check"),
    ])
});

/// A value pattern written as a table.
pub static PATTERN: Table = Table::new("a value pattern", || {
    described(&[bare("regex"), bare("present")])
});

/// Every kind of table.
pub static TABLES: [&Table; 16] = [
    &FILE, &INSTANCE, &LOG, &NETWORK, &FASTPATH, &LIMITS, &TCB_CACHE, &ACCESS, &SERVICE, &ROUTE,
    &POOL, &SERVER, &PATTERN, &CHECK, &OUTLIER, &CACHE,
];

/// The conditions of a route; their default is the services that can have them.
pub fn conditions() -> Vec<Described> {
    let of = |one: &super::matcher::MatcherKey| Described {
        name: one.key,
        default: one.reads.name().to_owned(),
        meaning: one.meaning,
        renamed_from: None,
    };
    MATCHERS.iter().map(of).collect()
}

/// Keys that were called something else, with the titles of their tables.
pub(super) fn renamed() -> impl Iterator<Item = (&'static str, &'static str, Renamed)> {
    TABLES.into_iter().flat_map(|table| {
        let keys = table.described().iter();
        keys.filter_map(|key| Some((table.title, key.name, key.renamed_from?)))
    })
}

/// Where a key that was written elsewhere belongs.
pub(super) fn home_of(key: &str) -> Option<&'static str> {
    let mut homes = TABLES
        .iter()
        .filter(|table| table.keys().any(|one| one == key));
    let home = homes.next()?;
    homes.next().is_none().then_some(home.title)
}
