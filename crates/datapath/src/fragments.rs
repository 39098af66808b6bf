//! Packets that arrive in fragments (RFC 791, section 3.2; RFC 8200, section 4.5), put together
//! within limits.
//!
//! Fragments of one packet may not overlap, except as exact copies. Where they do, the whole packet
//! is dropped, with its fragments that are still to come (RFC 5722; for IPv4 as well). A sender has
//! at most an eighth of the room: beyond that it loses its own oldest packet. When all room is
//! taken, the oldest packet of all is dropped. Senders in one IPv6 network of 64 bits count as one.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::{
    Address, Checksum, DropReason, Instant, PACKET_BYTES_MAX, Packet, ReasonCounts,
};
use fairlead_wire::{Datagram, Fragment, fragment};

/// Packets that are put together at once, at most.
pub const DATAGRAMS_MAX: usize = 1_024;
/// Bytes that their fragments take, at most, with what it takes to keep them.
pub const BYTES_MAX: usize = 4 << 20;
/// Fragments of one packet, at most: of the longest by a link of 576 bytes there are 119.
pub const PIECES_MAX: usize = 128;
/// How long the first fragment that came waits for the others.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// One sender may have one part in this number of all room.
const SHARES: usize = 8;

/// What keeping a packet and a fragment takes beside their bytes, about.
const DATAGRAM_COST: usize = 512;
const PIECE_COST: usize = 64;

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Others are missing.
    Kept,
    /// It was the last that was missing: the packet is whole and in its place.
    Whole,
    /// It is of no use.
    Refused(DropReason),
}

/// All packets of which fragments are there. Every fragment that is given up is counted by reason.
#[derive(Debug, Default)]
pub struct Fragments {
    pending: BTreeMap<Datagram, Pending>,
    /// The same by age.
    by_age: BTreeMap<u64, Datagram>,
    /// And by sender and age.
    by_sender: BTreeMap<(Address, u64), Datagram>,
    senders: BTreeMap<Address, Share>,
    bytes: usize,
    next_serial: u64,
    reassembled: u64,
    drops: ReasonCounts,
}

/// What one sender has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    datagrams: usize,
    bytes: usize,
}

/// A packet of which fragments are there.
#[derive(Debug)]
struct Pending {
    serial: u64,
    since: Instant,
    /// What it takes, as counted in [`BYTES_MAX`].
    bytes: usize,
    /// In order, apart from each other.
    pieces: BTreeMap<u32, Vec<u8>>,
    /// By the first fragment.
    headers: Option<Vec<u8>>,
    /// By the last fragment.
    len: Option<u32>,
    held: u32,
    /// One bit for each value of the ECN field.
    ecn: u8,
    /// Fragments contradict each other: whatever comes is dropped.
    spoilt: bool,
}

impl Fragments {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a fragment. When the packet is whole by it, `packet` becomes that.
    pub fn take(&mut self, now: Instant, fragment: &Fragment, packet: &mut Packet) -> Taken {
        self.expire(now);
        if fragment.is_atomic() {
            let mut whole = Vec::with_capacity(packet.bytes.len());
            fragment.write_headers(&packet.bytes, &mut whole);
            whole.extend_from_slice(fragment.payload(&packet.bytes));
            self.put_in_place(packet, &whole, false);
            return Taken::Whole;
        }
        let datagram = fragment.datagram;
        if !self.pending.contains_key(&datagram) {
            self.begin(now, datagram);
        }
        let Some(pending) = self.pending.get_mut(&datagram) else {
            return self.refuse(DropReason::FragmentLimit);
        };
        match pending.fit(fragment, &packet.bytes) {
            Fit::Copy => return Taken::Kept,
            Fit::New => {}
            Fit::Contradicts => {
                self.spoil(&datagram);
                return self.refuse(DropReason::FragmentOverlap);
            }
            Fit::TooMany => {
                self.remove(&datagram, Some(DropReason::FragmentLimit));
                return self.refuse(DropReason::FragmentLimit);
            }
        }
        let grown = pending.insert(fragment, &packet.bytes);
        self.account(&datagram, grown);
        let whole = self.pending.get(&datagram).and_then(Pending::whole);
        if let Some((whole, congested)) = whole {
            self.remove(&datagram, None);
            self.put_in_place(packet, &whole, congested);
            return Taken::Whole;
        }
        self.make_room(&datagram);
        match self.pending.contains_key(&datagram) {
            true => Taken::Kept,
            // The fragment itself is among those that were counted.
            false => Taken::Refused(DropReason::FragmentLimit),
        }
    }

