//! What user space and the kernel program agree on, made by the build script from
//! `bpf/include/fairlead/layout.h`; a field that is not where the header has it fails the build.

use fairlead_base::{Address, Endpoint, FlowKey};

include!(concat!(env!("OUT_DIR"), "/layout.rs"));

const _: () = assert!(JOIN_BYTES == fairlead_tcp::ticket::PAYLOAD_BYTES_MAX);
// Other builds look for it there, whatever their layout.
const _: () = assert!(core::mem::offset_of!(RawSettings, netns) == 32);

/// The sums of a family of universal functions, by piece and its value.
pub(crate) type RawSums = [[u64; 16]; TCB_PIECES];

impl From<&FlowKey> for RawFlowKey {
    fn from(key: &FlowKey) -> Self {
        Self {
            src: key.src.addr.into(),
            dst: key.dst.addr.into(),
            src_port: key.src.port.to_be_bytes(),
            dst_port: key.dst.port.to_be_bytes(),
        }
    }
}

impl RawFlowKey {
    /// As it lies in memory.
    pub(crate) fn words(&self) -> [u32; 9] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&self.src.bytes);
        bytes[16..32].copy_from_slice(&self.dst.bytes);
        bytes[32..34].copy_from_slice(&self.src_port);
        bytes[34..].copy_from_slice(&self.dst_port);
        let (words, _) = bytes.as_chunks::<4>();
        core::array::from_fn(|at| u32::from_ne_bytes(words[at]))
    }
}

impl From<Endpoint> for RawEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            addr: endpoint.addr.into(),
            port: endpoint.port.to_be_bytes(),
            pad: 0,
        }
    }
}

impl From<RawEndpoint> for Endpoint {
    fn from(raw: RawEndpoint) -> Self {
        Self {
            addr: raw.addr.into(),
            port: u16::from_be_bytes(raw.port),
        }
    }
}

impl From<Address> for RawAddress {
    fn from(address: Address) -> Self {
        Self { bytes: address.0 }
    }
}

impl From<RawAddress> for Address {
    fn from(raw: RawAddress) -> Self {
        Self(raw.bytes)
    }
}
