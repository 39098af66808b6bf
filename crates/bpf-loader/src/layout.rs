//! What user space and the kernel program agree on: the Rust side of
//! `bpf/include/fairlead/layout.h`. Sizes and offsets are asserted in both.

use aya::Pod;
use fairlead_base::{Address, Endpoint, FlowKey};
use fairlead_tcp::Record;

/// Goes up with every change of a map's content: a program never touches maps of another version.
pub(crate) const VERSION: u32 = 3;

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
}

/// `struct fl_flow_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(crate) pad: u32,
}

const _: () = assert!(size_of::<RawFlowKey>() == 36);
const _: () = assert!(size_of::<RawEndpoint>() == 20);
const _: () = assert!(size_of::<RawListen>() == 8);
const _: () = assert!(size_of::<RawSettings>() == 48);
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
