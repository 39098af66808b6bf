//! World Cup 98: records of 20 bytes, big-endian: time (seconds since 1970), client, object, size
//! (`ffffffff`: unknown), then a byte each for method, status, type and server. The two high bits
//! of the status' byte are the HTTP version; the others number a status code.

use crate::builder::{Builder, Row};
use crate::error::{Place, TraceError};
use crate::hash::address_of_name;
use crate::intern::NumberTable;
use crate::read::Watch;
use crate::reason::Reason;
use crate::records::{self, four};
use crate::requests::BYTES_UNKNOWN;
use crate::source::Source;

const LEN: usize = 20;

/// The last method and the last file type numbered by the archive, each for all others. The last
/// type only terminates the archive's list; it is accepted anyway.
const METHOD_MAX: u8 = 8;
const TYPE_MAX: u8 = 13;

/// Seconds of 1998-04-01 and 1998-09-01: the servers' life with a margin.
const LIFE: core::ops::Range<u32> = 891_388_800..904_608_000;

/// Clients are numbered densely in the archive, so a plain column suffices; larger numbers go to a
/// table.
const DENSE_MAX: u32 = 1 << 24;
const NONE: u32 = u32::MAX;

/// Status codes by the archive's number.
const STATUS: [u16; 38] = [
    100, 101, 200, 201, 202, 203, 204, 205, 206, 300, 301, 302, 303, 304, 305, 400, 401, 402, 403,
    404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 500, 501, 502, 503, 504, 505, 0,
];

#[inline]
fn number<const AT: usize>(record: &[u8; LEN]) -> u32 {
    u32::from_be_bytes(four(record, AT))
}

/// True when all records of `head` are of the summer of 1998.
pub(crate) fn plausible(head: &[u8]) -> bool {
    let (records, _) = head.as_chunks::<LEN>();
    let fits = |record: &[u8; LEN]| LIFE.contains(&number::<0>(record));
    !records.is_empty() && records.iter().all(fits)
}

/// True if a record's fields are in the archive's range. Time may step back: files are joined in
/// any order, and rows sorted afterwards.
#[inline]
fn may_be(record: &[u8; LEN]) -> bool {
    LIFE.contains(&number::<0>(record)) && record[16] <= METHOD_MAX && record[18] <= TYPE_MAX
}

#[derive(Debug, Default)]
struct Clients {
    dense: Vec<u32>,
    sparse: NumberTable,
}

impl Clients {
    #[inline]
    fn number(&mut self, client: u32, out: &mut Builder) -> Result<u32, Reason> {
        if let Some(known) = self.dense.get(client as usize)
            && *known != NONE
        {
            return Ok(*known);
        }
        self.other(client, out)
    }

    #[cold]
    fn other(&mut self, client: u32, out: &mut Builder) -> Result<u32, Reason> {
        if client < DENSE_MAX {
            let add = add(client, out)?;
            let len = (client as usize + 1)
                .next_power_of_two()
                .max(self.dense.len());
            self.dense.resize(len, NONE);
            self.dense[client as usize] = add;
            return Ok(add);
        }
        let next = out.requests_mut().clients.len() as u32;
        let (number, fresh) = self.sparse.number(u64::from(client), next);
        if fresh {
            add(client, out)?;
        }
        Ok(number)
    }
}

fn add(client: u32, out: &mut Builder) -> Result<u32, Reason> {
    out.add(address_of_name(client.to_string().as_bytes()), true)
}

#[inline]
fn row(record: &[u8; LEN], client: u32) -> Row {
    let bytes = match number::<12>(record) {
        u32::MAX => BYTES_UNKNOWN,
        bytes => u64::from(bytes),
    };
    Row {
        bytes,
        // No object has number 0 in the columns: that is the unknown one.
        object: u64::from(number::<8>(record)) + 1,
        status: STATUS[usize::from(record[17] & 0x3f).min(STATUS.len() - 1)],
        ..Row::new(i64::from(number::<0>(record)) * 1_000_000, client)
    }
}

pub(crate) fn requests(
    source: &mut Source,
    out: &mut Builder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let mut clients = Clients::default();
    records::read::<LEN>(source, watch, |watch, records| {
        for (at, record) in records.iter().enumerate() {
            let client = match may_be(record) {
                true => clients.number(number::<4>(record), out),
                false => Err(Reason::Record),
            };
            if let Err(reason) = client.and_then(|client| out.push(row(record, client))) {
                let before = watch.bytes() / LEN as u64;
                let place = Place::Row(before + at as u64 + 1);
                watch.other(place, Err(reason), out.rows())?;
            }
        }
        Ok(out.rows())
    })
}
