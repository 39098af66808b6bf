//! What the maps of the program take.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use aya::Ebpf;
use aya::maps::Map;
use fairlead_tcp::ticket::TICKETS_MAX;

use crate::flow_table::FlowTableKind;
use crate::index::buckets_for;
use crate::joins::PLACES_MAX;
use crate::kernel::RawRecord;
use crate::layout::{RawBucket, RawJoin};
use crate::sys;

/// About what the kernel sets aside for the maps of a table of `records` connections, bytes:
/// all that are large.
pub fn map_bytes_for(kind: &FlowTableKind, records: u32) -> u64 {
    let index = match kind.evicts() {
        true => 0,
        false => u64::from(buckets_for(records)) * size_of::<RawBucket>() as u64,
    };
    let joins = u64::from(TICKETS_MAX + records.min(PLACES_MAX)) * size_of::<RawJoin>() as u64;
    let keys = u64::from(kind.keys(records)) * HASHED_KEY_BYTES;
    u64::from(records) * size_of::<RawRecord>() as u64 + index + joins + keys + RING_BYTES
}

/// A key of the kernel's hash map with what the kernel keeps beside it.
const HASHED_KEY_BYTES: u64 = 112;
/// `fl_capture_ring`.
const RING_BYTES: u64 = 4 << 20;

/// What the kernel has set aside for each map of the program.
pub(crate) fn map_bytes(ebpf: &Ebpf) -> BTreeMap<String, u64> {
    let of = |map: &Map| match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data)
        | Map::DevMap(data)
        | Map::DevMapHash(data)
        | Map::Unsupported(data) => sys::map_bytes(data.fd().as_fd()),
        _ => 0,
    };
    let maps = ebpf.maps().map(|(name, map)| (name.to_owned(), of(map)));
    maps.collect()
}
