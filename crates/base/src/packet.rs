//! One IP packet as it passes between a driver and the core.

/// The longest packet that any driver carries: an IPv4 super-packet's 64 KiB limit.
pub const PACKET_BYTES_MAX: usize = 65_535;

/// Extra buffer bytes beyond the longest packet, so that consecutive buffers of an allocator start
/// 17 cache lines past a multiple of 64 KiB. Headers at power-of-two distances would compete for
/// the same cache sets.
const BUFFER_STAGGER_BYTES: usize = 1 + 17 * 64 - 16;

/// State of a packet's TCP checksum: what is known on receive, and what is left to do on transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// The field is complete but not verified yet.
    #[default]
    Complete,
    /// The field is complete and verified by a device or the sender's kernel.
    Verified,
    /// The field holds only the pseudo-header's sum (not complemented); the transmitting device
    /// completes it. Such a packet originates on this machine, so it is also valid.
    Partial,
}

/// A super-packet: one header, many segments' payload, to be cut by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of each segment but the last.
    pub segment_bytes: u16,
}

/// An IP packet (no link header) with the offload metadata of a virtual device. The buffer is
/// reused: drivers keep `bytes` at a capacity of at least [`PACKET_BYTES_MAX`].
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
