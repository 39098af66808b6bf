//! What is kept of a connection until it is plainly spliced: bounded in number and bytes.

use std::collections::BTreeMap;

use fairlead_base::{Address, Instant, SeqNumber};
use fairlead_tcp::join::Terms;
use fairlead_tcp::{Backoff, Line, Promise, Reassembly};
use fairlead_wire::http::HeadScanner;
use fairlead_wire::tls::HelloScanner;
use fairlead_wire::{Asked, Timestamps};

use super::Switch;
use super::answer::Answer;
use super::held::Held;
use super::request::Request;
use crate::backends::ServerId;
use crate::config::{Limits, PoolId, Protocol, Treatment};

/// Subscribers of one site have this part of all half-read heads together, or what one of them may
/// have where that is more.
const SITE_PART: u32 = 16;

/// A connection that is being set up.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) line: Line,
    /// Our initial sequence number towards the client: the cookie.
    pub(super) dseq: SeqNumber,
    pub(super) promise: Promise,
    /// The window scale that was offered to the client.
    pub(super) offered_scale: Option<u8>,
    /// The client's bytes from the first on.
    pub(super) stream: Reassembly,
    /// Where the client's FIN is, counted in stream bytes, once seen.
    pub(super) fin_at: Option<u32>,
    pub(super) scanner: Scanner,
    /// How much of the stream has been acknowledged to the client by us.
    pub(super) acked: u32,
    /// The client's window field, as last seen.
    pub(super) client_window: u16,
    /// The client's timestamp value, as last seen, and what it echoed: ours.
    pub(super) client_ts: u32,
    pub(super) our_ts: u32,
    /// What is awaited of its client now.
    awaited: Option<Awaited>,
    /// Its number among those that were answered, once it was.
    answered: Option<u64>,
    pub(super) decision: Option<Decision>,
    /// Servers that need not be asked again, for whatever reason.
    pub(super) tried: Vec<ServerId>,
    /// How many servers were sent a SYN.
    pub(super) attempts: u8,
    /// Some server could not be asked because every source towards it was in use.
    pub(super) no_source: bool,
    /// When bytes that do not complete the head are acknowledged.
    pub(super) ack_due: Option<Instant>,
    /// When a client that has sent nothing is taken for one that waits for the server to speak.
    pub(super) silent_until: Option<Instant>,
    /// When the head, or the server's answer, is given up.
    pub(super) deadline: Option<Instant>,
    /// Retransmission of our SYN, of held bytes, or of an answer.
    pub(super) backoff: Option<Backoff>,
    pub(super) held: Option<Held>,
    pub(super) answer: Option<Answer>,
    /// Where this set-up stands in the timer queue.
    pub(super) scheduled: Option<Instant>,
    /// When it began, when its server was to be chosen, and when that was sent its first SYN.
    pub(super) begun: Instant,
    pub(super) decided: Option<Instant>,
    pub(super) asked: Option<Instant>,
    buffered: u64,
}

/// What only the client can bring, and what one client's set-ups are bounded by while it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Its first byte.
    Speech,
    /// The rest of its head.
    Head,
    /// The acknowledgement of the switch's own answer.
    Ack,
}

/// Reads the head as it grows.
#[derive(Debug)]
pub(super) enum Scanner {
    Http(HeadScanner),
    Tls(HelloScanner),
    Tcp,
}

impl Scanner {
    pub(super) fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http => Self::Http(HeadScanner::default()),
            Protocol::Tls => Self::Tls(HelloScanner::default()),
            Protocol::Tcp => Self::Tcp,
        }
    }
}

/// Where a connection goes.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) pool: PoolId,
    pub(super) treatment: Treatment,
    pub(super) retries: u8,
    /// Hash of the affinity key.
    pub(super) hash: u64,
    pub(super) subject: Asked,
    /// A PROXY protocol header, sent before the client's first byte.
    pub(super) preamble: Vec<u8>,
    /// The head as it is sent, where that differs, and the length of the head it replaces.
    pub(super) rewrite: Option<(Vec<u8>, u32)>,
    /// A HEAD request: answers to it have no body.
    pub(super) bodyless: bool,
    /// Where the one request ends that the server is to get; `None`: all goes there.
    pub(super) request: Option<Request>,
    /// Its route has a cache, and this is not for it.
    pub(super) uncached: bool,
}