    fn put_in_place(&mut self, packet: &mut Packet, whole: &[u8], congested: bool) {
        packet.bytes.clear();
        packet.bytes.extend_from_slice(whole);
        packet.checksum = Checksum::Complete;
        packet.gso = None;
        fragment::finish(&mut packet.bytes, congested);
        self.reassembled += 1;
    }

    fn refuse(&mut self, reason: DropReason) -> Taken {
        self.drops.add(reason);
        Taken::Refused(reason)
    }

    fn begin(&mut self, now: Instant, datagram: Datagram) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let pending = Pending {
            serial,
            since: now,
            bytes: 0,
            pieces: BTreeMap::new(),
            headers: None,
            len: None,
            held: 0,
            ecn: 0,
            spoilt: false,
        };
        let sender = datagram.src.subscriber();
        self.pending.insert(datagram, pending);
        self.by_age.insert(serial, datagram);
        self.by_sender.insert((sender, serial), datagram);
        self.senders.entry(sender).or_default().datagrams += 1;
        self.account(&datagram, DATAGRAM_COST);
    }

    /// Notes that a packet takes `grown` bytes more.
    fn account(&mut self, datagram: &Datagram, grown: usize) {
        if let Some(pending) = self.pending.get_mut(datagram) {
            pending.bytes += grown;
            self.bytes += grown;
            let sender = datagram.src.subscriber();
            self.senders.entry(sender).or_default().bytes += grown;
        }
    }

    /// Removes a packet; its fragments are counted as dropped where there is a reason.
    fn remove(&mut self, datagram: &Datagram, reason: Option<DropReason>) {
        let Some(pending) = self.pending.remove(datagram) else {
            return;
        };
        let sender = datagram.src.subscriber();
        self.by_age.remove(&pending.serial);
        self.by_sender.remove(&(sender, pending.serial));
        self.bytes -= pending.bytes;
        if let Some(share) = self.senders.get_mut(&sender) {
            share.datagrams -= 1;
            share.bytes -= pending.bytes;
            if share.datagrams == 0 {
                self.senders.remove(&sender);
            }
        }
        if let Some(reason) = reason {
            self.drops.add_many(reason, pending.pieces.len() as u64);
        }
    }

    /// Gives a packet's fragments up, and remembers that.
    fn spoil(&mut self, datagram: &Datagram) {
        let Some(pending) = self.pending.get_mut(datagram) else {
            return;
        };
        pending.spoilt = true;
        pending.headers = None;
        let pieces = core::mem::take(&mut pending.pieces);
        let freed = pending.bytes - DATAGRAM_COST;
        pending.bytes = DATAGRAM_COST;
        self.bytes -= freed;
        if let Some(share) = self.senders.get_mut(&datagram.src.subscriber()) {
            share.bytes -= freed;
        }
        let dropped = pieces.len() as u64;
        self.drops.add_many(DropReason::FragmentOverlap, dropped);
    }

    /// Gives packets up until all limits hold, after `latest` has grown.
    fn make_room(&mut self, latest: &Datagram) {
        let sender = latest.src.subscriber();
        while let Some(share) = self.senders.get(&sender)
            && (share.datagrams > DATAGRAMS_MAX / SHARES || share.bytes > BYTES_MAX / SHARES)
        {
            let mut own = self.by_sender.range((sender, 0)..=(sender, u64::MAX));
            let Some(oldest) = own.next().map(|(_, oldest)| *oldest) else {
                break;
            };
            self.remove(&oldest, Some(DropReason::FragmentLimit));
        }
        while self.pending.len() > DATAGRAMS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.by_age.first_key_value().map(|(_, oldest)| *oldest) else {
                break;
            };
            self.remove(&oldest, Some(DropReason::FragmentLimit));
        }
    }

    /// When [`Self::expire`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, oldest) = self.by_age.first_key_value()?;
        Some(self.pending.get(oldest)?.since + PATIENCE)
    }

    /// Gives up what has waited for too long.
    pub fn expire(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            let Some((_, &oldest)) = self.by_age.first_key_value() else {
                return;
            };
            self.remove(&oldest, Some(DropReason::FragmentTimeout));
        }
    }

    /// Packets put together so far.
    pub fn reassembled(&self) -> u64 {
        self.reassembled
    }

    /// Fragments that were given up, by reason.
    pub fn drops(&self) -> &ReasonCounts {
        &self.drops
    }

    /// Packets of which fragments are there now, and the bytes that those take.
    pub fn held(&self) -> (usize, usize) {
        (self.pending.len(), self.bytes)
    }
}

