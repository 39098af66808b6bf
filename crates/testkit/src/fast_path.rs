//! A fast path that does what a test says, and checks what the switch asks of it: no place and no
//! line is ever in use twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use fairlead_base::{Endpoint, FlowKey, SeqNumber};
use fairlead_tcp::join::{SynAck, Terms};
use fairlead_tcp::record::flag;
use fairlead_tcp::{
    Begun, ConnectOffload, Endpoints, FastPath, FlowOffload, Join, Joined, Line, ListenOffer,
    PairOffload, Preconnect, Record, Refusal, Second, Seen, State, SynOffload, Taker, Ticket,
    Tracking,
};
use fairlead_wire::Timestamps;

/// A ticket that nobody has taken.
#[derive(Clone, Debug)]
pub struct IssuedTicket {
    /// Line of its record.
    pub line: Line,
    /// Its place.
    pub place: u32,
    /// The connection without its client.
    pub record: Record,
    /// The key of packets from its server.
    pub server: FlowKey,
    /// The largest MSS of its SYN, and the largest segment towards the server.
    pub mss: (u16, u16),
}

/// A client that has acknowledged its cookie.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// Its endpoint.
    pub client: Endpoint,
    /// Its initial sequence number.
    pub isn: u32,
    /// The cookie.
    pub dseq: u32,
    /// Its timestamp value and echo.
    pub stamps: Option<(u32, u32)>,
    /// The window scale that it was offered; its own is 7 then.
    pub offered_scale: Option<u8>,
}

/// A connection that was begun.
#[derive(Clone, Copy, Debug)]
pub struct TakenTicket {
    /// Its line.
    pub line: Line,
    /// The key of packets from its server.
    pub server: FlowKey,
    /// The MSS of its SYN.
    pub syn_mss: u16,
}

/// What is held of a line.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its record, as the fast path has it.
    pub record: Record,
    /// While it is armed.
    pub terms: Option<Terms>,
    /// The client's first bytes, and the longest segment towards the server, if it was armed.
    pub first: (Vec<u8>, u16),
    /// Once it was joined here.
    pub joined: Option<Joined>,
    /// What is read at while it is armed, if it was begun.
    place: Option<u32>,
}

/// What it was told, and has done.
#[derive(Debug, Default)]
pub struct Told {
    /// When connections are begun.
    pub now_ms: u32,
    /// Tickets, by lane.
    pub lanes: Vec<VecDeque<IssuedTicket>>,
    taken: Vec<VecDeque<Begun>>,
    /// What it holds.
    pub lines: BTreeMap<Line, Kept>,
    /// What it was told of pairs, and has seen of their ends.
    pub pairs: BTreeMap<Line, (Second, [Option<Seen>; 2])>,
    /// Places in use, and whose they are.
    pub places: BTreeMap<u32, Line>,
    /// Hashes of heads, and where they lead.
    pub learnt: Vec<(u64, u16)>,
    /// Tickets issued in all.
    pub issued: u32,
    /// Tickets revoked in all.
    pub revoked: u32,
    /// Connections removed in all.
    pub removed: u32,
    /// Connections armed in all.
    pub arms: u32,
    /// Servers released in all.
    pub released: u32,
    /// Lines that lost their clients' keys to others.
    pub superseded: Vec<Line>,
    /// A copy of a client's first bytes that takes a ticket before the next record is registered,
    /// and whether its server answers by then.
    pub copy: Option<(Newcomer, &'static [u8], bool)>,
    /// The ticket that the copy took.
    pub copied: Option<TakenTicket>,
    /// What was offered last, for any endpoint.
    pub offer: Option<ListenOffer>,
}

impl Told {
    fn free_place(&mut self, place: Option<u32>) {
        if let Some(place) = place {
            assert!(self.places.remove(&place).is_some(), "place {place}");
        }
    }
}

/// What a double can do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skill {
    /// Nothing: it takes no connections, and loses the keys of all.
    Forgets,
    /// It takes no connections.
    Listens,
    /// It forwards and joins connections.
    Connects,
    /// It begins some, too.
    Begins,
}

