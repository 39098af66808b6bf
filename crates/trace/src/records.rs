//! Records of a fixed length from a source, in bounded memory.

use crate::error::{Fault, Place, TraceError};
use crate::read::Watch;
use crate::source::{Source, fill};

/// Block size, bytes: with the output, it fits the L2 cache.
const RECORDS_BYTES: usize = 256 << 10;

/// Passes all records of `LEN` bytes to `take`, many at a time; `take` returns the current number
/// of rows.
pub(crate) fn read<const LEN: usize>(
    source: &mut Source,
    watch: &mut Watch<'_>,
    mut take: impl FnMut(&mut Watch<'_>, &[[u8; LEN]]) -> Result<u64, TraceError>,
) -> Result<(), TraceError> {
    let mut buffer = vec![0u8; RECORDS_BYTES / LEN * LEN];
    loop {
        let count = match fill(source, &mut buffer) {
            Ok(count) => count,
            Err(error) => {
                let place = Place::Byte(watch.bytes());
                return Err(watch.error(place, Fault::of_io(error)));
            }
        };
        let (records, rest) = buffer[..count].as_chunks::<LEN>();
        let rows = take(watch, records)?;
        watch.add_bytes(count as u64);
        if !rest.is_empty() {
            let place = Place::Byte(watch.bytes() - rest.len() as u64);
            let what = format!("a record of {LEN} bytes");
            return Err(watch.error(place, Fault::Cut(what)));
        }
        watch.turn(rows)?;
        if count < buffer.len() {
            return Ok(());
        }
    }
}

/// The four bytes at `at`.
#[inline]
pub(crate) fn four<const LEN: usize>(record: &[u8; LEN], at: usize) -> [u8; 4] {
    let mut four = [0; 4];
    four.copy_from_slice(&record[at..at + 4]);
    four
}

/// The eight bytes at `at`.
#[inline]
pub(crate) fn eight<const LEN: usize>(record: &[u8; LEN], at: usize) -> [u8; 8] {
    let mut eight = [0; 8];
    eight.copy_from_slice(&record[at..at + 8]);
    eight
}