/// How a fragment fits to those that are there.
enum Fit {
    New,
    /// It is there already.
    Copy,
    Contradicts,
    TooMany,
}

impl Pending {
    fn fit(&self, fragment: &Fragment, bytes: &[u8]) -> Fit {
        if self.spoilt {
            return Fit::Contradicts;
        }
        let (from, to) = (fragment.offset, fragment.offset + fragment.len());
        let beyond = match (self.len, fragment.more) {
            (Some(len), true) => to >= len,
            (Some(len), false) => to != len,
            (None, true) => false,
            (None, false) => self.end() > to,
        };
        let before = self.pieces.range(..to).next_back();
        match before {
            Some((&at, piece)) if at == from && piece == fragment.payload(bytes) && !beyond => {
                return Fit::Copy;
            }
            Some((&at, piece)) if at + piece.len() as u32 > from => return Fit::Contradicts,
            _ if beyond => return Fit::Contradicts,
            _ => {}
        }
        match self.pieces.len() < PIECES_MAX {
            true => Fit::New,
            false => Fit::TooMany,
        }
    }

    /// The end of what is there.
    fn end(&self) -> u32 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(at, piece)| at + piece.len() as u32)
    }

    /// Keeps one that is new; by how much this grows.
    fn insert(&mut self, fragment: &Fragment, bytes: &[u8]) -> usize {
        let mut grown = PIECE_COST + fragment.len() as usize;
        if fragment.offset == 0 {
            let mut headers = Vec::new();
            fragment.write_headers(bytes, &mut headers);
            grown += headers.len();
            self.headers = Some(headers);
        }
        if !fragment.more {
            self.len = Some(fragment.offset + fragment.len());
        }
        self.ecn |= 1 << fragment.ecn;
        self.held += fragment.len();
        self.pieces
            .insert(fragment.offset, fragment.payload(bytes).to_vec());
        grown
    }

    /// The packet, when nothing of it is missing, and whether it met congestion.
    fn whole(&self) -> Option<(Vec<u8>, bool)> {
        let headers = self.headers.as_ref()?;
        if self.len != Some(self.held) {
            return None;
        }
        let len = headers.len() + self.held as usize;
        if len > PACKET_BYTES_MAX {
            return None; // options of the first fragment: it is given up in time
        }
        let mut whole = Vec::with_capacity(len);
        whole.extend_from_slice(headers);
        for piece in self.pieces.values() {
            whole.extend_from_slice(piece);
        }
        let congested = self.ecn & 1 << 3 != 0;
        Some((whole, congested))
    }
}

#[cfg(test)]
mod tests;
