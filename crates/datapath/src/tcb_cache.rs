//! The TCB cache in the datapath: look-ups through it, and its counters.

use fairlead_base::{Instant, Packet};
pub use fairlead_tcbcache::{
    Asked, Geometry, GeometryError, LINE_BYTES, Lifetime, Mask, Report, Scheme, SchemeError,
    Settings, TICK, TcbCache, TcbCacheCounters, WAYS_MAX, hint, tick,
};
use fairlead_tcp::Found;
use fairlead_wire::{Classified, TcpPacket, classify};

use crate::{Datapath, PORTION, Verdict};

impl Datapath {
    /// Looks connections up through a cache of these settings from now on, an empty one; or without
    /// a cache, for `None`. Its index functions come from `seed`.
    ///
    /// # Errors
    /// When scheme and geometry do not fit together. Nothing is changed then.
    pub fn set_tcb_cache(
        &mut self,
        settings: Option<&Settings>,
        seed: u64,
    ) -> Result<(), SchemeError> {
        let endpoints = self.switch.table().endpoints();
        self.tcb_cache = match settings {
            Some(settings) => Some(Box::new(TcbCache::new(settings, endpoints, seed)?)),
            None => None,
        };
        Ok(())
    }

    /// The cache's answer to one packet. Without a cache, that of the table.
    pub(crate) fn find_cached(
        &mut self,
        now: Instant,
        header: &TcpPacket,
        asked: &Asked,
    ) -> Option<Found> {
        let table = self.switch.table();
        match &mut self.tcb_cache {
            Some(cache) => cache.find(asked, &header.key, table, now),
            None => table.find(&header.key),
        }
    }

    /// As `handle_portion`, through the cache: first the lines of all packets are looked at, then
    /// their records or the table's index are read, then the packets are handled in order.
    pub(crate) fn handle_portion_cached(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
    ) {
        let mut headers: [Option<TcpPacket>; PORTION] = [None; PORTION];
        let mut asked = [Asked::default(); PORTION];
        let table = self.switch.table();
        let mut read = 0;
        if let Some(cache) = &self.tcb_cache {
            for (at, packet) in packets.iter().enumerate() {
                if let Ok(Classified::Tcp(header)) = classify(&packet.bytes) {
                    asked[at] = cache.ask(&header);
                    read ^= cache.touch(&mut asked[at], &header.key, table);
                    headers[at] = Some(header);
                }
            }
        }
        let missing = asked[..packets.len()].iter().filter_map(Asked::hash);
        let records = missing.fold(0, |all, hash| all ^ table.touch_record(hash));
        std::hint::black_box((read, records));
        self.handle_each(now, packets, &headers, verdicts, |this, at, header| {
            this.find_cached(now, header, &asked[at])
        });
    }

    /// What the cache has counted; `None` without one.
    pub fn tcb_cache_report(&self) -> Option<Report> {
        self.tcb_cache.as_ref().map(|cache| cache.report())
    }
}