/// See the module's text. Clones are the same fast path: one goes to the switch, one stays with
/// the test.
#[derive(Clone, Debug)]
pub struct FastPathDouble {
    skill: Skill,
    told: Arc<Mutex<Told>>,
}

impl FastPathDouble {
    fn new(skill: Skill, lanes: usize) -> Self {
        let told = Told {
            lanes: vec![VecDeque::new(); lanes],
            taken: vec![VecDeque::new(); lanes],
            ..Told::default()
        };
        let told = Arc::new(Mutex::new(told));
        Self { skill, told }
    }

    /// One that takes no connections, and has lost every key that it was told.
    pub fn forgetting() -> Self {
        Self::new(Skill::Forgets, 0)
    }

    /// One that takes no connections.
    pub fn listening() -> Self {
        Self::new(Skill::Listens, 0)
    }

    /// One that forwards and joins connections.
    pub fn connecting() -> Self {
        Self::new(Skill::Connects, 0)
    }

    /// One that begins connections, too, with this many lanes of tickets.
    pub fn beginning(lanes: usize) -> Self {
        Self::new(Skill::Begins, lanes)
    }

    /// Looks at what it was told, or changes what it has seen.
    pub fn told<T>(&self, look: impl FnOnce(&mut Told) -> T) -> T {
        look(&mut self.told.lock().expect("no test has failed inside"))
    }

    /// Tickets that lie in a lane.
    pub fn out(&self, lane: usize) -> usize {
        self.told(|told| told.lanes[lane].len())
    }

    /// Has a client whose first bytes these are take the next ticket of a lane.
    pub fn begin(&self, lane: usize, client: &Newcomer, bytes: &[u8]) -> Option<TakenTicket> {
        self.told(|told| {
            let ticket = told.lanes[lane].pop_front()?;
            let (line, place) = (ticket.line, ticket.place);
            let stamps = client
                .stamps
                .map(|(value, echo)| Timestamps { value, echo });
            let taker = Taker {
                client: client.client,
                client_isn: SeqNumber(client.isn),
                dseq: SeqNumber(client.dseq),
                stamps,
                window: u16::MAX,
                payload: bytes.to_vec(),
                begun_ms: told.now_ms,
            };
            let record = Record {
                client_addr: client.client.addr,
                client_port: client.client.port,
                client_isn: client.isn,
                client_nxt: client.isn.wrapping_add(1 + bytes.len() as u32),
                flags: stamps.map_or(0, |_| flag::TIMESTAMPS),
                ..ticket.record
            };
            let terms = Terms {
                dseq: SeqNumber(client.dseq),
                asked_scale: client.offered_scale.map(|_| 7),
                offered_scale: client.offered_scale,
                our_ts: stamps.map_or(0, |stamps| stamps.echo),
            };
            let (syn_mss, device_mss) = ticket.mss;
            let kept = Kept {
                record,
                terms: Some(terms),
                first: (bytes.to_vec(), device_mss),
                joined: None,
                place: Some(place),
            };
            let before = told.lines.insert(line, kept);
            assert!(before.is_none(), "{line:?} is in use");
            let taker = Some(taker);
            told.taken[lane].push_back(Begun { line, place, taker });
            Some(TakenTicket {
                line,
                server: ticket.server,
                syn_mss,
            })
        })
    }

    /// Spoils the next ticket of a lane.
    pub fn spoil(&self, lane: usize) {
        self.told(|told| {
            let ticket = told.lanes[lane].pop_front().expect("a ticket");
            told.taken[lane].push_back(Begun {
                line: ticket.line,
                place: ticket.place,
                taker: None,
            });
            told.free_place(Some(ticket.place));
        });
    }

