//! Tickets: connections that a fast path may begin by itself.
//!
//! Of a ticket's connection everything is settled but who its client is: the line of its record,
//! its server, its source and its route. They lie in *lanes*, one for each listening endpoint and
//! route, and are taken one after the other: for a client that has acknowledged its cookie, and
//! whose head the engine has decided before ([`crate::Preconnect::learn_head`]). From then on the
//! connection is armed as if the engine had done it, which learns of it by looking
//! ([`crate::Preconnect::next_taken`]).

use fairlead_base::{Endpoint, FlowKey, SeqNumber};
use fairlead_wire::Timestamps;

use crate::record::Record;
use crate::table::Line;

/// Tickets, and connections begun by one that are not joined yet, at most.
pub const TICKETS_MAX: u32 = 1_024;

/// The longest first segment of whose bytes a connection is begun.
pub const PAYLOAD_BYTES_MAX: usize = 1_504;

/// A connection without its client.
#[derive(Clone, Copy, Debug)]
pub struct Ticket<'a> {
    /// Which lane it is for.
    pub lane: u16,
    /// Line of its record.
    pub line: Line,
    /// A small number that no other ticket, and no armed connection that was one, has.
    pub place: u32,
    /// Listening endpoint, route, server and source.
    pub record: &'a Record,
    /// The key of packets from its server.
    pub server: &'a FlowKey,
    /// The largest MSS that its SYN may name.
    pub syn_mss: u16,
    /// The largest segment that this host's devices carry towards the server.
    pub device_mss: u16,
}

/// Who has taken a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// The client.
    pub client: Endpoint,
    /// Its initial sequence number.
    pub client_isn: SeqNumber,
    /// The cookie, which has been checked: our initial sequence number.
    pub dseq: SeqNumber,
    /// Its timestamps, if it sent some.
    pub stamps: Option<Timestamps>,
    /// Its window field.
    pub window: u16,
    /// Its first bytes.
    pub payload: Vec<u8>,
    /// When they came, milliseconds since the core's origin, modulo 2³².
    pub begun_ms: u32,
}

/// A ticket that is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Line of its record.
    pub line: Line,
    /// Its place, which is free again once the connection is armed no more.
    pub place: u32,
    /// Whose connection it is now; `None`: nobody's, it was spoilt.
    pub taker: Option<Taker>,
}
