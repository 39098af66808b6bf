//! The cache: its parts, and the calls of a driver.

mod decide;
mod explain;
mod fill;
mod invariants;
mod memory;
mod offer;
mod purge;
mod read;
mod respond;
mod restore;
mod wait;

use std::collections::{BTreeMap, VecDeque};

use fairlead_base::{Instant, Seed};
use fairlead_content::{Directory, Residency};

use crate::head::{Field, Kept};
use crate::key::Hashing;
use crate::object::{NONE, Object};
use crate::reason::Reason;
use crate::remembered::Remembered;
use crate::sample::{Requests, Sample};
use crate::settings::Settings;
use crate::slab::{Slab, Ticket};
use crate::stats::Stats;
use crate::store::{Memory, Store};
use crate::tags::Purges;

pub use explain::{Explained, Variant};
pub use offer::Offered;
pub use purge::{Purge, PurgeError};
pub use read::{Piece, Read};
pub use restore::Journal;

/// Names a request to a server that the cache knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub(crate) Ticket);

/// Names a request that waits for the response to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub(crate) Ticket);

/// Names an answer whose body is being read. While it lives, the body's memory does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(pub(crate) Ticket);

/// An answer. Its head was appended to the caller's buffer, without the empty line at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status in the head.
    pub status: u16,
    /// The body; `None` if none is sent.
    pub body: Option<Body>,
}

/// The body of an answer, to be read with [`Cache::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Reads it; to be ended by [`Cache::end`].
    pub reader: ReaderId,
    /// Bytes of it, as `Content-Length` says; `None` if they are not known yet, and the head has
    /// no length: send chunks.
    pub length: Option<u64>,
}

/// A request to send to a server: of the client's fields those that [`Settings::fetches_with`]
/// allows, and these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// To be named in [`Cache::response`].
    pub fetch: FetchId,
    /// Conditions to add; empty if nothing is validated.
    pub conditions: Vec<(&'static str, Box<[u8]>)>,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Answer it. With `revalidate`, a stale response is sent, and this request goes to a server
    /// in the background: its response has no client.
    Hit {
        /// The answer.
        answer: Answer,
        /// To validate what was sent.
        revalidate: Option<Fetch>,
    },
    /// Send it to a server, as a GET.
    Fetch(Fetch),
    /// Do nothing until [`Event::Resume`] names this waiter.
    Wait(WaiterId),
    /// Relay it unchanged; the cache takes no part in it. For a method that is not safe, call
    /// [`Cache::passed`] with the response.
    Pass(Reason),
}

/// What to do with a server's response to a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Pass its body to [`Cache::body`], then [`Cache::finish`]. The client's answer is read from
    /// the cache like all others; `None` for a fetch in the background.
    Fill(Option<Answer>),
    /// The fetch is over, and the response's body is not needed: this is the answer.
    Stored(Option<Answer>),
    /// The fetch is over: relay the response with the fields that were appended to the buffer. In
    /// the background, drop it.
    Relay(Reason),
    /// The response is for another revision than the stored one: send the request again, without
    /// conditions, as the same fetch.
    Again,
}

/// Something that a driver must act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Call [`Cache::resume`].
    Resume(WaiterId),
    /// [`Cache::read`], which said [`Read::Wait`], has something to say.
    Readable(ReaderId),
    /// [`Cache::body`], which took less than it was given, takes more.
    Continue(FetchId),
    /// Nobody reads what is fetched, and it will not be stored: end the transfer and call
    /// [`Cache::abort`].
    Abandoned(FetchId),
}

/// An HTTP cache. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct Cache<S = Memory> {
    settings: Settings,
    hashing: Hashing,
    /// From the hash of a URL to a chain of objects.
    directory: Directory,
    /// By line of the directory: the first object of the chain.
    chains: Vec<u32>,
    objects: Vec<Option<Object>>,
    free_objects: Vec<u32>,
    objects_max: u32,
    residency: Box<dyn Residency + Send>,
    store: S,
    /// Lines that were used before and are free.
    free_lines: Vec<u32>,
    /// The first line that was never used.
    fresh_line: u32,
    lines_max: u32,
    used: memory::Used,
    purges: Purges,
    fetches: Slab<Transfer>,
    /// Fetches for which other requests wait, by hash of URL and variant.
    leaders: BTreeMap<u64, Ticket>,
    waiters: Slab<Waiter>,
    /// Waiters in the order of their deadlines.
    deadlines: VecDeque<(Instant, Ticket)>,
    readers: Slab<Reader>,
    events: VecDeque<Event>,
    uncacheable: Remembered,
    sample: Requests,
    stats: Stats,
    journal: restore::Pending,
    /// Offered objects that are so no more.
    unoffered: Vec<u32>,
    /// The key of the request at hand, to save an allocation.
    key: Vec<u8>,
    variant: Vec<u8>,
}

