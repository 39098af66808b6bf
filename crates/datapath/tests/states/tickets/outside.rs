//! A fast path that begins connections when a test tells it to, and keeps an eye on what it is
//! told: no place and no line is ever in use twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use fairlead_base::{Endpoint, FlowKey, SeqNumber};
use fairlead_datapath::State;
use fairlead_tcp::join::{SynAck, Terms};
use fairlead_tcp::record::flag;
use fairlead_tcp::{
    Begun, FastPath, Join, Joined, Line, ListenOffer, Record, Taker, Ticket, Tracking,
};
use fairlead_testkit::{Segment, segment, tcp};
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

use crate::rig::{Opened, Sent, linux};

/// Lanes that there are.
pub(crate) const LANES: usize = 2;

/// A ticket that nobody has taken.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) line: Line,
    pub(crate) place: u32,
    pub(crate) record: Record,
    pub(crate) server: FlowKey,
    pub(crate) mss: (u16, u16),
}

/// What is had of a line.
#[derive(Clone, Debug)]
struct Kept {
    record: Record,
    /// While it is armed.
    terms: Option<Terms>,
    joined: Option<Joined>,
    /// Where the program reads while it is armed, if it was begun.
    place: Option<u32>,
}

/// What it was told, and has done.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// When connections are begun.
    pub(crate) now_ms: u32,
    pub(crate) lanes: [VecDeque<Issued>; LANES],
    taken: [VecDeque<Begun>; LANES],
    lines: BTreeMap<Line, Kept>,
    /// Places in use, and whose they are.
    pub(crate) places: BTreeMap<u32, Line>,
    /// Hashes of heads, and where they lead.
    pub(crate) learnt: Vec<(u64, u16)>,
    pub(crate) issued: u32,
    pub(crate) revoked: u32,
    pub(crate) forgotten: u32,
    pub(crate) arms: u32,
    pub(crate) succeeded: Vec<Line>,
    /// A copy of a client's first bytes that takes a ticket before the next record is told, and
    /// whether its server answers by then.
    pub(crate) copy: Option<(Opened, &'static [u8], bool)>,
    pub(crate) copied: Option<Taken>,
    /// What was offered last, for any endpoint.
    pub(crate) begin: bool,
}

