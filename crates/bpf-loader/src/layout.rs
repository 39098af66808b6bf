//! What user space and the kernel program agree on: the Rust side of
//! `bpf/include/fairlead/layout.h`. Sizes and offsets are asserted in both.

use aya::Pod;
use fairlead_base::{Address, Endpoint, FlowKey};
use fairlead_tcp::Record;

/// Goes up with every change of what a restart takes over: maps that `bpf/` declares
/// `FL_MAP_REQUIRED`. A program never touches maps of another version.
pub const VERSION: u32 = 8;

/// No window scale is offered.
pub(crate) const NO_SCALE: u8 = 0xff;

/// Places of counters, `enum fl_counter`.
pub(crate) mod counter {
    pub(crate) const FAST_PACKETS: u32 = 0;
    pub(crate) const FAST_BYTES: u32 = 1;
    pub(crate) const SYNS: u32 = 2;
    pub(crate) const SYN_ACKS: u32 = 3;
    pub(crate) const ACKS_SWALLOWED: u32 = 4;
    pub(crate) const TO_ENGINE: u32 = 5;
    pub(crate) const NO_NEIGHBOUR: u32 = 6;
    pub(crate) const NOT_OURS: u32 = 7;
    pub(crate) const FINS: u32 = 8;
    pub(crate) const RESETS: u32 = 9;
    pub(crate) const FLOW_OTHER: u32 = 10;
    pub(crate) const FLOW_MISSES: u32 = 11;
    pub(crate) const TCB_MISMATCHES: u32 = 12;
    pub(crate) const TCB_SECOND_HITS: u32 = 13;
    pub(crate) const TCB_MIGRATIONS: u32 = 14;
    pub(crate) const TCB_EVICTIONS: u32 = 15;
    pub(crate) const TCB_EVICTED_ON: u32 = 16;
    pub(crate) const JOINS: u32 = 17;
    pub(crate) const ENDED_BYTES: u32 = 18;
    pub(crate) const MADE_BYTES: u32 = 19;
    pub(crate) const BEGUN: u32 = 20;
    /// Drops follow, by number of their reason.
    pub(crate) const DROPS: u32 = 64;
}

/// Bits of [`RawListen::flags`].
pub(crate) mod offer {
    pub(crate) const SACK: u8 = 1;
    pub(crate) const TIMESTAMPS: u8 = 2;
    pub(crate) const SCALE_PARITY: u8 = 4;
    pub(crate) const ANSWER: u8 = 8;
    pub(crate) const AWAIT_CLIENT: u8 = 16;
    pub(crate) const BEGIN: u8 = 32;
}

/// `struct fl_flow_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct RawFlowKey {
    src: [u8; 16],
    dst: [u8; 16],
    src_port: [u8; 2],
    dst_port: [u8; 2],
}

impl From<&FlowKey> for RawFlowKey {
    fn from(key: &FlowKey) -> Self {
        Self {
            src: key.src.addr.0,
            dst: key.dst.addr.0,
            src_port: key.src.port.to_be_bytes(),
            dst_port: key.dst.port.to_be_bytes(),
        }
    }
}

impl RawFlowKey {
    /// As it lies in memory.
    pub(crate) fn words(&self) -> [u32; 9] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&self.src);
        bytes[16..32].copy_from_slice(&self.dst);
        bytes[32..34].copy_from_slice(&self.src_port);
        bytes[34..].copy_from_slice(&self.dst_port);
        let (words, _) = bytes.as_chunks::<4>();
        core::array::from_fn(|at| u32::from_ne_bytes(words[at]))
    }
}

/// Entries of a bucket of the index of keys.
pub(crate) const BUCKET_ENTRIES: usize = 8;

/// `struct fl_bucket`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct RawBucket {
    pub(crate) entries: [u64; BUCKET_ENTRIES],
}

/// `struct fl_endpoint`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawEndpoint {
    address: [u8; 16],
    port: [u8; 2],
    pad: [u8; 2],
}

impl From<Endpoint> for RawEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            address: endpoint.addr.0,
            port: endpoint.port.to_be_bytes(),
            pad: [0; 2],
        }
    }
}

impl From<RawEndpoint> for Endpoint {
    fn from(raw: RawEndpoint) -> Self {
        Self {
            addr: Address(raw.address),
            port: u16::from_be_bytes(raw.port),
        }
    }
}

/// `struct fl_address`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawAddress(pub(crate) [u8; 16]);

impl From<Address> for RawAddress {
    fn from(address: Address) -> Self {
        Self(address.0)
    }
}

/// `struct fl_listen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawListen {
    pub(crate) index: u16,
    pub(crate) mss: u16,
    pub(crate) window: u16,
    pub(crate) window_scale: u8,
    pub(crate) flags: u8,
}

