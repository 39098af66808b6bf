//! The splice record: all that a packet of a spliced connection needs, in one cache line.
//!
//! The layout is plain (`repr(C)`, no padding, native byte order) so that a kernel program can do
//! the same work on the same record. Addresses that many connections share (listening endpoints,
//! servers, source addresses) are held as indices into [`crate::Endpoints`]; a kernel program finds
//! them in small arrays.

use fairlead_base::{Address, Endpoint, FlowKey, SeqNumber};

use crate::endpoints::Endpoints;

/// [`Record::nat_addr`] of a connection that keeps the client's own address and port.
pub const TRANSPARENT: u16 = u16::MAX;

/// Where a connection is in the paper's state diagram (content-aware-switch-2006, Fig. 4).
/// `SYN_RCVD` has no record: it lives in the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum State {
    /// The record is not in use (the paper's CLOSED).
    #[default]
    Free = 0,
    /// The client's handshake is complete; its head is being read.
    Established = 1,
    /// A server was chosen and has been sent a SYN.
    SynSent = 2,
    /// Both connections are joined.
    Spliced = 3,
    /// One side's FIN was passed on.
    FinRelayed1 = 4,
    /// And acknowledged.
    AckRelayed1 = 5,
    /// The other side's FIN was passed on too.
    FinRelayed2 = 6,
    /// Both FINs are acknowledged; the tuple rests for 2 MSL.
    TimeWait = 7,
    /// A RST with the exact sequence number was forwarded; the record stays for packets in flight.
    Reset = 8,
    /// The switch itself answers the client (an error response); there is no server.
    Answering = 9,
}

impl State {
    /// The name in the paper's diagram, if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "CLOSED",
            Self::Established => "ESTABLISHED",
            Self::SynSent => "SYN_SENT",
            Self::Spliced => "SPLICED",
            Self::FinRelayed1 => "FIN_RELAYED1",
            Self::AckRelayed1 => "ACK_RELAYED1",
            Self::FinRelayed2 => "FIN_RELAYED2",
            Self::TimeWait => "TIME_WAIT",
            Self::Reset => "RESET",
            Self::Answering => "ANSWERING",
        }
    }

    /// The state with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        const ALL: [State; 10] = [
            State::Free,
            State::Established,
            State::SynSent,
            State::Spliced,
            State::FinRelayed1,
            State::AckRelayed1,
            State::FinRelayed2,
            State::TimeWait,
            State::Reset,
            State::Answering,
        ];
        ALL.get(usize::from(number)).copied()
    }

    /// True from the splice to the last FIN's acknowledgement.
    pub fn is_live(self) -> bool {
        matches!(
            self,
            Self::Spliced | Self::FinRelayed1 | Self::AckRelayed1 | Self::FinRelayed2
        )
    }

    /// True for a connection that is over, but for late packets.
    pub fn is_resting(self) -> bool {
        matches!(self, Self::TimeWait | Self::Reset)
    }
}

/// Bits of [`Record::flags`].
pub mod flag {
    /// Timestamps were agreed: every packet carries the option, and it must be translated.
    pub const TIMESTAMPS: u8 = 1;
    /// The switch holds bytes that the server has not acknowledged: the engine sees every packet.
    pub const HELD: u8 = 2;
    /// The client's FIN was passed on.
    pub const CLIENT_FIN: u8 = 4;
    /// The server's FIN was passed on.
    pub const SERVER_FIN: u8 = 8;
    /// The server acknowledged the client's FIN.
    pub const CLIENT_FIN_ACKED: u8 = 16;
    /// The client acknowledged the server's FIN.
    pub const SERVER_FIN_ACKED: u8 = 32;
    /// A SYN arrived on the client's tuple: the next packets may belong to a new connection.
    pub const SYN_SEEN: u8 = 64;
    /// The RST that led to [`super::State::Reset`] came from the client.
    pub const RESET_BY_CLIENT: u8 = 128;
    /// In live states, which the bit above says nothing about: the client has sent its one request,
    /// and its stream ends where it has been seen to. What it sends behind that is not forwarded.
    pub const ONE_REQUEST: u8 = RESET_BY_CLIENT;
    /// Flags under which the fast path may still work alone.
    pub const FAST: u8 = TIMESTAMPS | ONE_REQUEST;
}

/// The leg of a splice that a packet arrives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// From the client.
    Client,
    /// From the server.
    Server,
}

