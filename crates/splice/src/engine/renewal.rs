//! A client that begins anew on a tuple whose old connection is still on record.
//!
//! A SYN proves nothing: anyone can send it under the client's address. So the old connection stays
//! untouched (RFC 5961, section 4) and the SYN is answered with a cookie like any other; only its
//! number is remembered. Data that acknowledges that cookie comes from someone who saw the answer:
//! then the old connection gives way (RFC 6191 does the same for TIME_WAIT, by weaker proof).

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, Promise, Side, State, cookie};
use fairlead_wire::{TcpFlags, TcpPacket};

use super::Switch;
use super::pairs::is_pair;
use crate::Verdict;
use crate::config::Protocol;
use crate::event::End;
use crate::translate;

/// New handshakes on tuples of live connections that can be under way at once.
const RENEWALS_MAX: usize = 65_536;

/// How long packets of an old connection may still arrive when its client has begun anew.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// How far into its stream a client gets before it hears more than a SYN-ACK, whose window has 16
/// bits.
const FIRST_WINDOW: i32 = 0xFFFF;

/// The latest SYN on each tuple that has a live connection.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    begun: BTreeMap<Line, Renewal>,
    /// By the time until which they are good: the order in which they came.
    order: BTreeSet<(Instant, Line)>,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    client_isn: SeqNumber,
    /// When no cookie of its answer can be good any more.
    until: Instant,
}

impl Renewals {
    /// Notes a SYN. When too many are noted, the oldest is to be forgotten for it.
    fn begin(&mut self, line: Line, client_isn: SeqNumber, now: Instant) -> Option<Line> {
        self.forget(line);
        let full = self.begun.len() >= RENEWALS_MAX;
        let oldest = self.order.first().filter(|_| full).map(|(_, line)| *line);
        let until = now + cookie::LIFETIME;
        self.begun.insert(line, Renewal { client_isn, until });
        self.order.insert((until, line));
        oldest
    }

    fn forget(&mut self, line: Line) {
        if let Some(renewal) = self.begun.remove(&line) {
            self.order.remove(&(renewal.until, line));
        }
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
        if is_pair(&record) {
            // Whoever listens there takes the next one, once the rest of this is gone.
            if record.state.is_resting() {
                self.remove_resting(line);
            }
            return self.drop(DropReason::NotOurs);
        }
        if !self.listens.contains_key(&header.key.dst) {
            return self.refuse(packet, header, DropReason::NotOurs); // not configured any more
        }
        // On a tuple at rest the first data proves all, and need not be expected.
        if !self.draining && !record.state.is_resting() {
            if let Some(oldest) = self.renewals.begin(line, header.seq, now) {
                self.forget_renewal(oldest);
            }
            self.record(line).flags |= flag::SYN_SEEN;
        }
        self.answer_syn(now, packet, header, record.listen)
    }

    /// True for a client's packet that may be of a new connection. On a tuple at rest nobody need
    /// have remembered a SYN: a fast path outside answers it, and the first data proves all. One
    /// that may lose keys may have answered a SYN on any tuple.
    pub(super) fn may_be_new(&self, header: &TcpPacket, line: Line) -> bool {
        let record = self.table.record(line);
        let unseen = record.state.is_resting()
            || (self.fast_path_may_lose_keys()
                && !translate::is_recent(record, Side::Client, header));
        record.flags & flag::SYN_SEEN != 0 || (unseen && !header.flags.contains(TcpFlags::RST))
    }

