//! AWS classic load balancer: `time name client:port backend:port request_s backend_s response_s
//! status backend_status received_bytes sent_bytes "request" "agent" cipher protocol`.

use memchr::{memchr, memrchr};

use super::word;
use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::stamp::IsoCalendar;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Elb {
    calendar: IsoCalendar,
}

impl LineFormat for Elb {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let (stamp, rest) = word(line);
        let time_us = self.calendar.stamp_us(stamp).ok_or(Reason::Time)?;
        let (_, rest) = word(rest);
        let (client, rest) = word(rest);
        let colon = memrchr(b':', client).ok_or(Reason::Port)?;
        let port = field::number16(&client[colon + 1..]).ok_or(Reason::Port)?;
        let address = client[..colon].trim_ascii();
        let (_, rest) = word(rest);
        let mut rest = rest;
        for _ in 0..3 {
            (_, rest) = word(rest);
        }
        let (status, rest) = word(rest);
        // `-` where the balancer answered nothing.
        let status = match status {
            b"-" => 0,
            digits => field::number16(digits).ok_or(Reason::Status)?,
        };
        let (_, rest) = word(rest);
        let (received, rest) = word(rest);
        field::number(received).ok_or(Reason::Size)?;
        let (sent, rest) = word(rest);
        let bytes = field::number(sent).ok_or(Reason::Size)?;
        let [b'"', rest @ ..] = rest else {
            return Err(Reason::Request);
        };
        let end = memchr(b'"', rest).ok_or(Reason::Request)?;
        let client = out.client(address)?;
        out.push(Row {
            port,
            bytes,
            object: hash64(field::object_of(&rest[..end])),
            status,
            ..Row::new(time_us, client)
        })
    }
}
