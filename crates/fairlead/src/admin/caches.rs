//! What the caches of routes count, in `/status` and `/metrics`.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_http_cache::Stats;
use fairlead_http_front::CacheView;
use fairlead_splice::snapshot::ServiceSnapshot;
use serde::{Deserialize, Serialize};

use super::metrics::{Page, Rows};

/// A route's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// The service.
    pub service: String,
    /// The route.
    pub route: String,
    /// What it may take, bytes.
    pub limit_bytes: u64,
    /// What it takes, bytes.
    pub used_bytes: u64,
    /// Objects that it has.
    pub objects: u64,
    /// What it did for requests.
    pub results: BTreeMap<String, u64>,
    /// Why requests were not answered from it, or responses not stored.
    pub reasons: BTreeMap<String, u64>,
    /// What became of objects.
    pub changes: BTreeMap<String, u64>,
    /// Purges that were ordered.
    pub purges: u64,
    /// Bytes of bodies read from it.
    pub served_bytes: u64,
    /// Bytes of bodies that servers sent to be stored.
    pub fetched_bytes: u64,
}

impl CacheStatus {
    /// Of the caches of a front, by the names of services and routes.
    pub(super) fn all(caches: &[CacheView], services: &[ServiceSnapshot]) -> Vec<Self> {
        let named = |view: &CacheView| {
            let service = services.get(usize::from(view.service))?;
            let route = service.routes.get(usize::from(view.route))?;
            Some(Self::of(
                &service.name,
                &route.name,
                view.bytes,
                &view.stats,
            ))
        };
        caches.iter().filter_map(named).collect()
    }

    fn of(service: &str, route: &str, limit_bytes: u64, stats: &Stats) -> Self {
        let counts = |all: &[(&str, u64)]| {
            let all = all.iter().map(|(name, count)| ((*name).to_owned(), *count));
            all.collect()
        };
        Self {
            service: service.to_owned(),
            route: route.to_owned(),
            limit_bytes,
            used_bytes: stats.bytes_used,
            objects: stats.objects,
            results: counts(&[
                ("hit", stats.hits - stats.stale_hits - stats.kernel_hits),
                ("kernel_hit", stats.kernel_hits),
                ("stale", stats.stale_hits),
                ("stale_on_error", stats.errors_replaced),
                ("miss", stats.misses),
                ("validation", stats.validations),
                ("collapsed", stats.collapsed),
                ("passed", stats.passed),
            ]),
            reasons: stats
                .reasons
                .iter()
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect(),
            changes: counts(&[
                ("stored", stats.stored),
                ("validated", stats.validated),
                ("evicted", stats.evicted),
                ("purged", stats.purged),
                ("invalidated", stats.invalidated),
                ("restored", stats.restored),
                ("not_restored", stats.not_restored),
            ]),
            purges: stats.purges,
            served_bytes: stats.bytes_served,
            fetched_bytes: stats.bytes_fetched,
        }
    }

    fn labels(&self) -> Vec<(&'static str, &str)> {
        vec![("service", &self.service), ("route", &self.route)]
    }
}

/// By a label, each cache's counts.
fn by<'a>(
    caches: &'a [CacheStatus],
    label: &'static str,
    counts: impl Fn(&'a CacheStatus) -> &'a BTreeMap<String, u64>,
) -> Rows<'a> {
    let mut rows = Rows::new();
    for cache in caches {
        for (value, count) in counts(cache) {
            let mut labels = cache.labels();
            labels.push((label, value));
            rows.push((labels, *count));
        }
    }
    rows
}

/// One number of each cache.
fn each(caches: &[CacheStatus], number: impl Fn(&CacheStatus) -> u64) -> Rows<'_> {
    let row = |one: &CacheStatus| number(one);
    caches.iter().map(|one| (one.labels(), row(one))).collect()
}

/// The families of all caches.
pub(super) fn encode(caches: &[CacheStatus], page: &mut Page<'_>) -> fmt::Result {
    if caches.is_empty() {
        return Ok(());
    }
    page.counters(
        "cache_requests",
        "What a route's cache did for requests. One that was collapsed counts once more when the \
         response is there that it waited for",
        by(caches, "result", |one| &one.results),
    )?;
    page.counters(
        "cache_refusals",
        "Requests that were not answered from a route's cache, and responses that were not stored, \
         by reason",
        by(caches, "reason", |one| &one.reasons),
    )?;
    page.counters(
        "cache_changes",
        "Objects of a route's cache by what became of them",
        by(caches, "change", |one| &one.changes),
    )?;
    page.counters(
        "cache_purges",
        "Purges of a route's cache that were ordered",
        each(caches, |one| one.purges),
    )?;
    page.counters(
        "cache_served_bytes",
        "Bytes of bodies that a route's cache has sent",
        each(caches, |one| one.served_bytes),
    )?;
    page.counters(
        "cache_fetched_bytes",
        "Bytes of bodies that servers have sent to a route's cache",
        each(caches, |one| one.fetched_bytes),
    )?;
    page.gauges(
        "cache_objects",
        "Objects of a route's cache",
        each(caches, |one| one.objects),
    )?;
    page.gauges(
        "cache_used_bytes",
        "Memory that a route's cache takes",
        each(caches, |one| one.used_bytes),
    )?;
    page.gauges(
        "cache_limit_bytes",
        "Memory that a route's cache may take: its `size`",
        each(caches, |one| one.limit_bytes),
    )
}