    /// Joins what is armed on a line, as a SYN-ACK with this number would have it.
    pub fn join(&self, line: Line, isn: u32) {
        self.told(|told| {
            let kept = told.lines.get_mut(&line).expect("armed");
            let terms = kept.terms.take().expect("armed");
            let joined = terms.join(&SynAck {
                isn: SeqNumber(isn),
                scale: Some(7),
                ts: Some(900_000),
            });
            joined.apply_to(&mut kept.record);
            kept.record.state = State::Spliced;
            kept.joined = Some(joined);
            let place = kept.place.take();
            told.free_place(place);
        });
    }

    /// A line is armed, and not joined.
    pub fn is_armed(&self, line: Line) -> bool {
        let armed = |kept: &Kept| kept.terms.is_some();
        self.told(|told| told.lines.get(&line).is_some_and(armed))
    }

    /// Follows a connection that it holds to this state, at this time.
    pub fn follow(&self, line: Line, state: State, at_ms: u32) {
        self.told(|told| {
            let kept = told.lines.get_mut(&line).expect("in its hand");
            assert!(kept.record.state.is_live(), "{:?}", kept.record.state);
            (kept.record.state, kept.record.last_active) = (state, at_ms);
        });
    }
}

impl SynOffload for FastPathDouble {
    fn set_offer(&mut self, _: Endpoint, offer: &ListenOffer) {
        self.told(|told| told.offer = Some(*offer));
    }

    fn withdraw_offer(&mut self, _: Endpoint) {}

    fn set_refusal(&mut self, _: Refusal) {}
}

impl FlowOffload for FastPathDouble {
    fn may_lose_keys(&self) -> bool {
        self.skill == Skill::Forgets
    }

    fn register(&mut self, _: Line, _: &FlowKey) {
        let Some((client, bytes, joined)) = self.told(|told| told.copy.take()) else {
            return;
        };
        let taken = self.begin(0, &client, bytes).expect("a ticket");
        if joined {
            self.join(taken.line, 70_000);
        }
        self.told(|told| told.copied = Some(taken));
    }

    fn offload(&mut self, line: Line, record: &Record, _: &FlowKey, _: &FlowKey) -> bool {
        if matches!(self.skill, Skill::Forgets | Skill::Listens) {
            return false;
        }
        let kept = Kept {
            record: *record,
            terms: None,
            first: Default::default(),
            joined: None,
            place: None,
        };
        let before = self.told(|told| told.lines.insert(line, kept));
        assert!(before.is_none(), "{line:?} is handed over once");
        true
    }

    fn reclaim(&mut self, line: Line) -> Tracking {
        let kept = self.told(|told| told.lines.remove(&line));
        Tracking::of(&kept.expect("in its hand").record)
    }

    fn tracking(&self, line: Line) -> Tracking {
        self.told(|told| Tracking::of(&told.lines.get(&line).expect("in its hand").record))
    }

    fn persist(&mut self, line: Line, _: &Record) {
        let kept = self.told(|told| told.lines.contains_key(&line));
        assert!(!kept, "{line:?} is the engine's");
    }

    fn release_server(&mut self, line: Line, _: &FlowKey) {
        self.told(|told| {
            assert!(!told.lines.contains_key(&line), "{line:?} is the engine's");
            told.released += 1;
        });
    }

    fn remove(&mut self, line: Line, _: &FlowKey, _: &FlowKey) {
        self.told(|told| {
            told.removed += 1;
            let place = told.lines.remove(&line).and_then(|kept| kept.place);
            told.free_place(place);
        });
    }

    fn restore(&mut self, _: &[(Line, FlowKey, FlowKey)]) {}

    fn flush(&mut self) {}
}

