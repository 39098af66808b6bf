//! World Cup 98 as a table without header: `client,dd/Mon/yyyy,HH:MM:SS,object,status,bytes`, UTC.
//! Objects may hold commas: the two last fields are counted from the end.

use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::requests::BYTES_UNKNOWN;
use crate::stamp::Calendar;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct WorldCupCsv {
    calendar: Calendar,
}

impl LineFormat for WorldCupCsv {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let (client, rest) = field::cut(line, b',').ok_or(Reason::Fields)?;
        let (day, rest) = field::cut(rest, b',').ok_or(Reason::Fields)?;
        let (time, rest) = field::cut(rest, b',').ok_or(Reason::Fields)?;
        let mut last = rest.rsplitn(3, |byte| *byte == b',');
        let (Some(bytes), Some(status), Some(object)) = (last.next(), last.next(), last.next())
        else {
            return Err(Reason::Fields);
        };
        field::number(client).ok_or(Reason::Client)?;
        let time_us = self
            .calendar
            .day_and_time_us(day, time)
            .ok_or(Reason::Time)?;
        // `-` where the server's log has no status.
        let status = match status {
            b"-" => 0,
            digits => field::number16(digits).ok_or(Reason::Status)?,
        };
        let bytes = match bytes {
            b"-" => BYTES_UNKNOWN,
            digits => field::number(digits).ok_or(Reason::Size)?,
        };
        let client = out.client_named(client)?;
        out.push(Row {
            bytes,
            object: hash64(object),
            status,
            ..Row::new(time_us, client)
        })
    }
}