impl Decision {
    /// By how many bytes what the server gets is longer than what the client sends, modulo 2³²: a
    /// rewritten head may also be shorter. By so much our initial sequence number lies before the
    /// client's, so that all numbers behind the head are the client's own.
    pub(super) fn inserted_bytes(&self) -> u32 {
        let grown = self.rewrite.as_ref().map_or(0, |(head, old_len)| {
            (head.len() as u32).wrapping_sub(*old_len)
        });
        (self.preamble.len() as u32).wrapping_add(grown)
    }

    /// What the server gets is what the client sends.
    pub(super) fn is_verbatim(&self) -> bool {
        self.preamble.is_empty() && self.rewrite.is_none()
    }

    fn bytes(&self) -> usize {
        let rewrite = self.rewrite.as_ref();
        self.preamble.capacity() + rewrite.map_or(0, |(head, _)| head.capacity())
    }
}

impl Setup {
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(super) fn new(
        line: Line,
        dseq: SeqNumber,
        promise: Promise,
        offered_scale: Option<u8>,
        protocol: Protocol,
        limit_bytes: u32,
        client_ts: u32,
        our_ts: u32,
        begun: Instant,
    ) -> Self {
        Self {
            line,
            dseq,
            promise,
            offered_scale,
            stream: Reassembly::new(limit_bytes),
            fin_at: None,
            scanner: Scanner::new(protocol),
            acked: 0,
            client_window: 0,
            client_ts,
            our_ts,
            awaited: None,
            answered: None,
            decision: None,
            tried: Vec::new(),
            attempts: 0,
            no_source: false,
            ack_due: None,
            silent_until: None,
            deadline: None,
            backoff: None,
            held: None,
            answer: None,
            scheduled: None,
            begun,
            decided: None,
            asked: None,
            buffered: 0,
        }
    }

    /// The earliest thing to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let backoff = self.backoff.map(|backoff| backoff.due);
        [self.ack_due, self.silent_until, self.deadline, backoff]
            .into_iter()
            .flatten()
            .min()
    }

    fn bytes(&self) -> u64 {
        let held = self.held.as_ref().map_or(0, Held::bytes);
        let decision = self.decision.as_ref().map_or(0, Decision::bytes);
        (self.stream.held_bytes() + held + decision) as u64
    }

    /// What is settled of the splice before the server answers.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            dseq: self.dseq,
            asked_scale: self.promise.window_scale,
            offered_scale: self.offered_scale,
            our_ts: self.our_ts,
        }
    }

    /// The rest of the head is awaited, and counted.
    pub(super) fn is_half_read(&self) -> bool {
        self.awaited == Some(Awaited::Head)
    }

    /// The client has closed, and all that it sent is here.
    pub(super) fn is_whole(&self) -> bool {
        self.fin_at == Some(self.stream.in_order_len())
    }

    /// Follows the client's clock, and what it has seen of ours: timestamps that we send on its
    /// behalf or to it must never go back (RFC 7323, section 5.3).
    pub(super) fn note_client_stamps(&mut self, stamps: Timestamps) {
        follow_clock(&mut self.client_ts, stamps.value);
        follow_clock(&mut self.our_ts, stamps.echo);
    }
}

/// Moves a remembered timestamp on to `seen`, never back.
pub(super) fn follow_clock(known: &mut u32, seen: u32) {
    if seen.wrapping_sub(*known) as i32 > 0 {
        *known = seen;
    }
}

/// Names a set-up. Its place is used again by others, under another generation: a name that is no
/// longer valid finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetupId {
    index: u32,
    generation: u32,
}

impl SetupId {
    /// A small number that no other set-up has at the same time.
    pub(super) fn index(self) -> u32 {
        self.index
    }
}

/// Room for one set-up.
#[derive(Debug, Default)]
struct Entry {
    /// Of the set-up that is here, or of the next one.
    generation: u32,
    setup: Option<Box<Setup>>,
}

/// All set-ups.
#[derive(Debug)]
pub(super) struct Setups {
    entries: Vec<Entry>,
    free: Vec<u32>,
    max: u32,
    half_read: u32,
    silent: u32,
    /// By subscriber, and by site.
    awaited_of: BTreeMap<Address, u32>,
    awaited_at: BTreeMap<Address, u32>,
    /// Those that were answered, in that order.
    answered: BTreeMap<u64, SetupId>,
    answers: u64,
    buffered_bytes: u64,
}