/// A fetch.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The client's request, until the response is there.
    kept: Option<Kept>,
    hash: u64,
    /// Under which others wait for it.
    leads: Option<u64>,
    sent: Instant,
    /// Purges before the request was sent.
    generation: u64,
    validates: Option<u32>,
    fills: Option<u32>,
    in_background: bool,
    forward: &'static str,
    waiters: Vec<Ticket>,
    /// Readers of what it fills.
    readers: Vec<Ticket>,
    /// The driver holds bytes back.
    is_blocked: bool,
    /// The driver was asked to end it.
    is_abandoned: bool,
    /// A purge of its URL came since it was sent; a hard one if true.
    spoiled: Option<bool>,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    kept: Kept,
    deadline: Instant,
    fetch: Ticket,
}

/// An answer that is read.
#[derive(Debug)]
pub(crate) struct Reader {
    object: u32,
    at: u64,
    /// Exclusive; `u64::MAX` for the end of the body.
    end: u64,
    waits: bool,
}

impl Cache {
    /// With bodies in memory of this process. Hashes depend on the seed.
    pub fn new(settings: Settings, seed: Seed) -> Self {
        let store = Memory::new(settings.block);
        Self::with_store(settings, store, seed)
    }
}

impl<S: Store> Cache<S> {
    /// With bodies in a store that has at least [`Settings::lines`] blocks.
    pub fn with_store(settings: Settings, store: S, seed: Seed) -> Self {
        let lines_max = settings.lines();
        let objects_max = lines_max.clamp(1, Directory::LINES_MAX / 64);
        let directory = Directory::new(objects_max, seed.word("http-cache", 2));
        Self {
            hashing: Hashing::new(seed),
            chains: vec![NONE; objects_max as usize],
            directory,
            objects: Vec::new(),
            free_objects: Vec::new(),
            objects_max,
            residency: settings.policy.build(objects_max, u64::from(lines_max)),
            store,
            free_lines: Vec::new(),
            fresh_line: 0,
            lines_max,
            used: memory::Used::new(objects_max, lines_max),
            purges: Purges::new(objects_max),
            fetches: Slab::new(settings.fetches_max),
            leaders: BTreeMap::new(),
            waiters: Slab::new(settings.waiters_max),
            deadlines: VecDeque::new(),
            readers: Slab::new(settings.readers_max),
            events: VecDeque::new(),
            uncacheable: Remembered::new(objects_max),
            sample: Requests::new(objects_max),
            stats: Stats::default(),
            journal: restore::Pending::default(),
            unoffered: Vec::new(),
            key: Vec::new(),
            variant: Vec::new(),
            settings,
        }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        Stats {
            objects: self.objects.len() as u64 - self.free_objects.len() as u64,
            bytes_used: self.bytes_used(),
            body_bytes: self.used.lines * u64::from(self.settings.block.bytes()),
            fetches: self.fetches.len() as u64,
            waiters: self.waiters.len() as u64,
            readers: self.readers.len() as u64,
            ..self.stats.clone()
        }
    }

    /// The last hour's requests.
    pub fn sample(&self) -> Sample {
        self.sample.sample()
    }

    /// Where bodies lie.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Cache::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Keys collide from now on, in a cache that is empty.
    #[cfg(test)]
    pub(crate) fn collide(&mut self, mask: u64) {
        self.hashing.collide(mask);
    }

    fn object(&self, object: u32) -> &Object {
        self.objects[object as usize]
            .as_ref()
            .expect("objects that are named exist")
    }

    fn object_mut(&mut self, object: u32) -> &mut Object {
        self.objects[object as usize]
            .as_mut()
            .expect("objects that are named exist")
    }
}

/// Conditions that a stored response allows.
fn conditions(object: &Object) -> Vec<(&'static str, Box<[u8]>)> {
    let value = |wanted: &str| {
        let mut fields = object.fields();
        let found = fields.find(|(name, _): &Field<'_>| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| Box::from(value))
    };
    let mut conditions = Vec::new();
    if let Some(etag) = value("etag") {
        conditions.push(("if-none-match", etag));
    }
    if let Some(date) = value("last-modified") {
        conditions.push(("if-modified-since", date));
    }
    conditions
}
