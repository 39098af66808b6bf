//! One IP packet as it passes between a driver and the core.

/// The longest packet that any driver carries: an IPv4 super-packet's 64 KiB limit.
pub const PACKET_BYTES_MAX: usize = 65_535;

/// Bytes by which a buffer is longer than the longest packet: buffers that an allocator lays one
/// after the other then start 17 cache lines further on than a multiple of 64 KiB. Headers that lie
/// a power of two apart fight for the same few lines of the cache.
const BUFFER_STAGGER_BYTES: usize = 1 + 17 * 64 - 16;

/// What is known of the TCP checksum of a packet that came in, and what is left to do on one that
/// goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// The field is complete; nobody has verified it yet.
    #[default]
    Complete,
    /// The field is complete and a device or the sender's kernel vouches for it.
    Verified,
    /// The field holds only the pseudo-header's sum (not complemented); the device that sends the
    /// packet on fills in the rest. Such a packet was made on this machine, so it is also valid.
    Partial,
}

/// A super-packet: one header, many segments' payload, to be cut by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of each segment but the last.
    pub segment_bytes: u16,
}

/// An IP packet (no link header) and what a virtual device says about it. The buffer is reused:
/// drivers keep `bytes` at a capacity of at
/// least [`PACKET_BYTES_MAX`].
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// The packet, first byte of the IP header first.
    pub bytes: Vec<u8>,
    /// State of the TCP checksum.
    pub checksum: Checksum,
    /// Set when the packet is a super-packet; then `checksum` is [`Checksum::Partial`].
    pub gso: Option<Gso>,
}

impl Packet {
    /// An empty packet with room for the longest one.
    pub fn with_capacity() -> Self {
        Self {
            bytes: Vec::with_capacity(PACKET_BYTES_MAX + BUFFER_STAGGER_BYTES),
            ..Self::default()
        }
    }

    /// A plain packet with a complete, unverified checksum.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            ..Self::default()
        }
    }

    /// Empties the packet and forgets its offload state; the capacity stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.checksum = Checksum::Complete;
        self.gso = None;
    }
}