impl ConnectOffload for FastPathDouble {
    fn arm(
        &mut self,
        line: Line,
        _: u32,
        record: &Record,
        join: &Join<'_>,
        _: [&FlowKey; 2],
    ) -> bool {
        let kept = Kept {
            record: *record,
            terms: Some(join.terms),
            first: (join.payload.to_vec(), join.device_mss),
            joined: None,
            place: None,
        };
        self.told(|told| {
            told.arms += 1;
            let before = told.lines.insert(line, kept);
            assert!(before.is_none(), "{line:?} is armed once");
        });
        true
    }

    fn joined(&self, line: Line) -> Option<Joined> {
        self.told(|told| told.lines.get(&line).expect("armed").joined)
    }

    fn disarm(&mut self, line: Line) -> Option<Joined> {
        self.told(|told| {
            let kept = told.lines.get_mut(&line).expect("armed");
            let joined = kept.joined;
            let armed = kept.terms.take().is_some();
            assert!(joined.is_some() || armed, "{line:?} is disarmed once");
            let place = kept.place.take();
            told.free_place(place);
            if joined.is_none() {
                told.lines.remove(&line);
            }
            joined
        })
    }
}

impl Preconnect for FastPathDouble {
    fn lanes(&self) -> u16 {
        self.told(|told| told.lanes.len()) as u16
    }

    fn issue(&mut self, ticket: &Ticket<'_>) -> bool {
        self.told(|told| {
            let before = told.places.insert(ticket.place, ticket.line);
            assert!(before.is_none(), "place {} is in use", ticket.place);
            assert!(!told.lines.contains_key(&ticket.line), "{ticket:?}");
            told.issued += 1;
            told.lanes[usize::from(ticket.lane)].push_back(IssuedTicket {
                line: ticket.line,
                place: ticket.place,
                record: *ticket.record,
                server: *ticket.server,
                mss: (ticket.syn_mss, ticket.device_mss),
            });
        });
        true
    }

    fn next_taken(&mut self, lane: u16) -> Option<Begun> {
        self.told(|told| told.taken[usize::from(lane)].pop_front())
    }

    fn revoke(&mut self, lane: u16, gone: &mut Vec<(Line, u32)>) {
        self.told(|told| {
            for ticket in std::mem::take(&mut told.lanes[usize::from(lane)]) {
                told.revoked += 1;
                told.free_place(Some(ticket.place));
                gone.push((ticket.line, ticket.place));
            }
        });
    }

    fn learn_head(&mut self, head: u64, lane: u16) {
        self.told(|told| told.learnt.push((head, lane)));
    }

    fn client_key_superseded(&mut self, line: Line) {
        self.told(|told| told.superseded.push(line));
    }
}

impl FastPath for FastPathDouble {
    fn connect(&mut self) -> Option<&mut dyn ConnectOffload> {
        matches!(self.skill, Skill::Connects | Skill::Begins).then_some(self as _)
    }

    fn preconnect(&mut self) -> Option<&mut dyn Preconnect> {
        (self.skill == Skill::Begins).then_some(self as _)
    }

    fn pairs(&mut self) -> Option<&mut dyn PairOffload> {
        (self.skill != Skill::Forgets).then_some(self as _)
    }
}

impl PairOffload for FastPathDouble {
    fn place_pair(&mut self, _: Line, _: &Record, _: &Endpoints, _: &[u8]) -> bool {
        true
    }

    fn describe_pair(&mut self, line: Line, second: &Second, seen: &[Option<Seen>; 2]) -> bool {
        self.told(|told| {
            assert!(!told.lines.contains_key(&line), "{line:?} is the engine's");
            told.pairs.insert(line, (*second, *seen));
        });
        true
    }

    fn pair_seen(&self, line: Line) -> [Option<Seen>; 2] {
        self.told(|told| told.pairs[&line].1)
    }

    fn forget_pair(&mut self, line: Line) {
        self.told(|told| {
            assert!(!told.lines.contains_key(&line), "{line:?} was removed");
            told.pairs.remove(&line);
        });
    }
}