impl Side {
    /// The other leg.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One spliced connection. Which fields a fast path may write: the `client_*` tracking fields when
/// it handles a packet from the client, the `server_*` ones for a packet from the server, and
/// `last_active` in both (a race between two cores loses at most one tick). It may also change
/// `state` and `flags` in both directions: together with the shifts they are one aligned word,
/// written last and by compare-and-swap, so that a reader of a state also sees the numbers that led
/// to it. All other fields belong to the engine.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Record {
    /// The client's address.
    pub client_addr: Address,
    /// The client's port.
    pub client_port: u16,
    /// Index of the listening endpoint.
    pub listen: u16,
    /// Index of the server; meaningful once one was chosen.
    pub server: u16,
    /// Index of the source address towards the server, or [`TRANSPARENT`].
    pub nat_addr: u16,
    /// Source port towards the server (unused when transparent).
    pub nat_port: u16,
    /// Index of the route within its service.
    pub route: u16,
    /// Added to the server's sequence numbers, subtracted from the client's acknowledgements:
    /// DSEQ − SSEQ.
    pub seq_delta: u32,
    /// Added to the server's timestamp values, subtracted from the client's echoes.
    pub ts_delta: u32,
    /// The client's initial sequence number.
    pub client_isn: u32,
    /// The server's initial sequence number.
    pub server_isn: u32,
    /// The highest sequence number seen from the client, plus one.
    pub client_nxt: u32,
    /// The highest sequence number seen from the server (its own numbering), plus one.
    pub server_nxt: u32,
    /// How often `client_nxt` has wrapped.
    pub client_wraps: u16,
    /// How often `server_nxt` has wrapped.
    pub server_wraps: u16,
    /// When the last packet passed, milliseconds since the core's origin, modulo 2³².
    pub last_active: u32,
    /// Where the connection is.
    pub state: State,
    /// See [`flag`].
    pub flags: u8,
    /// Window scale correction from client to server: shift left (positive) or right (negative).
    pub client_shift: i8,
    /// Window scale correction from server to client.
    pub server_shift: i8,
}

const _: () = assert!(size_of::<Record>() == 64, "the record is one cache line");
const _: () = assert!(align_of::<Record>() == 4);
const _: () = assert!(core::mem::offset_of!(Record, state) == 60);

/// The farthest that one packet may move a tracked sequence number: the largest scaled window
/// (RFC 7323, section 2.3). Anything farther is noise and does not move it.
const ADVANCE_MAX: u32 = 1 << 30;

#[inline]
fn advance(nxt: &mut u32, wraps: &mut u16, end: SeqNumber) {
    let ahead = end.0.wrapping_sub(*nxt);
    if ahead.wrapping_sub(1) < ADVANCE_MAX {
        *wraps = wraps.wrapping_add(u16::from(end.0 < *nxt));
        *nxt = end.0;
    }
}

/// Moves a tracked number to `end`, forwards or back, and keeps the count of wraps right. Refused
/// for an end before the stream's first byte.
fn settle(nxt: &mut u32, wraps: &mut u16, isn: u32, end: SeqNumber) -> bool {
    let ahead = end.since(SeqNumber(*nxt));
    if ahead > 0 {
        *wraps = wraps.wrapping_add(u16::from(end.0 < *nxt));
    } else if u64::from(ahead.unsigned_abs()) < stream_bytes(*nxt, isn, *wraps, false) {
        *wraps = wraps.wrapping_sub(u16::from(end.0 > *nxt));
    } else {
        return false;
    }
    *nxt = end.0;
    true
}

impl Record {
    /// The client.
    pub fn client(&self) -> Endpoint {
        Endpoint {
            addr: self.client_addr,
            port: self.client_port,
        }
    }

    /// The address and port that the server sees.
    #[inline]
    pub fn source(&self, endpoints: &Endpoints) -> Endpoint {
        if self.nat_addr == TRANSPARENT {
            self.client()
        } else {
            Endpoint {
                addr: endpoints.nat(self.nat_addr),
                port: self.nat_port,
            }
        }
    }

    /// The key of packets from the client.
    #[inline]
    pub fn client_key(&self, endpoints: &Endpoints) -> FlowKey {
        FlowKey {
            src: self.client(),
            dst: endpoints.listen(self.listen),
        }
    }

    /// The key of packets from the server.
    #[inline]
    pub fn server_key(&self, endpoints: &Endpoints) -> FlowKey {
        FlowKey {
            src: endpoints.server(self.server),
            dst: self.source(endpoints),
        }
    }

    /// Notes how far the client's stream has been seen.
    #[inline]
    pub fn advance_client(&mut self, end: SeqNumber) {
        advance(&mut self.client_nxt, &mut self.client_wraps, end);
    }

    /// Notes how far the server's stream has been seen.
    #[inline]
    pub fn advance_server(&mut self, end: SeqNumber) {
        advance(&mut self.server_nxt, &mut self.server_wraps, end);
    }

    /// The sequence number after the last one seen from a side, in that side's own numbering.
    #[inline]
    pub fn nxt(&self, side: Side) -> SeqNumber {
        SeqNumber(match side {
            Side::Client => self.client_nxt,
            Side::Server => self.server_nxt,
        })
    }

    /// Notes how far a side's stream has been seen.
    #[inline]
    pub fn advance(&mut self, side: Side, end: SeqNumber) {
        match side {
            Side::Client => self.advance_client(end),
            Side::Server => self.advance_server(end),
        }
    }

