//! The one request of a one-shot connection. The server gets its head and its body, and nothing
//! that the client sends behind them: that may be a request for which another route decides.
//!
//! Until all of the request has come the engine has the connection, and its state is kept beside
//! the held bytes (`held.rs`). Then the record has [`flag::ONE_REQUEST`], and the request ends at
//! the last byte seen of the client. A fast path leaves what may lie behind that to the engine, and
//! forwards the rest, the whole answer.

use core::time::Duration;

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, Record, Side};
use fairlead_wire::http::{Body, ChunkScan, ChunkScanner, RequestHead};
use fairlead_wire::{TcpFlags, TcpPacket};

use super::setup::SetupId;
use super::{Switch, timer};
use crate::Verdict;
use crate::event::End;
use crate::translate;

/// A client that goes on asking is let go once its server has been silent for so long after all
/// that it has answered: such a server does not close, and the client may ask anew elsewhere.
const QUIET: Duration = Duration::from_secs(1);

/// Where a request ends that has not come as a whole, as bytes of the client's stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// The head ends here; the end of the body is found like this.
    Head(u64, Body),
    /// It ends here.
    Until(u64),
    /// Chunks have been read up to here.
    Chunks(u64, ChunkScanner),
}

impl Request {
    pub(super) fn behind(head: &RequestHead<'_>) -> Self {
        Self::Head(head.head_len as u64, head.body())
    }

    /// How many of a stream's first bytes are the request's; the whole head is among them.
    pub(super) fn first_bytes(&mut self, bytes: &[u8]) -> usize {
        if let Self::Head(head_len, body) = *self {
            *self = match body {
                Body::Length(length) => Self::Until(head_len.saturating_add(length)),
                Body::Chunked => Self::Chunks(head_len, ChunkScanner::default()),
            };
            if body == Body::Chunked {
                let behind = bytes.get(head_len as usize..).unwrap_or_default();
                return head_len as usize + self.read_chunks(behind);
            }
        }
        let until = usize::try_from(self.known_until()).unwrap_or(usize::MAX);
        bytes.len().min(until)
    }

    /// All before this is known to be the request's.
    fn known_until(&self) -> u64 {
        match *self {
            Self::Head(until, _) | Self::Until(until) | Self::Chunks(until, _) => until,
        }
    }

    /// Reads chunks; how many of the bytes are the request's. What can be none of a body ends it,
    /// as its end does: no byte of it is forwarded.
    fn read_chunks(&mut self, bytes: &[u8]) -> usize {
        let Self::Chunks(at, scanner) = self else {
            return 0;
        };
        match scanner.scan(bytes) {
            ChunkScan::Incomplete => {
                *at += bytes.len() as u64;
                bytes.len()
            }
            ChunkScan::Complete(count) | ChunkScan::Malformed(count) => {
                *self = Self::Until(*at + count as u64);
                count
            }
        }
    }
}

/// The offset of a number in the client's stream.
fn offset_of(record: &Record, seq: SeqNumber) -> i64 {
    let fin = u32::from(record.flags & flag::CLIENT_FIN != 0);
    let nxt = SeqNumber(record.client_nxt) - fin;
    record.bytes_in() as i64 + i64::from(seq.since(nxt))
}

impl Switch {
    /// Cuts off what a client's packet brings from behind its one request. An error when nothing is
    /// left of it.
    pub(super) fn keep_to_request(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Result<TcpPacket, Verdict> {
        let record = *self.table.record(line);
        let brings = header.segment_len() > 0 && !header.flags.contains(TcpFlags::RST);
        if !record.state.is_live() || !brings {
            return Ok(*header);
        }
        let at = offset_of(&record, header.seq);
        let until = if record.flags & flag::ONE_REQUEST != 0 {
            record.bytes_in()
        } else {
            let payload = header.payload(&packet.bytes);
            match self.request_of(line) {
                None => return Ok(*header),
                Some(request) => {
                    if let Request::Chunks(read, _) = *request {
                        // They can only be read in order.
                        let skip = usize::try_from(read as i64 - at);
                        let Ok(skip) = skip else {
                            return Err(self.drop(DropReason::BadSequence));
                        };
                        request.read_chunks(payload.get(skip..).unwrap_or_default());
                    }
                    request.known_until()
                }
            }
        };
        let end = at + header.payload_len() as i64;
        if end <= until as i64 {
            return Ok(*header);
        }
        self.counts.drops.add(DropReason::BehindRequest);
        match usize::try_from(until as i64 - at) {
            Ok(kept) if kept > 0 => {
                let kept = translate::trim_back(packet, header, kept);
                kept.ok_or_else(|| self.drop(DropReason::Truncated))
            }
            _ => {
                self.end_answered(now, header, line);
                Err(Verdict::Drop(DropReason::BehindRequest))
            }
        }
    }

    /// A client goes on asking: where it has its whole answer, the connection is over.
    fn end_answered(&mut self, now: Instant, header: &TcpPacket, line: Line) {
        let record = *self.table.record(line);
        let has_all = header.ack - record.seq_delta == record.nxt(Side::Server);
        let closed = record.flags & flag::SERVER_FIN != 0;
        let quiet_ms = timer::quiet_ms(Self::now_ms(now), record.last_active);
        let quiet = record.bytes_out() > 0 && u128::from(quiet_ms) >= QUIET.as_millis();
        if header.flags.contains(TcpFlags::ACK) && has_all && (closed || quiet) {
            self.reset_both(line);
            self.note_end(now, line, End::Finished);
            self.free(line);
        }
    }

    fn request_of(&mut self, line: Line) -> Option<&mut Request> {
        if self.table.record(line).flags & flag::HELD == 0 {
            return None;
        }
        let setup = self.setup_of(line)?;
        let setup = self.setups.entry(setup)?;
        setup.held.as_mut()?.request.as_mut()
    }

    /// A packet has passed: has all of the request come?
    pub(super) fn follow_request(&mut self, line: Line) {
        if self.request_of(line).is_some()
            && let Some(index) = self.setup_of(line)
        {
            self.note_request(line, index);
            let held = self
                .setups
                .peek(index)
                .and_then(|setup| setup.held.as_ref());
            if held.is_some_and(|held| held.request.is_none() && held.is_empty()) {
                self.let_go(line);
            }
        }
    }

    /// Notes in the record that all of the request has come, once it has.
    pub(super) fn note_request(&mut self, line: Line, index: SetupId) {
        let record = self.table.record_mut(line);
        let setup = self.setups.entry(index);
        let Some(held) = setup.and_then(|setup| setup.held.as_mut()) else {
            return;
        };
        if let Some(Request::Until(until)) = held.request
            && record.bytes_in() >= until
            && record.state.is_live()
        {
            held.request = None;
            record.flags |= flag::ONE_REQUEST;
        }
    }
}
