//! SEC EDGAR: a table with header `ip,date,time,zone,cik,accession,extention,code,size,…`. The last
//! part of an address is three letters, the same for the same address. The zone is hours behind
//! UTC in some years' files and 0 in others; times are taken as UTC.

use fairlead_base::Address;

use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::{address_of_name, hash64};
use crate::lines::LineFormat;
use crate::reason::{Passed, Reason, Step};
use crate::requests::BYTES_UNKNOWN;
use crate::stamp::{IsoCalendar, time_of_day_us};

/// Start of the header.
pub(crate) const HEADER: &[u8] = b"ip,date,time,zone,cik,accession,";

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Edgar {
    calendar: IsoCalendar,
}

impl LineFormat for Edgar {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        if line.starts_with(HEADER) {
            return Ok(Step::Passed(Passed::Comment));
        }
        let mut fields = line.split(|byte| *byte == b',');
        let mut next = || fields.next().ok_or(Reason::Fields);
        let (ip, date, time, _zone) = (next()?, next()?, next()?, next()?);
        let (cik, accession, extension) = (next()?, next()?, next()?);
        let (code, size) = (next()?, next()?);
        let day_us = self.calendar.day_us(date).ok_or(Reason::Time)?;
        let time_us = day_us + time_of_day_us(time).ok_or(Reason::Time)?;
        let status = field::whole(code).and_then(|code| u16::try_from(code).ok());
        let status = status.ok_or(Reason::Status)?;
        let bytes = match size {
            b"" => BYTES_UNKNOWN,
            size => field::whole(size).ok_or(Reason::Size)?,
        };
        let object = hash64(cik) ^ hash64(accession).rotate_left(1) ^ hash64(extension);
        let client = match field::v4(ip) {
            Some(address) => out.client_v4(address)?,
            None if ip.is_empty() => return Err(Reason::Client),
            None => out.client_with(ip, || masked(ip))?,
        };
        out.push(Row {
            bytes,
            object,
            status,
            ..Row::new(time_us, client)
        })
    }
}

/// The three known parts of an address, and a hash of the hidden one; a hash of the whole if there
/// are no such parts. Two hidden parts of one network collide with probability 1/256.
fn masked(ip: &[u8]) -> Address {
    let mut octets = [0u8; 4];
    let mut parts = ip.split(|byte| *byte == b'.');
    for octet in &mut octets[..3] {
        match parts
            .next()
            .and_then(field::number)
            .and_then(|part| u8::try_from(part).ok())
        {
            Some(part) => *octet = part,
            None => return address_of_name(ip),
        }
    }
    octets[3] = hash64(parts.next().unwrap_or_default()) as u8;
    Address::v4(octets)
}
