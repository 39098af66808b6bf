//! A client that begins anew on a tuple whose old connection is still on record.
//!
//! A SYN proves nothing: anyone can send it under the client's address. So the old connection stays
//! untouched (RFC 5961, section 4) and the SYN is answered with a cookie like any other; only its
//! number is remembered. Data that acknowledges that cookie comes from someone who saw the answer:
//! then the old connection gives way (RFC 6191 does the same for TIME_WAIT, by weaker proof).

use std::collections::BTreeMap;

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, State, cookie};
use fairlead_wire::{TcpFlags, TcpPacket};

use super::Switch;
use crate::Verdict;
use crate::config::Protocol;
use crate::event::End;

/// New handshakes on used tuples that can be under way at once.
const RENEWALS_MAX: usize = 65_536;

/// The latest SYN on each tuple that has a record.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    begun: BTreeMap<Line, Renewal>,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    client_isn: SeqNumber,
    /// When no cookie of its answer can be good any more.
    until: Instant,
}

impl Renewals {
    /// Notes a SYN. False when too many are noted.
    fn begin(&mut self, line: Line, client_isn: SeqNumber, now: Instant) -> bool {
        if self.begun.len() >= RENEWALS_MAX && !self.begun.contains_key(&line) {
            return false;
        }
        let until = now + cookie::LIFETIME;
        self.begun.insert(line, Renewal { client_isn, until });
        true
    }

    fn forget(&mut self, line: Line) {
        self.begun.remove(&line);
    }
}

impl Switch {
    /// A SYN from the client of a connection that is on record.
    pub(super) fn syn_on_record(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Verdict {
        let record = *self.table.record(line);
        if header.flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::BadTcpFlags);
        }
        if header.seq.0 == record.client_isn {
            // A late copy of the SYN that began this connection; its client has our answer.
            return self.drop(DropReason::NothingToDo);
        }
        if !self.draining {
            if !self.renewals.begin(line, header.seq, now) {
                return self.drop(DropReason::SetupFull);
            }
            self.record(line).flags |= flag::SYN_SEEN;
        }
        self.answer_syn(now, packet, header, record.listen)
    }

    /// A client's packet on a tuple on which a SYN was seen. `None` when it belongs to the old
    /// connection; else it has been dealt with.
    pub(super) fn replace_if_new(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Option<Verdict> {
        let Some(&renewal) = self.renewals.begun.get(&line) else {
            self.record(line).flags &= !flag::SYN_SEEN;
            return None;
        };
        let client_isn = renewal.client_isn;
        if header.flags.contains(TcpFlags::RST) {
            // The client denies the SYN: a RST for our SYN-ACK has the number that it acknowledged
            // (RFC 9293, section 3.10.7.3), and so has one by which it gives up. The old
            // connection is not meant.
            if header.seq != client_isn + 1 {
                return None;
            }
            self.forget_renewal(line);
            return Some(self.drop(DropReason::NothingToDo));
        }
        if !header.flags.contains(TcpFlags::ACK) {
            return None;
        }
        // Whatever acknowledges the cookie is of the new connection, also if it is not its first
        // segment: under the old one's delta it must not pass.
        let promise = self
            .cookies
            .check(&header.key, client_isn, now, header.ack - 1)?;
        let listen = self.table.record(line).listen;
        let protocol = self.service_of(listen).protocol;
        if header.payload_len() == 0 && protocol != Protocol::Tcp {
            return Some(Verdict::Consumed);
        }
        self.end_for_new(now, line);
        Some(self.admit(now, packet, header, listen, client_isn, promise))
    }

    /// Ends whatever is on this line, because its client has begun anew.
    fn end_for_new(&mut self, now: Instant, line: Line) {
        let record = *self.table.record(line);
        match record.state {
            State::TimeWait => self.counts.resting -= 1,
            State::SynSent => {
                if let Some(index) = self.table.setup(line) {
                    self.reset_server_in_setup(line, index);
                }
            }
            State::Reset => self.note_end(now, line, End::Replaced),
            state if state.is_live() => {
                let key = record.server_key(self.table.endpoints()).reversed();
                let seq = SeqNumber(record.client_nxt);
                let ack = SeqNumber(record.server_nxt);
                let flags = TcpFlags::RST | TcpFlags::ACK;
                self.output.send(key, seq, ack, flags, 0, &[], &[]);
                self.note_end(now, line, End::Replaced);
            }
            _ => {}
        }
        self.free(line);
    }

    /// Forgets a SYN that has led to nothing while its cookie was good.
    pub(super) fn expire_renewal(&mut self, now: Instant, line: Line) {
        let renewal = self.renewals.begun.get(&line);
        if renewal.is_none_or(|renewal| renewal.until <= now) {
            self.forget_renewal(line);
        }
    }

    /// Forgets a SYN.
    pub(super) fn forget_renewal(&mut self, line: Line) {
        self.renewals.forget(line);
        self.record(line).flags &= !flag::SYN_SEEN;
    }
}
