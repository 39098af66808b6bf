//! Computes rates from counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::admin::Status;

/// Counters less than this apart are the same ones, fetched twice: a switch publishes every 250 ms.
const APART_MIN: Duration = Duration::from_millis(50);
/// Older counters do not describe the present.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Rates per second between two updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) syns: f64,
    pub(super) accepted: f64,
    pub(super) spliced: f64,
    pub(super) packets: f64,
    pub(super) bytes: f64,
    /// Share of packets handled without the engine; `None` without packets.
    pub(super) fast_share: Option<f64>,
    /// Hit ratio of the TCB cache, if there is one.
    pub(super) cache_hits: Option<f64>,
    /// Drops and refusals by reason, without zeros.
    pub(super) drops: BTreeMap<String, f64>,
    /// Connections and refusals by service.
    pub(super) services: BTreeMap<String, (f64, f64)>,
    /// Connections and failures by pool and server.
    pub(super) servers: BTreeMap<(String, String), (f64, f64)>,
}

/// Holds the previous status.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<Look>,
}

#[derive(Debug)]
struct Look {
    status: Status,
    /// When its counters were published, which can differ from the time of the request by a quarter
    /// of a second.
    counted: Instant,
    rates: Option<Rates>,
}

impl Meter {
    /// Takes a status fetched at `at`, and returns the rates since the previous one. `None` for the
    /// first status, and after a restart of the switch, which resets its counters.
    pub(super) fn note(&mut self, status: &Status, at: Instant) -> Option<Rates> {
        let age = Duration::from_millis(status.age_ms);
        let mut counted = at.checked_sub(age).unwrap_or(at);
        let before = self.last.take().filter(|one| {
            status.uptime_s >= one.status.uptime_s && status.rx_packets >= one.status.rx_packets
        });
        let rates = before.and_then(|before| {
            if counted.saturating_duration_since(before.counted) >= APART_MIN {
                let seconds = (counted - before.counted).as_secs_f64();
                return Some(between(&before.status, status, seconds));
            }
            counted = before.counted;
            match age < AGE_MAX {
                true => before.rates,
                false => Some(between(status, status, 1.0)),
            }
        });
        self.last = Some(Look {
            status: status.clone(),
            counted,
            rates: rates.clone(),
        });
        rates
    }
}

/// A counter that decreased counts as unchanged.
fn each(before: u64, after: u64, seconds: f64) -> f64 {
    after.saturating_sub(before) as f64 / seconds
}

