//! The rows to show, for both the terminal and the plain table.

use super::rates::Rates;
use crate::admin::Status;
use crate::screen::{bytes, elapsed, grouped};
use crate::status::{plain, plain_line};

/// Sort order of the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As in the configuration.
    #[default]
    Configuration,
    /// Most live connections first.
    Active,
    /// Most new connections first.
    Rate,
    /// Most failures first.
    Failures,
}

impl Order {
    /// The next order, cyclically.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Configuration => Self::Active,
            Self::Active => Self::Rate,
            Self::Rate => Self::Failures,
            Self::Failures => Self::Configuration,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configuration => "as configured",
            Self::Active => "by active",
            Self::Rate => "by new/s",
            Self::Failures => "by failures",
        }
    }
}

/// Row of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServerRow {
    /// Index in the configuration.
    pub(super) place: usize,
    pub(super) pool: String,
    pub(super) server: String,
    pub(super) state: String,
    pub(super) active: u64,
    pub(super) total: u64,
    pub(super) failures: u64,
    /// New connections and failures per second, once known.
    pub(super) rates: Option<(f64, f64)>,
}

/// All rows: numbers where they are sorted, otherwise text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// Instance, version, health, mode.
    pub(super) title: String,
    /// False if the switch is unhealthy or its counters are stale.
    pub(super) is_well: bool,
    /// The fast path in use, and why no better one.
    pub(super) fast_path: String,
    /// Names and values of totals.
    pub(super) totals: Vec<(&'static str, String)>,
    /// Name, new connections and refusals per second, total accepted.
    pub(super) services: Vec<[String; 4]>,
    pub(super) servers: Vec<ServerRow>,
    /// Reason, per second, total.
    pub(super) drops: Vec<[String; 3]>,
}