impl Setups {
    pub(super) fn new(max: u32) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            max,
            half_read: 0,
            silent: 0,
            awaited_of: BTreeMap::new(),
            awaited_at: BTreeMap::new(),
            answered: BTreeMap::new(),
            answers: 0,
            buffered_bytes: 0,
        }
    }

    pub(super) fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.used() >= self.max as usize
    }

    /// There is room for one set-up beside this many others that may begin at any time.
    pub(super) fn has_room_for(&self, others: u32) -> bool {
        self.used() + (others as usize) < self.max as usize
    }

    pub(super) fn half_read(&self) -> u32 {
        self.half_read
    }

    /// Clients that have said nothing yet, and are waited for.
    pub(super) fn silent(&self) -> u32 {
        self.silent
    }

    /// True when as much is awaited of this client as may be, other addresses of its subscriber
    /// and of its site counted.
    pub(super) fn awaits_enough_of(&self, client: &Address, limits: &Limits) -> bool {
        let most = limits.half_read_per_client;
        let of_site = most.max(limits.half_read / SITE_PART);
        let count = |of: &BTreeMap<Address, u32>, key| of.get(&key).copied().unwrap_or(0);
        count(&self.awaited_of, client.subscriber()) >= most
            || count(&self.awaited_at, client.site()) >= of_site
    }

    pub(super) fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    pub(super) fn insert(&mut self, setup: Box<Setup>) -> SetupId {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        if index as usize == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let entry = &mut self.entries[index as usize];
        debug_assert!(entry.setup.is_none(), "a free entry has no set-up");
        entry.setup = Some(setup);
        SetupId {
            index,
            generation: entry.generation,
        }
    }

    /// The set-up at this place, as the table knows it.
    pub(super) fn at(&self, index: u32) -> Option<SetupId> {
        let entry = self.entries.get(index as usize)?;
        entry.setup.as_ref()?;
        let generation = entry.generation;
        Some(SetupId { index, generation })
    }

    pub(super) fn peek(&self, id: SetupId) -> Option<&Setup> {
        let entry = self.entries.get(id.index as usize)?;
        let setup = entry.setup.as_deref()?;
        (entry.generation == id.generation).then_some(setup)
    }

    pub(super) fn entry(&mut self, id: SetupId) -> Option<&mut Setup> {
        let entry = self.entries.get_mut(id.index as usize)?;
        let setup = entry.setup.as_deref_mut()?;
        (entry.generation == id.generation).then_some(setup)
    }

    /// Frees a set-up; `client` is its connection's client address. Gives what it was.
    pub(super) fn remove(&mut self, id: SetupId, client: &Address) -> Option<Box<Setup>> {
        self.set_awaited(id, client, None);
        self.peek(id)?;
        let entry = &mut self.entries[id.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let setup = entry.setup.take()?;
        if let Some(number) = setup.answered {
            self.answered.remove(&number);
        }
        self.buffered_bytes -= setup.buffered;
        self.free.push(id.index);
        Some(setup)
    }

    /// Brings the count of buffered bytes up to date after a set-up's buffers changed.
    pub(super) fn recount(&mut self, id: SetupId) {
        let Some(setup) = self.entry(id) else {
            return;
        };
        let bytes = setup.bytes();
        let before = std::mem::replace(&mut setup.buffered, bytes);
        self.buffered_bytes = self.buffered_bytes - before + bytes;
    }

    /// Counts what is awaited of a set-up's client from now on, and no more what was before.
    pub(super) fn set_awaited(&mut self, id: SetupId, client: &Address, awaited: Option<Awaited>) {
        let Some(setup) = self.entry(id) else {
            return;
        };
        let before = std::mem::replace(&mut setup.awaited, awaited);
        self.half_read += u32::from(awaited == Some(Awaited::Head));
        self.half_read -= u32::from(before == Some(Awaited::Head));
        self.silent += u32::from(awaited == Some(Awaited::Speech));
        self.silent -= u32::from(before == Some(Awaited::Speech));
        let more = (awaited.is_some(), before.is_some());
        recount_of(&mut self.awaited_of, client.subscriber(), more);
        recount_of(&mut self.awaited_at, client.site(), more);
    }

    /// Notes that a set-up's client has been answered.
    pub(super) fn note_answered(&mut self, id: SetupId) {
        let number = self.answers;
        if let Some(setup) = self.entry(id) {
            setup.answered = Some(number);
            self.answered.insert(number, id);
            self.answers += 1;
        }
    }

    /// Panics unless all sums are those of the set-ups.
    pub(super) fn check(&self) {
        let all = || {
            self.entries
                .iter()
                .filter_map(|entry| entry.setup.as_deref())
        };
        let buffered: u64 = all().map(|setup| setup.buffered).sum();
        assert_eq!(buffered, self.buffered_bytes, "buffered bytes");
        for setup in all() {
            assert_eq!(setup.buffered, setup.bytes(), "bytes of {:?}", setup.line);
        }
        let half_read = all().filter(|setup| setup.is_half_read()).count();
        assert_eq!(half_read, self.half_read as usize, "half-read heads");
        let silent = all().filter(|setup| setup.awaited == Some(Awaited::Speech));
        assert_eq!(silent.count(), self.silent as usize, "silent clients");
        let awaited = all().filter(|setup| setup.awaited.is_some()).count() as u32;
        assert_eq!(awaited, self.awaited_of.values().sum(), "by subscriber");
        assert_eq!(awaited, self.awaited_at.values().sum(), "by site");
        let answered = all().filter(|setup| setup.answered.is_some()).count();
        assert_eq!(answered, self.answered.len(), "answered clients");
        for (number, id) in &self.answered {
            let setup = self.peek(*id);
            let listed = setup.is_some_and(|setup| setup.answered == Some(*number));
            assert!(listed, "{id:?} is answer {number}");
        }
    }

    /// When each set-up stands in the timer queue.
    pub(super) fn scheduled(&self) -> impl Iterator<Item = (Instant, SetupId)> + '_ {
        let ids = (0..self.entries.len() as u32).filter_map(|index| self.at(index));
        ids.filter_map(|id| Some((self.peek(id)?.scheduled?, id)))
    }

    /// Of those whose clients have been answered, the one that was first.
    pub(super) fn oldest_answered(&self) -> Option<SetupId> {
        self.answered.first_key_value().map(|(_, id)| *id)
    }
}

