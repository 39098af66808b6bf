//! Bytes by kind that packets of a real server transfer, and what caches on its network interfaces
//! would keep off the bus (figure 7 of the paper).
//!
//! Every packet is given to two senders: one without a cache, and that of the device that its
//! connection belongs to. No device is emulated: the bytes on the bus follow from the commands of
//! the senders.

use crate::block::{BlockKey, BlockSize, FileId, HostAddress, Revision};
use crate::bus::Traffic;
use crate::host::{Counts, Part, Sender, SenderConfig};
use crate::residency::Admission;

/// A packet as it was seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The same for all packets of a connection: it chooses the device.
    pub flow: u32,
    /// Bytes of link, IP and TCP headers.
    pub header_bytes: u32,
    /// Payload of each packet on the bus; `None` if it crosses as one.
    pub segment_bytes: Option<u16>,
    /// The payload's beginning if a response begins there, or less.
    pub head: &'a [u8],
    /// The payload, in order.
    pub pieces: &'a [Piece],
}

/// A part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Memory of no file.
    Memory {
        /// Bytes.
        len: u32,
    },
    /// A range of a file.
    File {
        /// The file.
        file: FileId,
        /// The version of its contents.
        revision: Revision,
        /// The file's length.
        file_bytes: u64,
        /// Where the range begins in the file.
        offset: u64,
        /// Bytes.
        len: u32,
        /// It may change without a new revision.
        is_dirty: bool,
    },
}

/// What was transferred so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets seen.
    pub packets: u64,
    /// Without a cache.
    pub without: Traffic,
    /// With one on each device.
    pub with: Traffic,
    /// What became of blocks, of all devices.
    pub counts: Counts,
    /// Content bytes that could not be cached because they may change without a new revision.
    pub dirty_bytes: u64,
}

/// The senders of all devices.
#[derive(Debug)]
pub struct Meter {
    block: BlockSize,
    plain: Sender,
    devices: Vec<Sender>,
    packets: u64,
    dirty_bytes: u64,
    /// Parts of the packet at hand.
    parts: Vec<Part>,
}

/// Most devices of a meter.
pub const DEVICES_MAX: u32 = 64;
/// Where a response's head ends.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Parts of a packet that are kept without an allocation.
const PARTS: usize = 128;

impl Revision {
    /// From a file's time of change and its file system's counter of changes.
    pub fn of_file(changed_ns: u64, version: u64) -> Self {
        // Odd, so that each of the two alone gives each number once.
        Self(changed_ns ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

impl Meter {
    /// Of this many devices, at least 1 and at most [`DEVICES_MAX`], each with this cache.
    pub fn new(devices: u32, config: SenderConfig) -> Self {
        let plain = SenderConfig {
            cache_bytes: 0,
            admission: Admission { file_bytes_max: 0 },
            ..config
        };
        Self {
            block: config.block,
            plain: Sender::new(plain),
            devices: (0..devices.clamp(1, DEVICES_MAX))
                .map(|_| Sender::new(config))
                .collect(),
            packets: 0,
            dirty_bytes: 0,
            parts: Vec::with_capacity(PARTS),
        }
    }

    /// Takes a packet in.
    pub fn packet(&mut self, seen: &Seen<'_>) {
        self.packets += 1;
        let count = self.devices.len() as u64;
        // The upper bits of a hash are its best.
        let device = ((u64::from(seen.flow) * count) >> 32) as usize;
        let each = seen.segment_bytes.filter(|bytes| *bytes > 0);
        let each = each.map_or(u32::MAX, u32::from);
        self.parts.clear();
        self.header(seen);
        let mut rest = each;
        let mut head = head_bytes(seen.head);
        for (number, piece) in seen.pieces.iter().enumerate() {
            if let Piece::File { is_dirty: true, .. } = piece {
                self.forget(piece);
            }
            let (mut at, len) = (0, piece.len());
            while at < len {
                if rest == 0 {
                    self.send(device);
                    self.header(seen);
                    rest = each;
                }
                let mut take = rest.min(len - at);
                let is_head = number == 0 && head > 0;
                if is_head {
                    take = take.min(head);
                    head -= take;
                }
                let part = part(self.block, piece, at, take, is_head, seen.header_bytes > 0);
                self.parts.push(part);
                at += take;
                rest -= take;
            }
        }
        self.send(device);
    }

    /// What was transferred so far.
    pub fn report(&self) -> Report {
        let mut report = Report {
            packets: self.packets,
            without: self.plain.traffic(),
            dirty_bytes: self.dirty_bytes,
            ..Report::default()
        };
        for device in &self.devices {
            let (traffic, counts) = (device.traffic(), device.counts());
            report.with.bytes += traffic.bytes;
            report.with.transfers += traffic.transfers;
            report.counts += counts;
        }
        report
    }

    fn header(&mut self, seen: &Seen<'_>) {
        self.parts.push(Part::NetworkHeader {
            from: HostAddress(0),
            len: seen.header_bytes,
        });
    }

    fn send(&mut self, device: usize) {
        self.plain.packet(&self.parts, false, &mut |_| {});
        if let Some(device) = self.devices.get_mut(device) {
            device.packet(&self.parts, false, &mut |_| {});
        }
        self.parts.clear();
    }

    /// Removes the blocks of a piece from all caches: what is there is old, or will be.
    fn forget(&mut self, piece: &Piece) {
        let Piece::File {
            file, offset, len, ..
        } = *piece
        else {
            return;
        };
        self.dirty_bytes += u64::from(len);
        let end = self.block.blocks(offset.saturating_add(u64::from(len)));
        for index in self.block.index_of(offset)..end {
            let Ok(index) = u32::try_from(index) else {
                break;
            };
            for device in &mut self.devices {
                device.forget(BlockKey { file, index });
            }
        }
    }
}

impl Piece {
    fn len(&self) -> u32 {
        match *self {
            Self::Memory { len } | Self::File { len, .. } => len,
        }
    }
}

/// The part of a piece from `at` on, `len` bytes.
fn part(block: BlockSize, piece: &Piece, at: u32, len: u32, is_head: bool, is_tcp: bool) -> Part {
    // Places in memory have no effect on bytes; a block's must only not begin before memory does.
    let from = HostAddress(0);
    match *piece {
        Piece::Memory { .. } if is_head && is_tcp => Part::ApplicationHeader { from, len },
        Piece::Memory { .. } => Part::Generated { from, len },
        Piece::File { is_dirty: true, .. } => Part::Uncacheable { from, len },
        Piece::File {
            file,
            revision,
            file_bytes,
            offset,
            ..
        } => {
            let offset = offset.saturating_add(u64::from(at));
            Part::File {
                file,
                revision,
                file_bytes,
                offset,
                from: HostAddress(u64::from(block.within(offset))),
                len,
            }
        }
    }
}

/// Bytes of a response's head: to its end, or as far as it was seen.
fn head_bytes(seen: &[u8]) -> u32 {
    let end = seen
        .windows(HEAD_END.len())
        .position(|window| window == HEAD_END);
    end.map_or(seen.len(), |at| at + HEAD_END.len()) as u32
}

#[cfg(test)]
mod tests;