impl Told {
    fn free_place(&mut self, place: Option<u32>) {
        if let Some(place) = place {
            assert!(self.places.remove(&place).is_some(), "place {place}");
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outside(Arc<Mutex<Told>>);

/// A connection that was begun, and its SYN.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) line: Line,
    pub(crate) syn: Sent,
}

impl Outside {
    pub(crate) fn told<T>(&self, look: impl FnOnce(&mut Told) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// Tickets that lie in a lane.
    pub(crate) fn out(&self, lane: usize) -> usize {
        self.told(|told| told.lanes[lane].len())
    }

    /// Has a client whose first bytes these are take the next ticket of a lane.
    pub(crate) fn begin(&self, lane: usize, opened: &Opened, bytes: &[u8]) -> Option<Taken> {
        self.told(|told| {
            let Issued {
                line,
                place,
                mut record,
                server,
                mss: (syn_mss, _),
            } = told.lanes[lane].pop_front()?;
            let stamps = opened
                .stamps
                .map(|(value, echo)| Timestamps { value, echo });
            let taker = Taker {
                client: opened.client,
                client_isn: SeqNumber(opened.isn),
                dseq: SeqNumber(opened.dseq),
                stamps,
                window: u16::MAX,
                payload: bytes.to_vec(),
                begun_ms: told.now_ms,
            };
            (record.client_addr, record.client_port) = (opened.client.addr, opened.client.port);
            record.client_isn = opened.isn;
            record.client_nxt = opened.isn.wrapping_add(1 + bytes.len() as u32);
            record.flags = stamps.map_or(0, |_| flag::TIMESTAMPS);
            let terms = Terms {
                dseq: SeqNumber(opened.dseq),
                asked_scale: opened.offered.window_scale.map(|_| 7),
                offered_scale: opened.offered.window_scale,
                our_ts: stamps.map_or(0, |stamps| stamps.echo),
            };
            let kept = Kept {
                record,
                terms: Some(terms),
                joined: None,
                place: Some(place),
            };
            let before = told.lines.insert(line, kept);
            assert!(before.is_none(), "{line:?} is in use");
            let taker = Some(taker);
            told.taken[lane].push_back(Begun { line, place, taker });
            let syn = syn_of(opened, &server, syn_mss);
            Some(Taken { line, syn })
        })
    }

    /// Spoils the next ticket of a lane.
    pub(crate) fn spoil(&self, lane: usize) {
        self.told(|told| {
            let Issued { line, place, .. } = told.lanes[lane].pop_front().expect("a ticket");
            told.taken[lane].push_back(Begun {
                line,
                place,
                taker: None,
            });
            told.free_place(Some(place));
        });
    }

    /// Joins what is armed on a line, as a SYN-ACK with this number would have it.
    pub(crate) fn join(&self, line: Line, isn: u32) {
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
    pub(crate) fn is_armed(&self, line: Line) -> bool {
        let armed = |kept: &Kept| kept.terms.is_some();
        self.told(|told| told.lines.get(&line).is_some_and(armed))
    }

    /// Follows a connection that it has to this state, at this time.
    pub(crate) fn follow(&self, line: Line, state: State, at_ms: u32) {
        self.told(|told| {
            let kept = told.lines.get_mut(&line).expect("in its hand");
            assert!(kept.record.state.is_live(), "{:?}", kept.record.state);
            (kept.record.state, kept.record.last_active) = (state, at_ms);
        });
    }
}

/// The SYN into which a client's first bytes were made.
fn syn_of(opened: &Opened, server: &FlowKey, syn_mss: u16) -> Sent {
    let asked = SynOptions {
        mss: Some(syn_mss.min(1_460)),
        timestamps: opened
            .stamps
            .map(|(value, _)| Timestamps { value, echo: 0 }),
        ..linux(0)
    };
    let syn = segment(server.dst, server.src)
        .flags(TcpFlags::SYN)
        .seq(opened.isn)
        .syn_options(&asked);
    sent_as(&syn)
}

/// As if it had left the switch.
pub(crate) fn sent_as(segment: &Segment) -> Sent {
    let packet = segment.packet();
    Sent {
        header: tcp(&packet),
        packet,
        whose: None,
    }
}

impl FastPath for Outside {
    fn set_offer(&mut self, _: Endpoint, offer: &ListenOffer) {
        self.told(|told| told.begin = offer.begin);
    }

    fn introduce(&mut self, _: Line, _: &FlowKey) {
        let Some((opened, bytes, joined)) = self.told(|told| told.copy.take()) else {
            return;
        };
        let taken = self.begin(0, &opened, bytes).expect("a ticket");
        if joined {
            self.join(taken.line, 70_000);
        }
        self.told(|told| told.copied = Some(taken));
    }

    fn arm(
        &mut self,
        line: Line,
        _: u32,
        record: &Record,
        join: &Join<'_>,
        _: [&FlowKey; 2],
    ) -> bool {
        self.told(|told| {
            told.arms += 1;
            let kept = Kept {
                record: *record,
                terms: Some(join.terms),
                joined: None,
                place: None,
            };
            told.lines.insert(line, kept);
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
            assert!(
                joined.is_some() || kept.terms.take().is_some(),
                "disarmed once"
            );
            let place = kept.place.take();
            told.free_place(place);
            if joined.is_none() {
                told.lines.remove(&line);
            }
            joined
        })
    }

    fn lanes(&self) -> u16 {
        LANES as u16
    }

    fn issue(&mut self, ticket: &Ticket<'_>) -> bool {
        self.told(|told| {
            let before = told.places.insert(ticket.place, ticket.line);
            assert!(before.is_none(), "place {} is in use", ticket.place);
            assert!(!told.lines.contains_key(&ticket.line), "{ticket:?}");
            told.issued += 1;
            told.lanes[usize::from(ticket.lane)].push_back(Issued {
                line: ticket.line,
                place: ticket.place,
                record: *ticket.record,
                server: *ticket.server,
                mss: (ticket.syn_mss, ticket.device_mss),
            });
        });
        true
    }

    fn begun(&mut self, lane: u16) -> Option<Begun> {
        self.told(|told| told.taken[usize::from(lane)].pop_front())
    }

    fn revoke(&mut self, lane: u16, gone: &mut Vec<(Line, u32)>) {
        self.told(|told| {
            for issued in std::mem::take(&mut told.lanes[usize::from(lane)]) {
                told.revoked += 1;
                told.free_place(Some(issued.place));
                gone.push((issued.line, issued.place));
            }
        });
    }

    fn learn(&mut self, head: u64, lane: u16) {
        self.told(|told| told.learnt.push((head, lane)));
    }

    fn succeeded(&mut self, line: Line) {
        self.told(|told| told.succeeded.push(line));
    }

    fn give(&mut self, line: Line, record: &Record, _: &FlowKey, _: &FlowKey) -> bool {
        let kept = Kept {
            record: *record,
            terms: None,
            joined: None,
            place: None,
        };
        self.told(|told| told.lines.insert(line, kept));
        true
    }

    fn take(&mut self, line: Line) -> Tracking {
        let kept = self.told(|told| told.lines.remove(&line));
        Tracking::of(&kept.expect("in its hand").record)
    }

    fn peek(&self, line: Line) -> Tracking {
        self.told(|told| Tracking::of(&told.lines.get(&line).expect("in its hand").record))
    }

    fn forget(&mut self, line: Line, _: &FlowKey, _: &FlowKey) {
        self.told(|told| {
            told.forgotten += 1;
            let place = told.lines.remove(&line).and_then(|kept| kept.place);
            told.free_place(place);
        });
    }
}
