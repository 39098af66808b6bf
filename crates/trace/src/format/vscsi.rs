//! CloudPhysics' traces of virtual disks, version 1: records of 32 bytes, little-endian: serial
//! number (u32), length in bytes (u32), parts (u32), SCSI command (u16), version (u16, 0x0100),
//! block (u64), microseconds since 1970 (u64). There are no clients: all rows are of one.

use fairlead_base::Address;

use crate::builder::{Builder, Row};
use crate::error::{Place, TraceError};
use crate::read::Watch;
use crate::reason::Reason;
use crate::records::{self, eight, four};
use crate::source::Source;

const LEN: usize = 32;
const VERSION: [u8; 2] = [0x00, 0x01];

fn is_version_1(record: &[u8; LEN]) -> bool {
    record[14..16] == VERSION
}

pub(crate) fn plausible(head: &[u8]) -> bool {
    let (records, _) = head.as_chunks::<LEN>();
    !records.is_empty() && records.iter().all(is_version_1)
}

pub(crate) fn requests(
    source: &mut Source,
    out: &mut Builder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let mut client = None;
    records::read::<LEN>(source, watch, |watch, records| {
        for (at, record) in records.iter().enumerate() {
            let read = row(record, &mut client, out);
            if let Err(reason) = read.and_then(|row| out.push(row)) {
                let place = Place::Byte(watch.bytes() + (at * LEN) as u64);
                watch.other(place, Err(reason), out.rows())?;
            }
        }
        Ok(out.rows())
    })
}

fn row(record: &[u8; LEN], client: &mut Option<u32>, out: &mut Builder) -> Result<Row, Reason> {
    if !is_version_1(record) {
        return Err(Reason::Record);
    }
    let time_us = u64::from_le_bytes(eight(record, 24));
    let time_us = i64::try_from(time_us).map_err(|_| Reason::Time)?;
    let client = match *client {
        Some(client) => client,
        None => *client.insert(out.add(Address::default(), true)?),
    };
    Ok(Row {
        bytes: u64::from(u32::from_le_bytes(four(record, 4))),
        // No object has number 0 in the columns: that is the unknown one.
        object: u64::from_le_bytes(eight(record, 16)).wrapping_add(1),
        ..Row::new(time_us, client)
    })
}
