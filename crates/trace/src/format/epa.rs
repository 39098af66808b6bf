//! EPA-HTTP: `host [DD:HH:MM:SS] "request" status bytes`. Lines have the day of the month only; the
//! archive's description says August 1995, in Eastern Daylight Time.

use super::clf::answer;
use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::stamp::{date, time_of_day_us, two};

const DAY_US: i64 = 86_400_000_000;
/// What must be added to get UTC.
const WEST_US: i64 = 4 * 3_600_000_000;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Epa;

impl LineFormat for Epa {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let (host, rest) = field::cut(line, b' ').ok_or(Reason::Fields)?;
        let [b'[', rest @ ..] = rest else {
            return Err(Reason::Time);
        };
        let (stamp, rest) = field::cut(rest, b']').ok_or(Reason::Time)?;
        let time_us = time_us(stamp).ok_or(Reason::Time)?;
        let answer = answer(rest.trim_ascii_start())?;
        let client = out.client(host)?;
        out.push(Row {
            bytes: answer.bytes,
            object: hash64(field::object_of(answer.request)),
            status: answer.status,
            ..Row::new(time_us, client)
        })
    }
}

fn time_us(stamp: &[u8]) -> Option<i64> {
    if stamp.len() != 11 || stamp[2] != b':' {
        return None;
    }
    let time = time_of_day_us(&stamp[3..])?;
    Some(date(1995, 8, two(stamp, 0)?)? * DAY_US + time + WEST_US)
}
