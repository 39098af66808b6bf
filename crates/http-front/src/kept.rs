//! Caches whose bodies lie in files: what outlives the process, and bodies that are sent from there
//! without a copy.

use fairlead_base::Instant;
use fairlead_http_cache::{AnyStore, Cache, Extent, Journal, Piece, Settings, Store};
use fairlead_splice::config::{Pool, Route, Service};

use crate::cached::Cached;
use crate::conns::{Conn, ConnId};
use crate::front::Front;

/// Where the bodies of a cache lie.
pub struct Backing {
    store: AnyStore,
    /// What an earlier process left; `None` where nothing is to outlive this one.
    journal: Option<Vec<u8>>,
}

impl core::fmt::Debug for Backing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Backing")
    }
}

impl Backing {
    /// A file that the driver can send parts of, and the journal of an earlier process.
    pub fn new(store: impl Store + Send + 'static, journal: Option<Vec<u8>>) -> Self {
        let store = AnyStore::new(store);
        Self { store, journal }
    }
}

/// Whose cache it is.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The service.
    pub service: &'a Service,
    /// Its route.
    pub route: &'a Route,
    /// Where the responses come from.
    pub pool: Option<&'a Pool>,
}

/// A part of a cache's file, to be sent to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The cache's number: see [`Front::back_caches`].
    pub cache: usize,
    /// The part.
    pub part: Extent,
}

/// Shorter bodies are copied, which costs less than a second system call.
pub const FILE_BYTES_MIN: u64 = 16 << 10;

/// Bytes of a part, at most: a client that takes all it gets does not keep others waiting.
const PART_BYTES: u32 = 512 << 10;

impl Front {
    /// Puts caches into files. `open` is called for each cache in turn, and has the numbers 0, 1, …
    /// in this order; where it gives nothing, the cache stays in memory of the process. To be
    /// called first, after [`Front::set_wall_clock`]: takes as long as reading what is stored.
    pub fn back_caches(
        &mut self,
        now: Instant,
        mut open: impl FnMut(Owner<'_>, &Settings) -> Option<Backing>,
    ) {
        let at = self.caches.now(now);
        let places: Vec<_> = self.caches.places().collect();
        for (number, (service, route)) in (0..).zip(places) {
            let service = &self.config.services[usize::from(service)];
            let route = &service.routes[usize::from(route)];
            let pool = route
                .pool
                .map(|pool| &self.config.pools[usize::from(pool.0)]);
            let owner = Owner {
                service,
                route,
                pool,
            };
            let of = self.caches.route_cache(number);
            let mut settings = of.cache.settings().clone();
            let Some(backing) = open(owner, &settings) else {
                continue;
            };
            of.is_in_file = true;
            settings.journals = backing.journal.is_some();
            of.cache = match backing.journal {
                Some(journal) => Cache::restore(settings, backing.store, of.seed, &journal, at),
                None => Cache::with_store(settings, backing.store, of.seed),
            };
        }
    }

    /// What to write to a cache's journal: after every turn, and before an order is confirmed.
    pub fn poll_journal(&mut self, cache: usize) -> Journal {
        match self.caches.slots.get_mut(cache) {
            Some(of) => of.cache.poll_journal(),
            None => Journal::Nothing,
        }
    }

    /// Whether [`Front::poll_journal`] has something that must be written before anything is sent.
    pub fn must_write(&mut self) -> bool {
        core::mem::take(&mut self.caches.purged)
    }

    /// The part of a cache's file that goes out to a client behind [`Front::output`]. What was sent
    /// of it goes to [`Front::sent_part`].
    pub fn file_part(&mut self, id: ConnId) -> Option<FilePart> {
        let exchange = self.conns.get(id)?.client()?.exchange.as_ref()?;
        let Cached::File { slot, reader } = exchange.cached else {
            return None;
        };
        let of = self.caches.route_cache(slot);
        match of.cache.run(reader, PART_BYTES) {
            Piece::Extent(part) => Some(FilePart { cache: slot, part }),
            Piece::Wait => {
                of.readers.insert(reader, id);
                None
            }
            // `finish_cached` sees to it.
            Piece::End | Piece::Cut => None,
        }
    }

    /// This number of bytes of a client's [`FilePart`] was sent.
    pub fn sent_part(&mut self, now: Instant, id: ConnId, bytes: usize) {
        let exchange = self.conns.get(id).and_then(Conn::client);
        let exchange = exchange.and_then(|one| one.exchange.as_mut());
        let Some(Cached::File { slot, reader }) = exchange.map(|one| &one.cached) else {
            return;
        };
        let (slot, reader) = (*slot, *reader);
        let cache = &mut self.caches.route_cache(slot).cache;
        cache.advance(reader, bytes as u64);
        self.counts.numbers.front_bytes_out += bytes as u64;
        self.note_sent(now, id, true, bytes);
        self.settle(now);
    }
}