    /// Records the end of a side's stream, including its FIN, whatever was seen before. Returns
    /// false without recording if that is before its first byte.
    pub fn settle(&mut self, side: Side, end: SeqNumber) -> bool {
        let (nxt, wraps, isn) = match side {
            Side::Client => (
                &mut self.client_nxt,
                &mut self.client_wraps,
                self.client_isn,
            ),
            Side::Server => (
                &mut self.server_nxt,
                &mut self.server_wraps,
                self.server_isn,
            ),
        };
        settle(nxt, wraps, isn, end)
    }

    /// Stream bytes seen from the client, its FIN not counted.
    pub fn bytes_in(&self) -> u64 {
        let fin = self.flags & flag::CLIENT_FIN != 0;
        stream_bytes(self.client_nxt, self.client_isn, self.client_wraps, fin)
    }

    /// Stream bytes seen from the server, its FIN not counted.
    pub fn bytes_out(&self) -> u64 {
        let fin = self.flags & flag::SERVER_FIN != 0;
        stream_bytes(self.server_nxt, self.server_isn, self.server_wraps, fin)
    }
}

/// Numbers used between `isn` and `nxt`, less the SYN and perhaps a FIN. Wraps are counted from the
/// first byte on, whose number may itself lie behind the wrap.
fn stream_bytes(nxt: u32, isn: u32, wraps: u16, fin: bool) -> u64 {
    let end = (u64::from(wraps) << 32) + u64::from(nxt);
    end.saturating_sub(u64::from(isn.wrapping_add(1)) + u64::from(fin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_across_the_wrap() {
        let mut record = Record {
            client_isn: u32::MAX - 10,
            client_nxt: u32::MAX - 9,
            ..Record::default()
        };
        record.advance_client(SeqNumber(u32::MAX - 9) + 100);
        assert_eq!(record.client_wraps, 1);
        assert_eq!(record.bytes_in(), 100);
        for _ in 0..16 {
            record.advance_client(SeqNumber(record.client_nxt) + (1 << 29));
        }
        assert_eq!(record.bytes_in(), 100 + (16 << 29));
    }

    #[test]
    fn a_first_byte_behind_the_wrap_is_the_first_byte() {
        let mut record = Record {
            client_isn: u32::MAX,
            client_nxt: 0,
            ..Record::default()
        };
        record.advance_client(SeqNumber(100));
        assert_eq!((record.client_wraps, record.bytes_in()), (0, 100));
    }

    #[test]
    fn an_end_is_settled_across_the_wrap_both_ways() {
        let mut record = Record {
            server_isn: u32::MAX - 10,
            server_nxt: u32::MAX - 9,
            ..Record::default()
        };
        record.settle(Side::Server, SeqNumber(90));
        assert_eq!((record.server_wraps, record.bytes_out()), (1, 100));
        record.settle(Side::Server, SeqNumber(u32::MAX));
        assert_eq!((record.server_wraps, record.bytes_out()), (0, 9));
        record.settle(Side::Server, SeqNumber(u32::MAX));
        assert_eq!(record.bytes_out(), 9);
        assert_eq!(record.nxt(Side::Server), SeqNumber(u32::MAX));
    }

    #[test]
    fn no_stream_ends_before_it_begins() {
        for isn in [0, 100, u32::MAX - 10, u32::MAX] {
            for sent in [0, 1, 20] {
                let fresh = Record {
                    client_isn: isn,
                    client_nxt: isn.wrapping_add(1),
                    ..Record::default()
                };
                let mut before = fresh;
                before.advance_client(SeqNumber(fresh.client_nxt) + sent);
                for back in [0, 1, 10, 1 << 24] {
                    let (mut record, end) = (before, SeqNumber(fresh.client_nxt) - back);
                    assert!(!record.settle(Side::Client, end), "{isn} {sent} {back}");
                    assert_eq!(record.nxt(Side::Client), before.nxt(Side::Client));
                    assert_eq!(record.bytes_in(), u64::from(sent));
                }
                // A FIN at the first byte: no data was sent.
                let mut record = before;
                assert!(record.settle(Side::Client, SeqNumber(isn) + 2) || sent == 0);
                if sent == 0 {
                    record.advance_client(SeqNumber(isn) + 2);
                }
                record.flags = flag::CLIENT_FIN;
                assert_eq!(record.bytes_in(), 0);
            }
        }
    }

    #[test]
    fn old_and_wild_numbers_do_not_move_it() {
        let mut record = Record {
            client_nxt: 1_000,
            ..Record::default()
        };
        record.advance_client(SeqNumber(999));
        record.advance_client(SeqNumber(1_000));
        record.advance_client(SeqNumber(0x8000_0000));
        assert_eq!((record.client_nxt, record.client_wraps), (1_000, 0));
    }

    #[test]
    fn a_fin_is_not_a_byte() {
        let record = Record {
            client_isn: 5,
            client_nxt: 5 + 1 + 10 + 1,
            flags: flag::CLIENT_FIN,
            ..Record::default()
        };
        assert_eq!(record.bytes_in(), 10);
    }
}
