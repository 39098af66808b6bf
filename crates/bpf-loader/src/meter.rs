//! What packets that leave by an interface consist of: the program `bpf/fairlead_meter.bpf.c` at tc
//! egress, and its messages.

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::tc::TcAttachType;
use aya::{Ebpf, include_bytes_aligned};

use crate::content::{ContentError, attach, load, map, pieces_of};

static METER: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_meter.o"));
const PROGRAM: &str = "fairlead_meter";

/// Octets of `struct fl_pieces_packet`.
const PACKET_BYTES: usize = 24;
/// Octets of `struct fl_piece`.
const PIECE_BYTES: usize = 56;
const MEMORY: u32 = 0;
const FILE: u32 = 1;
const DIRTY: u32 = 2;

/// `struct fl_meter_counts`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawCounts {
    lost_packets: u64,
    lost_bytes: u64,
}

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for RawCounts {}

/// A part of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeteredPiece {
    /// Memory that belongs to no file.
    Memory {
        /// Bytes.
        len: u32,
    },
    /// A range of a file, in its pages.
    File {
        /// Device number of the file system.
        device: u32,
        /// Inode number.
        inode: u64,
        /// Where the range begins in the file.
        offset: u64,
        /// Bytes.
        len: u32,
        /// The file's length.
        file_bytes: u64,
        /// The file system's change counter (`i_version`).
        version: u64,
        /// The file's ctime, nanoseconds since 1970.
        changed_ns: u64,
        /// Its pages hold changes that neither of these two may show yet.
        is_dirty: bool,
    },
}

/// A packet, maybe one that the interface or the kernel cuts into segments later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeteredPacket<'a> {
    /// Its length from the link header on, bytes.
    pub bytes: u32,
    /// Bytes of link, IP and TCP headers; 0 if it is not TCP.
    pub header_bytes: u32,
    /// The same for all packets of a connection.
    pub flow: u32,
    /// Index of the interface.
    pub interface: u32,
    /// Payload of each segment; `None` if the packet is one.
    pub segment_bytes: Option<u16>,
    /// The beginning of the payload, if an HTTP/1 response begins there; at most 1,024 bytes.
    pub head: &'a [u8],
    pieces: &'a [u8],
}

impl<'a> MeteredPacket<'a> {
    /// The payload's pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = MeteredPiece> + 'a {
        self.pieces.chunks_exact(PIECE_BYTES).filter_map(piece)
    }
}

/// Packets that the ring had no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostAtMeter {
    /// Packets.
    pub packets: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
}

/// The program at its interface, for as long as this is there. It changes no packet.
pub struct MeterProgram {
    ring: RingBuf<MapData>,
    counts: Array<MapData, RawCounts>,
    _ebpf: Ebpf,
}

impl core::fmt::Debug for MeterProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MeterProgram").finish_non_exhaustive()
    }
}

impl MeterProgram {
    /// Attaches the program to an interface of this network namespace. With `ports`, only TCP
    /// packets from one of these are looked at.
    ///
    /// # Errors
    /// See [`ContentError`].
    pub fn attach(interface: &str, ports: &[u16]) -> Result<Self, ContentError> {
        let mut ebpf = load(METER, interface)?;
        pieces_of(&mut ebpf, ports)?;
        let counts = map(&mut ebpf, "fl_meter_counts")?;
        let ring = map(&mut ebpf, "fl_meter_ring")?;
        attach(&mut ebpf, PROGRAM, interface, TcAttachType::Egress)?;
        Ok(Self {
            ring,
            counts,
            _ebpf: ebpf,
        })
    }

    /// The next packet, if one is there.
    pub fn next_with<T>(&mut self, use_it: impl FnOnce(&MeteredPacket<'_>) -> T) -> Option<T> {
        loop {
            let message = self.ring.next()?;
            if let Some(packet) = packet(&message) {
                return Some(use_it(&packet));
            }
        }
    }

    /// Packets that were not seen because the ring was full.
    pub fn lost(&self) -> LostAtMeter {
        let counts = self.counts.get(&0, 0);
        counts.map_or(LostAtMeter::default(), |raw| LostAtMeter {
            packets: raw.lost_packets,
            bytes: raw.lost_bytes,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*four))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_ne_bytes(*eight))
}

/// Native byte order. The ring's room may be longer than the message.
fn packet(message: &[u8]) -> Option<MeteredPacket<'_>> {
    let (packet, rest) = message.split_at_checked(PACKET_BYTES)?;
    let lengths = word(packet, 16)?.to_ne_bytes();
    let segment_bytes = u16::from_ne_bytes([lengths[0], lengths[1]]);
    let head_bytes = u16::from_ne_bytes([lengths[2], lengths[3]]);
    let pieces = usize::try_from(word(packet, 20)?).ok()?;
    let (pieces, rest) = rest.split_at_checked(pieces.checked_mul(PIECE_BYTES)?)?;
    Some(MeteredPacket {
        bytes: word(packet, 0)?,
        header_bytes: word(packet, 4)?,
        flow: word(packet, 8)?,
        interface: word(packet, 12)?,
        segment_bytes: (segment_bytes != 0).then_some(segment_bytes),
        head: rest.get(..usize::from(head_bytes))?,
        pieces,
    })
}

fn piece(bytes: &[u8]) -> Option<MeteredPiece> {
    let len = word(bytes, 44)?;
    match word(bytes, 48)? {
        MEMORY => Some(MeteredPiece::Memory { len }),
        kind @ (FILE | DIRTY) => Some(MeteredPiece::File {
            inode: long(bytes, 0)?,
            offset: long(bytes, 8)?,
            file_bytes: long(bytes, 16)?,
            version: long(bytes, 24)?,
            changed_ns: long(bytes, 32)?,
            device: word(bytes, 40)?,
            len,
            is_dirty: kind == DIRTY,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut message = Vec::new();
        for word in [4_214u32, 66, 7, 3] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(1_448u16.to_ne_bytes());
        message.extend(4u16.to_ne_bytes());
        message.extend(2u32.to_ne_bytes());
        let mut piece = |numbers: [u64; 5], words: [u32; 4]| {
            numbers
                .iter()
                .for_each(|one| message.extend(one.to_ne_bytes()));
            words
                .iter()
                .for_each(|one| message.extend(one.to_ne_bytes()));
        };
        piece([9; 5], [9, 52, MEMORY, 9]);
        piece([11, 8_192, 20_000, 5, 77], [2, 4_096, DIRTY, 1]);
        message.extend(*b"HTTP");
        message
    }

    #[test]
    fn messages_are_read() {
        let mut whole = message();
        whole.extend([0xff; 5]);
        let read = packet(&whole).expect("whole");
        assert_eq!((read.bytes, read.header_bytes), (4_214, 66));
        assert_eq!((read.flow, read.interface), (7, 3));
        assert_eq!((read.segment_bytes, read.head), (Some(1_448), &b"HTTP"[..]));
        let pieces: Vec<_> = read.pieces().collect();
        assert_eq!(pieces[0], MeteredPiece::Memory { len: 52 });
        let file = MeteredPiece::File {
            device: 2,
            inode: 11,
            offset: 8_192,
            len: 4_096,
            file_bytes: 20_000,
            version: 5,
            changed_ns: 77,
            is_dirty: true,
        };
        assert_eq!(pieces[1], file);
    }

    #[test]
    fn cut_messages_are_not() {
        let whole = message();
        for len in 0..whole.len() {
            assert_eq!(packet(&whole[..len]), None, "{len}");
        }
        let mut many = whole;
        many[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(packet(&many), None);
    }
}
