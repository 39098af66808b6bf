//! libCacheSim's `oracleGeneral`: records of 24 bytes, little-endian: time in seconds (u32), object
//! (u64), size in bytes (u32), and the number of the next row with the same object (i64, −1: none).
//!
//! As accesses, an object below 2⁴⁸ is an IPv4 session identifier: address, then port in the low 16
//! bits. Larger numbers become identifiers in `2001:db8::/64`, with the number behind. Both
//! mappings are invertible, so a file written here is read back unchanged.

use std::io::{self, Write};

use fairlead_base::{Address, Endpoint};

use crate::accesses::Accesses;
use crate::builder::{Access, Builder, Row};
use crate::error::{Place, TraceError};
use crate::hash::{fold, hash64};
use crate::read::{AccessBuilder, Watch};
use crate::reason::Reason;
use crate::records::{self, eight, four};
use crate::sessions::unpacked_v4;
use crate::source::Source;

const LEN: usize = 24;
/// Objects below are identifiers of IPv4.
const V4_END: u64 = 1 << 48;
/// No row with the same object follows.
const NEVER: i64 = -1;
/// In the upper half of an IPv6 address: the lower half is an object's number.
const PREFIX: [u8; 8] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0];

#[inline]
fn time_us(record: &[u8; LEN]) -> i64 {
    i64::from(u32::from_le_bytes(four(record, 0))) * 1_000_000
}

#[inline]
fn object(record: &[u8; LEN]) -> u64 {
    u64::from_le_bytes(eight(record, 4))
}

/// True if times never step back and next accesses are in the future, in all records of `head`.
pub(crate) fn plausible(head: &[u8]) -> bool {
    let (records, _) = head.as_chunks::<LEN>();
    let ordered = records.is_sorted_by_key(time_us);
    let ahead = records.iter().enumerate().all(|(row, record)| {
        let next = i64::from_le_bytes(eight(record, 16));
        next == NEVER || next == i64::MAX || next > row as i64 && next < 1 << 48
    });
    !records.is_empty() && ordered && ahead
}

/// The session identifier of an object.
#[inline]
pub fn endpoint_of(object: u64) -> Endpoint {
    if object < V4_END {
        return unpacked_v4(object);
    }
    let mut octets = [0u8; 16];
    octets[..8].copy_from_slice(&PREFIX);
    octets[8..].copy_from_slice(&object.to_be_bytes());
    Endpoint {
        addr: Address::v6(octets),
        port: fold(object, 0x9E37_79B9_7F4A_7C15) as u16,
    }
}

/// The object of a session identifier; for IPv6 addresses outside the prefix, a hash with the top
/// bit set.
pub fn object_of(key: &Endpoint) -> u64 {
    if key.addr.is_v4() {
        let address = u32::from_be_bytes(key.addr.v4_octets());
        return u64::from(address) << 16 | u64::from(key.port);
    }
    let mut low = [0u8; 8];
    low.copy_from_slice(&key.addr.0[8..]);
    let low = u64::from_be_bytes(low);
    if key.addr.0[..8] == PREFIX && endpoint_of(low) == *key {
        return low;
    }
    hash64(&key.addr.0).wrapping_add(u64::from(key.port)) | 1 << 63
}

pub(crate) fn accesses(
    source: &mut Source,
    out: &mut AccessBuilder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let mut packed = Vec::new();
    records::read::<LEN>(source, watch, |watch, records| {
        packed.clear();
        packed.extend(records.iter().map(object));
        let taken = if packed.iter().all(|object| *object < V4_END) {
            out.push_v4(records.iter().map(time_us), &packed)
        } else {
            one_by_one(records, out)
        };
        if taken < records.len() {
            let place = Place::Byte(watch.bytes() + (taken * LEN) as u64);
            watch.other(place, Err(Reason::Sessions), out.rows())?;
        }
        Ok(out.rows())
    })
}

/// Records with large objects among them. Gives how many were taken.
fn one_by_one(records: &[[u8; LEN]], out: &mut AccessBuilder) -> usize {
    let push = |record: &[u8; LEN]| {
        out.push(Access {
            time_us: time_us(record),
            key: endpoint_of(object(record)),
            hint: 0,
        })
    };
    let full = records.iter().map(push).position(|pushed| pushed.is_err());
    full.unwrap_or(records.len())
}

/// As requests: there are no clients, so all rows belong to one.
pub(crate) fn requests(
    source: &mut Source,
    out: &mut Builder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let mut client = None;
    records::read::<LEN>(source, watch, |watch, records| {
        for record in records {
            let number = match client {
                Some(number) => Ok(number),
                None => out.add(Address::default(), true),
            };
            client = number.ok();
            let row = |number| Row {
                bytes: u64::from(u32::from_le_bytes(four(record, 12))),
                object: object(record),
                ..Row::new(time_us(record), number)
            };
            if let Err(reason) = number.and_then(|number| out.push(row(number))) {
                watch.other(Place::Byte(0), Err(reason), out.rows())?;
            }
        }
        Ok(out.rows())
    })
}

/// Writes accesses as `oracleGeneral`: objects are [`object_of`] the identifiers, all of size 1,
/// times whole seconds, from `origin_s` on.
///
/// # Errors
/// When `out` cannot be written, or a time does not fit 32 bits of seconds.
pub fn write(accesses: &Accesses, origin_s: u32, out: impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 20, out);
    let mut next = vec![NEVER; accesses.len()];
    let mut seen = vec![NEVER; accesses.keys.len()];
    for (row, id) in accesses.id.iter().enumerate().rev() {
        let last = &mut seen[*id as usize];
        next[row] = std::mem::replace(last, row as i64);
    }
    let objects: Vec<u64> = accesses.keys.iter().map(object_of).collect();
    for (row, id) in accesses.id.iter().enumerate() {
        let seconds = accesses.time_us[row] / 1_000_000 + u64::from(origin_s);
        let seconds = u32::try_from(seconds)
            .map_err(|_| io::Error::other("a time does not fit 32 bits of seconds"))?;
        let mut record = [0u8; LEN];
        record[..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..12].copy_from_slice(&objects[*id as usize].to_le_bytes());
        record[12..16].copy_from_slice(&1u32.to_le_bytes());
        record[16..].copy_from_slice(&next[row].to_le_bytes());
        out.write_all(&record)?;
    }
    out.flush()
}