/// `struct fl_settings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawSettings {
    pub(crate) cookie_k0: u64,
    pub(crate) cookie_k1: u64,
    pub(crate) origin_ns: u64,
    pub(crate) version: u32,
    pub(crate) records: u32,
    pub(crate) netns: u64,
    pub(crate) refuse: u32,
    pub(crate) engine: u32,
    pub(crate) hash_key: u64,
    pub(crate) buckets: u32,
    pub(crate) proven: u32,
    pub(crate) listens: u32,
    pub(crate) servers: u32,
    pub(crate) nats: u32,
    pub(crate) pad: u32,
}

/// The longest payload of a [`RawJoin`], bytes.
pub(crate) const JOIN_BYTES: usize = 1_504;

/// `struct fl_join`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawJoin {
    pub(crate) line: u32,
    pub(crate) dseq: u32,
    pub(crate) our_ts: u32,
    pub(crate) client_ts: u32,
    pub(crate) client_window: u16,
    pub(crate) device_mss: u16,
    pub(crate) payload_bytes: u16,
    pub(crate) payload_sum: u16,
    pub(crate) asked_scale: u8,
    pub(crate) offered_scale: u8,
    pub(crate) syn_mss: u16,
    pub(crate) begun_ms: u32,
    pub(crate) payload: [u8; JOIN_BYTES],
}

/// Tickets of a lane, at most; a power of two.
pub(crate) const LANE_TICKETS: usize = 256;

/// `struct fl_lane`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawLane {
    pub(crate) head: u32,
    pub(crate) pad: [u32; 15],
    pub(crate) tail: u32,
    pub(crate) pad2: [u32; 15],
    pub(crate) lines: [u32; LANE_TICKETS],
}

/// `struct fl_tcb_set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawTcbSet {
    pub(crate) tags: [u64; TCB_WAYS],
    pub(crate) used_at: [u64; TCB_WAYS],
    pub(crate) lines: [u32; TCB_WAYS],
    pub(crate) second: [[u32; TCB_BANKS]; TCB_WAYS],
    pub(crate) pad: [u32; TCB_WAYS],
}

pub(crate) const TCB_BANKS: usize = 2;
pub(crate) const TCB_WAYS: usize = 4;
/// Pieces of four bits of the longest session identifier.
pub(crate) const TCB_PIECES: usize = 36;

/// The sums of a family of universal functions, by piece and its value.
pub(crate) type RawSums = [[u64; 16]; TCB_PIECES];

/// `struct fl_tcb`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawTcb {
    pub(crate) mask: u32,
    pub(crate) on_ticks: u32,
    pub(crate) tick_ns: u64,
    pub(crate) pad: [u64; 6],
    pub(crate) chance: u64,
    pub(crate) pad2: [u64; 7],
    pub(crate) ports: [u64; 1_024],
    pub(crate) first: RawSums,
    pub(crate) second: RawSums,
    pub(crate) tag: RawSums,
}

const _: () = assert!(JOIN_BYTES == fairlead_tcp::ticket::PAYLOAD_BYTES_MAX);
const _: () = assert!(size_of::<RawJoin>() == 1_536);
const _: () = assert!(core::mem::offset_of!(RawJoin, payload) == 32);
const _: () = assert!(size_of::<RawLane>() == 128 + 4 * LANE_TICKETS);
const _: () = assert!(size_of::<RawTcbSet>() == 128);
const _: () = assert!(core::mem::offset_of!(RawTcb, ports) == 128);
const _: () = assert!(size_of::<RawTcb>() == 128 + 8_192 + 3 * 36 * 16 * 8);
const _: () = assert!(size_of::<RawFlowKey>() == 36);
const _: () = assert!(size_of::<RawEndpoint>() == 20);
const _: () = assert!(size_of::<RawListen>() == 8);
const _: () = assert!(size_of::<RawSettings>() == 80);
// Other builds look for it there, whatever their layout.
const _: () = assert!(core::mem::offset_of!(RawSettings, netns) == 32);
const _: () = assert!(size_of::<RawBucket>() == 64);
const _: () = assert!(size_of::<Record>() == 64);
const _: () = assert!(core::mem::offset_of!(Record, seq_delta) == 28);
const _: () = assert!(core::mem::offset_of!(Record, last_active) == 56);
const _: () = assert!(core::mem::offset_of!(Record, state) == 60);
const _: () = assert!(core::mem::offset_of!(Record, flags) == 61);
const _: () = assert!(core::mem::offset_of!(Record, server_shift) == 63);

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl Pod for RawFlowKey {}
// SAFETY: as above.
unsafe impl Pod for RawEndpoint {}
// SAFETY: as above.
unsafe impl Pod for RawAddress {}
// SAFETY: as above.
unsafe impl Pod for RawListen {}
// SAFETY: as above.
unsafe impl Pod for RawSettings {}
// SAFETY: as above.
unsafe impl Pod for RawBucket {}
// SAFETY: as above.
unsafe impl Pod for RawJoin {}
// SAFETY: as above.
unsafe impl Pod for RawLane {}
// SAFETY: as above.
unsafe impl Pod for RawTcbSet {}
// SAFETY: as above.
unsafe impl Pod for RawTcb {}
