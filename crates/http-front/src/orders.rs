//! What an operator asks of the caches.

use fairlead_base::Instant;
use fairlead_http_cache::{Explained, Policy, Purge, PurgeError, Sample, Stats};

use crate::front::Front;

/// A cache, as an operator sees it.
#[derive(Clone, Debug, Default)]
pub struct CacheView {
    /// Index of the service.
    pub service: u16,
    /// Index of the route within the service.
    pub route: u16,
    /// The memory that it may take, bytes.
    pub bytes: u64,
    /// Counters and sizes.
    pub stats: Stats,
}

impl Front {
    /// The caches of all routes.
    pub fn caches(&self) -> Vec<CacheView> {
        let all = self.caches.all();
        all.map(|((service, route), cache)| CacheView {
            service,
            route,
            bytes: cache.settings().bytes,
            stats: cache.stats(),
        })
        .collect()
    }

    /// Purges in the caches of all routes.
    ///
    /// # Errors
    /// A prefix that cannot be purged.
    pub fn purge(&mut self, now: Instant, purge: Purge<'_>, soft: bool) -> Result<(), PurgeError> {
        self.caches.each(|cache| cache.purge(purge, soft))?;
        self.heed_caches(now);
        Ok(())
    }

    /// What caches were asked for in the last hour, with service, route and size of each.
    pub fn samples(&self) -> Vec<(CacheView, Policy, Sample)> {
        let views = self.caches().into_iter();
        let all = views.zip(self.caches.all());
        all.map(|(view, (_, cache))| (view, cache.settings().policy, cache.sample()))
            .collect()
    }

    /// What the caches know of a URL, with the service and route of each.
    pub fn explain(&self, now: Instant, host: &str, target: &[u8]) -> Vec<(u16, u16, Explained)> {
        let now = self.caches.now(now);
        let all = self.caches.all();
        all.map(|((service, route), cache)| (service, route, cache.explain(host, target, now)))
            .collect()
    }
}
