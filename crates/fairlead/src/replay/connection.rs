//! State of one connection of the capture.

use std::collections::VecDeque;

use fairlead_base::{DropReason, Endpoint, FlowKey, Instant, SeqNumber};
use fairlead_datapath::End;
use fairlead_datapath::config::{PoolId, Treatment};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, options};

use super::edit::{Edit, key};
use super::prepare::Prepared;
use super::target::Target;

/// Maximum SYN-ACKs kept per connection; the client acknowledges one of the first.
const ANSWERS_MAX: usize = 4;
/// Maximum packets of a server queued until the switch connects to it.
const WAITING_MAX: usize = 64;
/// Maximum bytes of the client kept until it is spliced: more than the longest head.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// Which end of the captured connection a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// A packet of the capture.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    /// Its number in the capture.
    pub(super) number: u64,
    pub(super) packet: Prepared,
}

/// Contents of the captured server's SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) isn: SeqNumber,
    pub(super) stamp: Option<u32>,
    pub(super) scale: Option<u8>,
}

impl Told {
    /// Parses a SYN-ACK.
    pub(super) fn of(header: &TcpPacket, bytes: &[u8]) -> Self {
        let options = SynOptions::parse(header.options(bytes)).unwrap_or_default();
        Self {
            isn: header.seq,
            stamp: options.timestamps.map(|stamps| stamps.value),
            scale: options.window_scale,
        }
    }
}

/// The connection to the server that the switch chose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    /// Source and destination of the switch's SYN.
    pub(super) key: FlowKey,
    /// Its sequence number.
    pub(super) isn: SeqNumber,
}

/// Where the switch sent the connection.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) route: u16,
    pub(super) pool: PoolId,
    pub(super) server: Endpoint,
    pub(super) attempt: u8,
    pub(super) treatment: Treatment,
    pub(super) subject: String,
}

/// The switch's report of an ended connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    /// Stream bytes, as the switch counted them.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// Why the switch turned the client away.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) reason: DropReason,
    pub(super) status: Option<u16>,
    pub(super) subject: String,
}

/// A sequence number further than this past the start of a stream belongs to another connection.
const EARLY_MAX: i32 = 1 << 20;

/// Progress of one side's stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    nxt: SeqNumber,
    pub(super) bytes: u64,
    pub(super) packets: u64,
}

impl Seen {
    fn from(isn: SeqNumber) -> Self {
        Self {
            nxt: isn + 1,
            bytes: 0,
            packets: 0,
        }
    }

    /// Adds progress seen before the start of the stream was known.
    fn add(&mut self, early: &Self) {
        self.packets += early.packets;
        let ahead = early.nxt.since(self.nxt);
        if (1..EARLY_MAX).contains(&ahead) {
            self.bytes += ahead as u64;
            self.nxt = early.nxt;
        }
    }

    fn note(&mut self, header: &TcpPacket) {
        self.packets += 1;
        let end = header.seq + header.payload_len() as u32;
        let ahead = end.since(self.nxt);
        // A FIN shows where the stream ends, even if earlier segments were not captured.
        let says = header.payload_len() > 0 || header.flags.contains(TcpFlags::FIN);
        if says && ahead > 0 {
            self.bytes += ahead as u64;
            self.nxt = end;
        }
    }
}

/// A replayed connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) first_packet: u64,
    /// Client to server, as captured.
    pub(super) captured: FlowKey,
    /// Client to listening endpoint, as played.
    pub(super) played: FlowKey,
    pub(super) target: Target,
    pub(super) client_isn: SeqNumber,
    client_scale: Option<u8>,
    answers: Vec<Numbered>,
    /// The SYN-ACK that the client continued from.
    pub(super) told: Option<Told>,
    /// The corresponding SYN-ACK of the switch.
    pub(super) shown: Option<Told>,
    /// The sequence number after the last byte that the switch itself sent to the client.
    pub(super) shown_nxt: Option<SeqNumber>,
    pub(super) leg: Option<Leg>,
    /// Earlier ones, to servers that did not accept the connection.
    pub(super) past_legs: Vec<Leg>,
    /// The captured SYN-ACK was played.
    pub(super) answered: bool,
    waiting: VecDeque<Numbered>,
    early: Vec<(SeqNumber, Vec<u8>)>,
    early_bytes: usize,
    /// True if the switch sends held bytes: for a while sequence numbers differ from the client's.
    pub(super) held: bool,
    pub(super) head_end: Option<SeqNumber>,
    pub(super) seen_in: Seen,
    pub(super) seen_out: Option<Seen>,
    /// Packets of the server before `told`, if the capture has them in that order.
    early_out: Option<Seen>,
    pub(super) decided: Option<Decided>,
    pub(super) refused: Option<Refused>,
    pub(super) ended: Option<Ended>,
    pub(super) last_drop: Option<DropReason>,
    /// The switch dropped data that the client sent behind its one request.
    pub(super) behind_request: bool,
    /// True if both sides closed in the capture, or one reset the connection.
    client_closed: bool,
    server_closed: bool,
    reset: bool,
    /// True if it is scheduled for reporting.
    pub(super) leaving: bool,
    pub(super) last_seen: Instant,
}