    /// A client's packet on a tuple on which a SYN may have been seen. `None` when it belongs to
    /// the old connection; else it has been dealt with.
    pub(super) fn replace_if_new(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Option<Verdict> {
        let remembered = match self.renewals.begun.get(&line) {
            Some(renewal) => Some(renewal.client_isn),
            None => {
                self.record(line).flags &= !flag::SYN_SEEN;
                None
            }
        };
        if header.flags.contains(TcpFlags::RST) {
            // The client denies the SYN: a RST for our SYN-ACK has the number that it acknowledged
            // (RFC 9293, section 3.10.7.3), and so has one by which it gives up. The old
            // connection is not meant.
            if remembered.is_some_and(|isn| header.seq != isn + 1) {
                return None;
            }
            self.forget_renewal(line);
            return Some(self.drop(DropReason::NothingToDo));
        }
        if !header.flags.contains(TcpFlags::ACK) {
            return None;
        }
        let cookie = header.ack - 1;
        if self.is_of_own_cookie(now, header, line, remembered) {
            return None;
        }
        // Whatever acknowledges the cookie is of the new connection, also if it is not its first
        // segment: under the old one's delta it must not pass.
        let proven = self.proof(now, header, line, remembered);
        let record = self.table.record(line);
        let Some((client_isn, promise)) = proven else {
            if self.acks_idle_end(now, header) {
                return Some(Verdict::Consumed);
            }
            let of_old =
                self.setup_of(line).is_some() || translate::is_recent(record, Side::Client, header);
            if !of_old && self.cookies.is_of_tuple(&header.key, now, cookie) {
                return Some(self.drop(DropReason::CookieInvalid));
            }
            return None;
        };
        let listen = record.listen;
        let protocol = self.service_of(listen).protocol;
        if header.payload_len() == 0
            && protocol != Protocol::Tcp
            && let Some(verdict) = self.hear_idle(now, packet, header, listen)
        {
            return Some(verdict);
        }
        self.end_for_new(now, line);
        Some(self.admit(now, packet, header, listen, client_isn, promise))
    }

    /// With which number the new connection began that this packet is of, if it acknowledges the
    /// cookie for that, and what was promised. The number that is remembered may be a stranger's,
    /// who sent another SYN since; the first segment tells its own. What by its numbers is the old
    /// connection's is not tried as a first segment: of many packets one would pass by chance.
    fn proof(
        &self,
        now: Instant,
        header: &TcpPacket,
        line: Line,
        remembered: Option<SeqNumber>,
    ) -> Option<(SeqNumber, Promise)> {
        let record = self.table.record(line);
        let may_be_old =
            !record.state.is_resting() && translate::is_recent(record, Side::Client, header);
        let begun =
            remembered.filter(|isn| (0..=FIRST_WINDOW).contains(&header.seq.since(*isn + 1)));
        let first = (!may_be_old).then_some(header.seq - 1);
        begun.into_iter().chain(first).find_map(|isn| {
            let promise = self.cookies.check(&header.key, isn, now, header.ack - 1)?;
            Some((isn, promise))
        })
    }

    /// True for a packet of the old connection that acknowledges the cookie by which that began.
    /// One SYN of 2¹⁶ is answered by the same number: then the first segment tells them apart.
    fn is_of_own_cookie(
        &self,
        now: Instant,
        header: &TcpPacket,
        line: Line,
        remembered: Option<SeqNumber>,
    ) -> bool {
        let (first, cookie) = (header.seq - 1, header.ack - 1);
        if cookie != self.own_cookie(line) {
            return false;
        }
        let record = self.table.record(line);
        let begins = remembered == Some(first) || record.state.is_resting();
        let is_other = begins && first.0 != record.client_isn;
        !is_other
            || self
                .cookies
                .check(&header.key, first, now, cookie)
                .is_none()
    }

    /// The cookie by which the connection on this line began.
    fn own_cookie(&self, line: Line) -> SeqNumber {
        let setup = self.setup_of(line).and_then(|at| self.setups.peek(at));
        let record = self.table.record(line);
        setup.map_or(SeqNumber(record.server_isn) + record.seq_delta, |setup| {
            setup.dseq
        })
    }

    /// Ends whatever is on this line, because its client has begun anew.
    fn end_for_new(&mut self, now: Instant, line: Line) {
        let record = *self.table.record(line);
        match record.state {
            State::TimeWait | State::Reset => self.counts.resting -= 1,
            State::SynSent => {
                if let Some(index) = self.setup_of(line) {
                    self.reset_server_in_setup(line, index);
                }
            }
            state if state.is_live() => {
                let key = record.server_key(self.table.endpoints()).reversed();
                let client_nxt = SeqNumber(record.client_nxt);
                let seq = self.held_next(line).unwrap_or(client_nxt);
                let ack = SeqNumber(record.server_nxt);
                let flags = TcpFlags::RST | TcpFlags::ACK;
                self.output.send(key, seq, ack, flags, 0, &[], &[]);
                self.note_end(now, line, End::Replaced);
            }
            _ => {}
        }
        self.free(line);
    }

    /// A packet of the old connection. Goes that on for a second after the SYN, then its host has
    /// not begun anew, and the SYN was a stranger's: it must not keep the connection from the fast
    /// path. What is under way when a host does begin anew arrives sooner.
    pub(super) fn doubt_renewal(&mut self, now: Instant, header: &TcpPacket, line: Line) {
        let record = self.table.record(line);
        let goes_on = record.state.is_live()
            && header.flags.0 & (TcpFlags::ACK.0 | TcpFlags::RST.0) == TcpFlags::ACK.0
            && header.seq.0 == record.client_nxt
            && translate::is_recent(record, Side::Client, header);
        let renewal = self.renewals.begun.get(&line);
        let due = renewal.is_some_and(|one| one.until <= now + (cookie::LIFETIME - UNDER_WAY));
        if goes_on && due {
            self.forget_renewal(line);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_and_a_syn_that_comes_again_is_none() {
        let mut renewals = Renewals::default();
        let mut now = Instant::ZERO;
        let mut begin = |renewals: &mut Renewals, line| {
            now = now + Duration::from_micros(1);
            renewals.begin(Line(line), SeqNumber(line), now)
        };
        for line in 0..RENEWALS_MAX as u32 {
            assert_eq!(begin(&mut renewals, line), None);
        }
        assert_eq!(begin(&mut renewals, 0), None, "no more than before");
        for (line, oldest) in [(70_000, 1), (70_001, 2)] {
            assert_eq!(begin(&mut renewals, line), Some(Line(oldest)));
            renewals.forget(Line(oldest));
            assert_eq!(renewals.begun.len(), RENEWALS_MAX);
            assert_eq!(renewals.order.len(), RENEWALS_MAX);
        }
    }
}