/// A rate in at most five characters with unit.
pub(super) fn rate(value: f64) -> String {
    match value {
        value if value >= 9_999_500.0 => format!("{:.0}M", value / 1e6),
        value if value >= 9_999.5 => format!("{:.0}k", value / 1e3),
        value if value >= 99.95 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

impl Table {
    /// Rows for a status and the rates up to it.
    pub(super) fn of(status: &Status, rates: Option<&Rates>) -> Self {
        let age = match status.age_ms {
            0..=2_000 => String::new(),
            age => format!(", counters {} old", elapsed(age / 1_000)),
        };
        let title = format!(
            "{}  fairlead {}  {}, up {}{age}",
            plain(&status.instance),
            plain(&status.version),
            plain(&status.health),
            elapsed(status.uptime_s),
        );
        Self {
            title,
            is_well: status.health == "ok" && age.is_empty(),
            fast_path: plain_line(&status.fast_path),
            totals: totals(status, rates),
            services: services(status, rates),
            servers: servers(status, rates),
            drops: drops(status, rates),
        }
    }

    /// Sorts the servers; equal ones stay in configuration order.
    pub(super) fn sort(&mut self, order: Order) {
        self.servers.sort_by_key(|row| row.place);
        let rate = |row: &ServerRow| row.rates.map_or(0.0, |rates| rates.0);
        match order {
            Order::Configuration => {}
            Order::Active => self
                .servers
                .sort_by_key(|row| std::cmp::Reverse(row.active)),
            Order::Rate => self.servers.sort_by(|a, b| rate(b).total_cmp(&rate(a))),
            Order::Failures => self
                .servers
                .sort_by_key(|row| std::cmp::Reverse(row.failures)),
        }
    }
}

fn totals(status: &Status, rates: Option<&Rates>) -> Vec<(&'static str, String)> {
    let known = |of: fn(&Rates) -> f64| rates.map_or("-".to_owned(), |rates| rate(of(rates)));
    let mut totals = vec![
        ("SYN/s", known(|rates| rates.syns)),
        ("connections/s", known(|rates| rates.accepted)),
        ("spliced/s", known(|rates| rates.spliced)),
        ("packets/s", known(|rates| rates.packets)),
        (
            "bytes/s",
            rates.map_or("-".to_owned(), |rates| bytes(rates.bytes as u64)),
        ),
        (
            "fast path",
            percent(rates.and_then(|rates| rates.fast_share)),
        ),
        ("live", grouped(status.live)),
        ("in setup", grouped(status.setups)),
        ("incomplete heads", grouped(status.half_read)),
        ("TIME_WAIT", grouped(status.time_wait)),
        (
            "records",
            format!(
                "{} of {}",
                grouped(status.records),
                grouped(status.records_max)
            ),
        ),
    ];
    if let Some(cache) = &status.tcb_cache {
        let now = rates.and_then(|rates| rates.cache_hits);
        let name = "tcb cache hits";
        totals.push((name, percent(now.or(Some(cache.hit_ratio)))));
    }
    totals
}

fn services(status: &Status, rates: Option<&Rates>) -> Vec<[String; 4]> {
    let row = |one: &crate::admin::ServiceStatus| {
        let now = rates.and_then(|rates| rates.services.get(&one.name));
        let text = |value: Option<f64>| value.map_or("-".to_owned(), rate);
        [
            plain(&one.name),
            text(now.map(|now| now.0)),
            text(now.map(|now| now.1)),
            grouped(one.accepted),
        ]
    };
    status.services.iter().map(row).collect()
}

fn servers(status: &Status, rates: Option<&Rates>) -> Vec<ServerRow> {
    let mut rows = Vec::new();
    for pool in &status.pools {
        for server in &pool.servers {
            let key = (pool.name.clone(), server.endpoint.clone());
            rows.push(ServerRow {
                place: rows.len(),
                pool: plain(&pool.name),
                server: plain(&server.endpoint),
                state: plain(&server.state),
                active: server.active,
                total: server.total,
                failures: server.failures,
                rates: rates.and_then(|rates| rates.servers.get(&key).copied()),
            });
        }
    }
    rows
}

/// Highest rate first, then highest total.
fn drops(status: &Status, rates: Option<&Rates>) -> Vec<[String; 3]> {
    let now = |reason: &str| rates.and_then(|rates| rates.drops.get(reason).copied());
    let mut found: Vec<_> = status
        .drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .collect();
    found.sort_by(|(a, count_a), (b, count_b)| {
        let (a, b) = (now(a).unwrap_or(0.0), now(b).unwrap_or(0.0));
        b.total_cmp(&a).then(count_b.cmp(count_a))
    });
    let row = |(reason, count): (&String, &u64)| {
        let now = now(reason).map_or("-".to_owned(), rate);
        [plain(reason), now, grouped(*count)]
    };
    found.into_iter().map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two documents of `/status`, two seconds apart, as a switch gave them (shortened).
    pub(in crate::top) fn recorded() -> (Status, Status) {
        let read = |text: &str| serde_json::from_str(text).unwrap();
        let before = r#"{"instance": "edge", "version": "0.1.0", "mode": "auto", "health": "ok",
            "fast_path": "tc on eth0, eth1", "uptime_s": 10, "age_ms": 40, "syns": 900,
            "accepted": 800, "spliced": 700, "rx_packets": 50000, "rx_bytes": 1000000,
            "fast_packets": 40000, "fast_bytes": 900000, "engine_packets": 10000, "live": 60,
            "setups": 3, "half_read": 2, "records": 70, "records_max": 100000,
            "drops": {"not-ours": 3, "no-route": 1, "truncated": 0},
            "tcb_cache": {"hits": 100, "misses": 100, "hit_ratio": 0.5},
            "services": [{"name": "web", "accepted": 800, "refused": 5}],
            "pools": [{"name": "pages", "servers": [
                {"endpoint": "10.2.0.1:81", "active": 5, "total": 400, "failures": 1,
                 "state": "up"},
                {"endpoint": "10.2.0.2:81", "active": 9, "total": 300, "state": "down"}]}]}"#;
        let after = r#"{"instance": "edge", "version": "0.1.0", "mode": "auto", "health": "ok",
            "fast_path": "tc on eth0, eth1", "uptime_s": 12, "age_ms": 40, "syns": 1000,
            "accepted": 890, "spliced": 780, "rx_packets": 60000, "rx_bytes": 3000000,
            "fast_packets": 49000, "fast_bytes": 2700000, "engine_packets": 11000, "live": 64,
            "setups": 4, "half_read": 2, "records": 75, "records_max": 100000,
            "drops": {"not-ours": 10, "no-route": 1, "truncated": 0},
            "tcb_cache": {"hits": 400, "misses": 200, "hit_ratio": 0.6667},
            "services": [{"name": "web", "accepted": 890, "refused": 7}],
            "pools": [{"name": "pages", "servers": [
                {"endpoint": "10.2.0.1:81", "active": 7, "total": 480, "failures": 2,
                 "state": "up"},
                {"endpoint": "10.2.0.2:81", "active": 9, "total": 300, "state": "down"}]}]}"#;
        (read(before), read(after))
    }

    #[test]
    fn rates_are_short() {
        for (value, text) in [
            (0.0, "0.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (9_999.0, "9999"),
            (12_345.0, "12k"),
            (3.4e7, "34M"),
        ] {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn servers_are_sorted_by_each_order() {
        let (_, after) = recorded();
        let mut table = Table::of(&after, None);
        let first = |table: &Table| table.servers[0].server.clone();
        assert_eq!(first(&table), "10.2.0.1:81");
        table.sort(Order::Active);
        assert_eq!(first(&table), "10.2.0.2:81");
        // It goes back, also while the table stands still.
        table.sort(Order::Configuration);
        assert_eq!(first(&table), "10.2.0.1:81");
        table.sort(Order::Active);
        table.sort(Order::Failures);
        assert_eq!(first(&table), "10.2.0.1:81");
        let mut order = Order::default();
        (0..4).for_each(|_| order = order.next());
        assert_eq!(order, Order::default());
    }

    #[test]
    fn untrusted_text_cannot_control_the_terminal() {
        let (mut status, _) = recorded();
        status.instance = "\x1b[2Jedge".into();
        assert!(!Table::of(&status, None).title.contains('\x1b'));
    }
}