impl Connection {
    /// A connection from its SYN.
    pub(super) fn new(
        number: u64,
        syn: &Numbered,
        played: FlowKey,
        target: Target,
        now: Instant,
    ) -> Self {
        let header = &syn.packet.header;
        let asked = SynOptions::parse(header.options(&syn.packet.bytes)).unwrap_or_default();
        Self {
            number,
            first_packet: syn.number,
            captured: header.key,
            played,
            target,
            client_isn: header.seq,
            client_scale: asked.window_scale,
            answers: Vec::new(),
            told: None,
            shown: None,
            shown_nxt: None,
            leg: None,
            past_legs: Vec::new(),
            answered: false,
            waiting: VecDeque::new(),
            early: Vec::new(),
            early_bytes: 0,
            held: false,
            head_end: None,
            seen_in: Seen::from(header.seq),
            seen_out: None,
            early_out: None,
            decided: None,
            refused: None,
            ended: None,
            last_drop: None,
            behind_request: false,
            client_closed: false,
            server_closed: false,
            reset: false,
            leaving: false,
            last_seen: now,
        }
    }

    /// Tracks the captured connection: the progress of each side, and whether it has ended.
    pub(super) fn note(&mut self, side: Side, header: &TcpPacket, now: Instant) {
        self.last_seen = now;
        let flags = header.flags;
        self.reset |= flags.contains(TcpFlags::RST);
        if let Some(told) = self.told {
            self.seen_out.get_or_insert(Seen::from(told.isn));
        }
        match side {
            Side::Client => {
                self.client_closed |= flags.contains(TcpFlags::FIN);
                self.seen_in.note(header);
            }
            Side::Server => {
                self.server_closed |= flags.contains(TcpFlags::FIN);
                if let Some(seen) = &mut self.seen_out {
                    seen.note(header);
                } else if !flags.contains(TcpFlags::SYN) {
                    let early = self.early_out.get_or_insert(Seen {
                        nxt: header.seq,
                        bytes: 0,
                        packets: 0,
                    });
                    early.note(header);
                }
            }
        }
    }

    /// True when the capture shows the connection's end.
    pub(super) fn is_over(&self) -> bool {
        self.reset || (self.client_closed && self.server_closed)
    }

    /// True when the captured server refused it.
    pub(super) fn refused_in_capture(&self) -> bool {
        self.reset && self.answers.is_empty() && self.told.is_none()
    }

    /// True if the client sent any data.
    pub(super) fn has_request(&self) -> bool {
        self.seen_in.bytes > 0
    }

    /// Keeps a SYN-ACK. Returns it if there are enough, or if a client would ignore it.
    pub(super) fn keep_answer(&mut self, answer: Numbered) -> Option<Numbered> {
        let packet = &answer.packet;
        let sound = packet.missing > 0 || packet.header.checksum_valid(&packet.bytes);
        let acceptable = sound && packet.header.ack == self.client_isn + 1;
        if !acceptable || self.answers.len() >= ANSWERS_MAX || self.told.is_some() {
            return Some(answer);
        }
        self.answers.push(answer);
        None
    }

    /// Finds the SYN-ACK that this packet of the client continues from, by the number it
    /// acknowledges and the timestamp it echoes. Returns false if there is none.
    pub(super) fn settle_answer(&mut self, header: &TcpPacket, bytes: &[u8]) -> bool {
        if self.told.is_some() {
            return true;
        }
        let echo = options::timestamps(header.options(bytes)).map(|stamps| stamps.echo);
        let fits = |answer: &Numbered| {
            let told = Told::of(&answer.packet.header, &answer.packet.bytes);
            // Data after the SYN-ACK may be acknowledged with it.
            let numbers = (1..1 << 20).contains(&header.ack.since(told.isn));
            (numbers, numbers && told.stamp == echo)
        };
        let best = self.answers.iter().rposition(|answer| fits(answer).1);
        let index = best.or_else(|| self.answers.iter().rposition(|answer| fits(answer).0));
        let Some(index) = index else { return false };
        self.answers.swap(0, index);
        let answer = &self.answers[0].packet;
        let told = Told::of(&answer.header, &answer.bytes);
        self.told = Some(told);
        let mut seen = Seen::from(told.isn);
        seen.packets = self.answers.len() as u64;
        if let Some(early) = self.early_out.take() {
            seen.add(&early);
        }
        self.seen_out = Some(seen);
        true
    }

    /// The SYN-ACK to answer the switch's SYN with.
    pub(super) fn answer(&self) -> Option<&Numbered> {
        self.told?;
        self.answers.first()
    }

    /// SYN-ACKs that the client did not continue from.
    pub(super) fn spare_answers(&self) -> u64 {
        (self.answers.len() - usize::from(self.answered)) as u64
    }