fn share(part: u64, rest: u64) -> Option<f64> {
    let whole = part.saturating_add(rest);
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn between(before: &Status, after: &Status, seconds: f64) -> Rates {
    let rate = |of: fn(&Status) -> u64| each(of(before), of(after), seconds);
    let grown = |of: fn(&Status) -> u64| of(after).saturating_sub(of(before));
    let drops = after.drops.iter().filter_map(|(reason, count)| {
        let earlier = before.drops.get(reason).copied().unwrap_or(0);
        (*count > earlier).then(|| (reason.clone(), each(earlier, *count, seconds)))
    });
    let cache = before.tcb_cache.as_ref().zip(after.tcb_cache.as_ref());
    Rates {
        syns: rate(|one| one.syns),
        accepted: rate(|one| one.accepted),
        spliced: rate(|one| one.spliced),
        packets: rate(|one| {
            let looked_at = one.fast_packets.saturating_add(one.engine_packets);
            one.rx_packets.max(looked_at)
        }),
        bytes: rate(|one| one.rx_bytes.max(one.fast_bytes)),
        fast_share: share(
            grown(|one| one.fast_packets),
            grown(|one| one.engine_packets),
        ),
        cache_hits: cache.and_then(|(before, after)| {
            let hits = after.hits.saturating_sub(before.hits);
            share(hits, after.misses.saturating_sub(before.misses))
        }),
        drops: drops.collect(),
        services: services(before, after, seconds),
        servers: servers(before, after, seconds),
    }
}

fn services(before: &Status, after: &Status, seconds: f64) -> BTreeMap<String, (f64, f64)> {
    let earlier = |name: &str| before.services.iter().find(|one| one.name == name);
    let rates = after.services.iter().filter_map(|one| {
        let then = earlier(&one.name)?;
        let accepted = each(then.accepted, one.accepted, seconds);
        let refused = each(then.refused, one.refused, seconds);
        Some((one.name.clone(), (accepted, refused)))
    });
    rates.collect()
}

fn servers(
    before: &Status,
    after: &Status,
    seconds: f64,
) -> BTreeMap<(String, String), (f64, f64)> {
    let mut rates = BTreeMap::new();
    for pool in &after.pools {
        let Some(then) = before.pools.iter().find(|one| one.name == pool.name) else {
            continue;
        };
        for server in &pool.servers {
            let same = |one: &&crate::admin::ServerStatus| one.endpoint == server.endpoint;
            let Some(earlier) = then.servers.iter().find(same) else {
                continue;
            };
            let total = each(earlier.total, server.total, seconds);
            let failures = each(earlier.failures, server.failures, seconds);
            let key = (pool.name.clone(), server.endpoint.clone());
            rates.insert(key, (total, failures));
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rows::tests::recorded;
    use super::*;

    #[test]
    fn rates_are_differences_by_time() {
        let (before, after) = recorded();
        let start = Instant::now();
        let mut meter = Meter::default();
        assert_eq!(meter.note(&before, start), None);
        let rates = meter.note(&after, start + Duration::from_secs(2)).unwrap();
        assert_eq!(
            (rates.syns, rates.accepted, rates.spliced),
            (50.0, 45.0, 40.0)
        );
        assert_eq!(rates.packets, 5_000.0);
        assert_eq!(rates.fast_share, Some(0.9));
        assert_eq!(rates.cache_hits, Some(0.75));
        assert_eq!(rates.drops.len(), 1);
        assert_eq!(rates.drops["not-ours"], 3.5);
        assert_eq!(rates.services["web"], (45.0, 1.0));
        let key = ("pages".to_owned(), "10.2.0.1:81".to_owned());
        assert_eq!(rates.servers[&key], (40.0, 0.5));
    }

    #[test]
    fn the_largest_numbers_have_rates_too() {
        let (before, after) = recorded();
        let mut most = after;
        (most.fast_packets, most.engine_packets) = (u64::MAX, u64::MAX);
        let start = Instant::now();
        let mut meter = Meter::default();
        assert_eq!(meter.note(&before, start), None);
        let rates = meter.note(&most, start + Duration::from_secs(2)).unwrap();
        assert!(rates.packets > 9e18, "{}", rates.packets);
    }

    #[test]
    fn a_restarted_switch_has_no_rates_for_one_update() {
        let (before, after) = recorded();
        let start = Instant::now();
        let mut meter = Meter::default();
        let _ = meter.note(&after, start);
        let anew = Status {
            uptime_s: 0,
            ..before
        };
        assert_eq!(meter.note(&anew, start + Duration::from_secs(1)), None);
        assert!(meter.note(&after, start + Duration::from_secs(3)).is_some());
    }

    #[test]
    fn rates_use_the_time_of_publication() {
        let (before, after) = recorded();
        let aged = |status: &Status, age_ms| Status {
            age_ms,
            ..status.clone()
        };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::default();
        assert_eq!(meter.note(&aged(&before, 0), at(0)), None);
        assert_eq!(meter.note(&aged(&before, 100), at(100)), None);
        // 2 s later, looked at 0.2 s after that.
        let rates = meter.note(&aged(&after, 200), at(2_200));
        assert_eq!(rates.as_ref().unwrap().syns, 50.0);
        // The same ones again, give or take what the answer took: they say nothing else.
        assert_eq!(meter.note(&aged(&after, 290), at(2_303)), rates);
        // Until they are too old: nobody knows of anything that happens.
        let stalled = meter.note(&aged(&after, 1_000), at(3_000)).unwrap();
        assert_eq!((stalled.syns, stalled.fast_share), (0.0, None));
    }

    #[test]
    fn a_decreased_counter_has_no_rate() {
        assert_eq!(each(10, 4, 1.0), 0.0);
        assert_eq!(share(0, 0), None);
    }
}
