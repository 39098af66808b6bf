//! SDSC-HTTP: `N+M: Www Mmm DD HH:MM:SS YYYY (path): outcome: request`, in Pacific Daylight Time.
//! `N` is the number of a client and `M` that of its visit; `UNR host:` stands where the host was
//! not numbered. There are no sizes and no status codes.

use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::stamp::{date, month, time_of_day_us};

const DAY_US: i64 = 86_400_000_000;
/// What must be added to get UTC.
const WEST_US: i64 = 7 * 3_600_000_000;
/// Letters of `Www Mmm DD HH:MM:SS YYYY`.
const STAMP_BYTES: usize = 24;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Sdsc;

impl LineFormat for Sdsc {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let (who, rest) = field::cut(line, b':').ok_or(Reason::Fields)?;
        let name = match who.strip_prefix(b"UNR ") {
            Some(host) => host.trim_ascii(),
            None => {
                let (number, visit) = field::cut(who, b'+').ok_or(Reason::Client)?;
                field::number(number).ok_or(Reason::Client)?;
                field::number(visit).ok_or(Reason::Client)?;
                number
            }
        };
        let rest = rest.strip_prefix(b" ").ok_or(Reason::Time)?;
        let stamp = rest.get(..STAMP_BYTES).ok_or(Reason::Time)?;
        let time_us = time_us(stamp).ok_or(Reason::Time)?;
        let rest = rest[STAMP_BYTES..]
            .strip_prefix(b" (")
            .ok_or(Reason::Request)?;
        // Behind the path and the outcome; either may hold colons, the request's method none.
        let request = rest.windows(2).rposition(|pair| pair == b": ");
        let request = request.map(|at| &rest[at + 2..]).ok_or(Reason::Request)?;
        let client = out.client(name)?;
        out.push(Row {
            object: hash64(field::object_of(request)),
            ..Row::new(time_us, client)
        })
    }
}

fn time_us(stamp: &[u8]) -> Option<i64> {
    let number = |text: &[u8]| u32::try_from(field::number(text)?).ok();
    let (year, day) = (
        number(&stamp[20..24])?,
        number(stamp[8..10].trim_ascii_start())?,
    );
    let days = date(year, month(&stamp[4..7])?, day)?;
    Some(days * DAY_US + time_of_day_us(&stamp[11..19])? + WEST_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_that_there_are_not_are_refused() {
        let at = |stamp: &[u8]| time_us(stamp).map(|us| us / 1_000_000);
        assert_eq!(at(b"Tue Aug 22 00:00:00 1995"), Some(809_074_800));
        assert_eq!(at(b"Tue Aug  1 00:00:00 1995"), Some(807_260_400));
        for wrong in [b"Sat Jun 31 00:00:00 1995", b"Sat Aug  0 00:00:00 1995"] {
            assert_eq!(at(wrong), None);
        }
    }
}