    /// Queues a packet of the server until the switch connects. Returns it if the queue is full.
    pub(super) fn wait(&mut self, packet: Numbered) -> Option<Numbered> {
        if self.waiting.len() >= WAITING_MAX {
            return Some(packet);
        }
        self.waiting.push_back(packet);
        None
    }

    /// The queued packets of the server.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Numbered> {
        std::mem::take(&mut self.waiting)
    }

    /// Keeps what the client sent before it was spliced.
    pub(super) fn keep_early(&mut self, header: &TcpPacket, bytes: &[u8]) {
        let payload = header.payload(bytes);
        if payload.is_empty() || self.early_bytes + payload.len() > EARLY_BYTES_MAX {
            return;
        }
        self.early_bytes += payload.len();
        self.early.push((header.seq, payload.to_vec()));
    }

    /// Compares bytes that the switch sent to the server with the client's bytes at the same
    /// sequence numbers. Bytes before the client's first are the switch's own.
    pub(super) fn matches_early(&self, header: &TcpPacket, bytes: &[u8]) -> bool {
        let first = self.client_isn + 1;
        header.payload(bytes).iter().enumerate().all(|(at, &byte)| {
            let seq = header.seq + at as u32;
            let theirs = self.early.iter().find_map(|(start, payload)| {
                let offset = usize::try_from(seq.since(*start)).ok()?;
                payload.get(offset).copied()
            });
            seq.before(first) || theirs == Some(byte)
        })
    }

    /// Frees what is needed only until the splice is complete.
    pub(super) fn forget_early(&mut self) {
        self.early = Vec::new();
        self.early_bytes = 0;
    }

    /// Offset of the switch's sequence numbers and timestamps from the captured server's.
    fn shift(&self) -> Option<(u32, u32)> {
        let (told, shown) = (self.told?, self.shown?);
        let stamps = match (shown.stamp, told.stamp) {
            (Some(shown), Some(told)) => shown.wrapping_sub(told),
            _ => 0,
        };
        Some((shown.isn.0.wrapping_sub(told.isn.0), stamps))
    }

    /// How a packet of the client is re-addressed to the switch.
    pub(super) fn edit_in(&self, header: &TcpPacket, bytes: &[u8]) -> Option<Edit> {
        let plain = Edit::of_key(self.played);
        if !header.flags.contains(TcpFlags::ACK) {
            return Some(plain);
        }
        let (mut numbers, mut stamps) = self.shift()?;
        let echo = options::timestamps(header.options(bytes)).map(|stamps| stamps.echo);
        let shown = self.shown.and_then(|shown| shown.stamp);
        let told = self.told.and_then(|told| told.stamp);
        if let (None, Some(echo), Some(first)) = (self.leg, echo, shown.or(told)) {
            // The captured server may have sent more since. The switch has not, so only its
            // SYN-ACK's timestamp can be echoed,
            stamps = first.wrapping_sub(echo);
        }
        if let (None, Some(nxt)) = (self.leg, self.shown_nxt)
            && (header.ack + numbers).after(nxt)
        {
            // and nothing beyond it acknowledged.
            numbers = nxt.0.wrapping_sub(header.ack.0);
        }
        Some(Edit {
            ack_add: numbers,
            ts_echo_add: stamps,
            ..plain
        })
    }

    /// The edit that turns a packet of the captured server into one of the chosen server.
    pub(super) fn edit_out(&self, header: &TcpPacket) -> Option<Edit> {
        let leg = self.leg?;
        let plain = Edit::of_key(leg.key.reversed());
        let syn = header.flags.contains(TcpFlags::SYN);
        // Bytes that the switch inserts shift the start of the client's stream, but not what
        // follows.
        let at_begin = self.held && header.ack == self.client_isn + 1;
        let ack_add = if syn || at_begin {
            leg.isn.0.wrapping_sub(self.client_isn.0)
        } else {
            0
        };
        Some(Edit { ack_add, ..plain })
    }

    /// The edit that the switch must make to a captured packet from `side`.
    pub(super) fn expected(&self, side: Side) -> Option<Edit> {
        let (leg, told, shown) = (self.leg?, self.told?, self.shown?);
        let (numbers, stamps) = self.shift()?;
        Some(match side {
            Side::Client => Edit {
                // The client scales as negotiated; the server only if it announced a scale itself.
                window_shift: match (shown.scale, told.scale) {
                    (Some(_), None) => self.client_scale.unwrap_or(0).min(14) as i8,
                    _ => 0,
                },
                hops: 1,
                ..Edit::of_key(leg.key)
            },
            Side::Server => Edit {
                seq_add: numbers,
                ts_value_add: stamps,
                window_shift: match shown.scale {
                    Some(shown) => told.scale.unwrap_or(0).min(14) as i8 - shown.min(14) as i8,
                    None => 0,
                },
                hops: 1,
                ..Edit::of_key(key(self.played.dst, self.played.src))
            },
        })
    }
}
