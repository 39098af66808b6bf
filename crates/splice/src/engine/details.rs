//! What is kept of the set-up of live connections until their ends, for the access log.

use fairlead_base::{Instant, Packet, SeqNumber};
use fairlead_tcp::Line;
use fairlead_wire::TcpPacket;

use super::Switch;
use super::setup::SetupId;
use crate::config::Protocol;
use crate::event::Details;

/// The details of connections, by line.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// As long as the highest line that ever had some.
    by_line: Vec<Option<Box<Details>>>,
    bytes: u64,
    bytes_max: u64,
}

impl Kept {
    /// For at most this many bytes; 0: nothing is kept.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// False if there is no room.
    fn keep(&mut self, line: Line, details: Box<Details>) -> bool {
        let index = line.0 as usize;
        self.take(line);
        let bytes = bytes_of(&details);
        if self.bytes + bytes > self.bytes_max {
            return false;
        }
        if self.by_line.len() <= index {
            self.by_line.resize_with(index + 1, || None);
        }
        self.by_line[index] = Some(details);
        self.bytes += bytes;
        true
    }

    /// The details of a connection that ends.
    pub(super) fn take(&mut self, line: Line) -> Option<Box<Details>> {
        let details = self.by_line.get_mut(line.0 as usize)?.take()?;
        self.bytes -= bytes_of(&details);
        Some(details)
    }

    /// Panics unless the sum is that of the details.
    pub(super) fn check(&self) {
        let all = self.by_line.iter().flatten();
        let bytes: u64 = all.map(|details| bytes_of(details)).sum();
        assert_eq!(bytes, self.bytes, "bytes of details");
    }
}

fn bytes_of(details: &Details) -> u64 {
    (size_of::<Details>() + details.subject.heap_bytes()) as u64
}

impl Switch {
    /// Keeps the details of a connection that is joined now, if that is wanted. `seen`: the engine
    /// has seen the server's answer at this moment.
    pub(super) fn keep_details(&mut self, now: Instant, line: Line, index: SetupId, seen: bool) {
        if !self.details.is_on() {
            return;
        }
        let Some(setup) = self.setups.peek(index) else {
            return;
        };
        let decided = setup.decided.unwrap_or(setup.begun);
        let asked = setup.asked.filter(|_| seen);
        let details = Box::new(Details {
            subject: match &setup.decision {
                Some(decision) => decision.subject.clone(),
                None => Default::default(),
            },
            head: decided.since(setup.begun),
            connect: asked.map(|asked| now.since(asked)),
            retries: setup.attempts.saturating_sub(1),
            status: None,
        });
        if !self.details.keep(line, details) {
            self.counts.shown.details_lost += 1;
        }
    }

    /// Notes the status of an HTTP response that begins with this segment of the server.
    pub(super) fn note_status(&mut self, packet: &Packet, header: &TcpPacket, line: Line) {
        if !self.details.is_on() {
            return;
        }
        let record = self.table.record(line);
        let first = header.seq == SeqNumber(record.server_isn) + 1;
        if !first || self.service_of(record.listen).protocol != Protocol::Http {
            return;
        }
        let status = status_of(header.payload(&packet.bytes));
        let details = self.details.by_line.get_mut(line.0 as usize);
        if let Some(Some(details)) = details
            && status.is_some()
        {
            details.status = status;
        }
    }
}

/// The status in the first line of an HTTP/1 response.
fn status_of(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            b'0' | b'1',
            b' ',
            status @ ..,
        ] => {
            let digits = status.get(..3)?;
            let ends = matches!(status.get(3), Some(b' ' | b'\r'));
            let number = digits.iter().try_fold(0, |number, digit| {
                let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
                Some(number * 10 + digit)
            })?;
            (ends && number >= 100).then_some(number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_wire::Asked;

    use super::*;

    fn details(path: &str) -> Box<Details> {
        Box::new(Details {
            subject: Asked::http("GET", "a", path.as_bytes()),
            ..Details::default()
        })
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let bytes = bytes_of(&details("/"));
        let mut kept = Kept::new(2 * bytes);
        assert!(kept.keep(Line(3), details("/")));
        assert!(kept.keep(Line(7), details("/")));
        assert!(!kept.keep(Line(5), details("/")));
        kept.check();
        assert!(
            kept.keep(Line(7), details("/")),
            "in place of the one before"
        );
        assert!(kept.take(Line(3)).is_some() && kept.take(Line(3)).is_none());
        assert!(kept.take(Line(100)).is_none());
        assert!(kept.keep(Line(5), details("/")));
        kept.check();
    }

    #[test]
    fn only_a_status_is_a_status() {
        assert_eq!(status_of(b"HTTP/1.1 200 OK\r\n"), Some(200));
        assert_eq!(status_of(b"HTTP/1.0 404\r\n"), Some(404));
        for other in [
            &b""[..],
            b"HTTP/1.1 200",
            b"HTTP/1.1 20",
            b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 2x0 OK",
            b"HTTP/1.1 099 OK",
            b"HTTP/2.0 200 OK",
            b"ICY 200 OK",
            b"\xff\xff",
        ] {
            assert_eq!(status_of(other), None, "{other:?}");
        }
    }
}
