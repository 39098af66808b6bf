//! A packet's lookup in the cache.

use fairlead_base::Endpoint;
use fairlead_cache::Place;
use fairlead_tcp::Side;
use fairlead_wire::{TcpFlags, TcpPacket};

/// A packet's session identifier, its locations, and the packet's hint.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// `None` for packets that do not go through the cache.
    pub(crate) session: Option<Session>,
    /// The key's hash in the table, if already computed.
    pub(crate) hash: Option<u32>,
}

impl Asked {
    /// The key's hash in the table, if already computed.
    #[inline]
    pub fn hash(&self) -> Option<u32> {
        self.hash
    }
}

/// The part that only packets have that go through the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) tag: u64,
    pub(crate) place: Place,
    pub(crate) side: Side,
    pub(crate) hint: u8,
}

/// Hint from a packet's flags: 1 if the connection closes (FIN or RST), else 0.
#[inline]
pub fn hint(header: &TcpPacket) -> u8 {
    u8::from(header.flags.contains(TcpFlags::FIN) || header.flags.contains(TcpFlags::RST))
}

/// True for packets that ask for a connection: they have no record, and a flood of them shall not
/// be counted against the cache.
#[inline]
pub(crate) fn opens(header: &TcpPacket) -> bool {
    header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::ACK)
}

/// The session and the leg: the client's endpoint if the packet is to a listening endpoint,
/// otherwise the destination of the server's packet. In transparent mode both are the same client.
#[inline]
pub(crate) fn identifier(header: &TcpPacket, listens: &[Endpoint]) -> (Endpoint, Side) {
    let key = &header.key;
    let for_us = match listens {
        [only] => *only == key.dst,
        several => several.binary_search(&key.dst).is_ok(),
    };
    if for_us {
        (key.src, Side::Client)
    } else {
        (key.dst, Side::Server)
    }
}