impl Switch {
    /// The set-up of a connection, while it has one.
    #[inline]
    pub(super) fn setup_of(&self, line: Line) -> Option<SetupId> {
        self.setups.at(self.table.setup(line)?)
    }
}

/// Counts one more, one less, or both.
fn recount_of(counts: &mut BTreeMap<Address, u32>, key: Address, (more, less): (bool, bool)) {
    if more {
        *counts.entry(key).or_insert(0) += 1;
    }
    if less && let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(line: u32) -> Box<Setup> {
        let (dseq, scale) = (SeqNumber(0), None);
        let promise = Promise {
            mss: 536,
            window_scale: None,
            sack: false,
            scale_parity: false,
        };
        let protocol = Protocol::Http;
        Box::new(Setup::new(
            Line(line),
            dseq,
            promise,
            scale,
            protocol,
            100,
            0,
            0,
            Instant::ZERO,
        ))
    }

    #[test]
    fn a_name_that_is_no_longer_valid_finds_nothing() {
        let mut setups = Setups::new(8);
        let client = Address::v4([10, 0, 0, 1]);
        let old = setups.insert(setup(1));
        setups.set_awaited(old, &client, Some(Awaited::Head));
        assert!(setups.remove(old, &client).is_some());
        let new = setups.insert(setup(2));
        assert_eq!(new.index(), old.index(), "its place is used again");
        assert!(setups.peek(old).is_none() && setups.entry(old).is_none());
        setups.set_awaited(old, &client, Some(Awaited::Head));
        setups.note_answered(old);
        setups.recount(old);
        assert!(setups.remove(old, &client).is_none());
        setups.check();
        assert_eq!(setups.half_read(), 0);
        assert_eq!(setups.peek(new).map(|setup| setup.line), Some(Line(2)));
        assert_eq!(setups.at(new.index()), Some(new));
    }
}
