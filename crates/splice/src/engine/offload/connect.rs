//! Connections that a fast path outside joins.
//!
//! Once a server has been sent a SYN, all that is missing is what its SYN-ACK says. A fast path can
//! be *armed* with the rest: it then answers the SYN-ACK with the client's first bytes itself, and
//! goes on forwarding, and the engine learns of it later. The rule is the same as for connections
//! that are offloaded: whoever handles a packet of an armed connection, or a timer of it, takes it
//! back before, and finds it in set-up as it was, or joined.

use std::collections::VecDeque;

use fairlead_base::{Instant, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Join, Joined, Line, State};

use super::Custody;
use crate::engine::Switch;
use crate::engine::setup::SetupId;

/// Armed connections that are looked at whenever another one is armed: more than one, so that what
/// is joined is soon known to be.
const LOOKS: usize = 2;

/// Armed connections, by and large in the order in which they were armed. Those that were taken
/// back are in it until they are met.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    queue: VecDeque<SetupId>,
}

impl Switch {
    /// Leaves it to the fast path to join a connection whose server has just been sent a SYN, if
    /// nothing but the server's SYN-ACK is missing.
    pub(in crate::engine) fn arm(&mut self, now: Instant, line: Line, index: SetupId) {
        if !self.has_fast_path() {
            return;
        }
        self.look_at_armed(now, LOOKS);
        let mut record = *self.table.record(line);
        if self.is_to_be_watched(&record) || self.is_of_front(&record) {
            return;
        }
        let known = self.places.server(record.server);
        let known = known.is_some_and(|id| self.backends.offers(id).is_some());
        let device_mss = self.mss_to(record.server, record.client_addr.is_v4());
        let endpoints = self.table.endpoints();
        let (client, server) = (record.client_key(endpoints), record.server_key(endpoints));
        let (Some(fast_path), Some(setup)) = (self.offload.connect(), self.setups.peek(index))
        else {
            return;
        };
        let verbatim = setup
            .decision
            .as_ref()
            .is_some_and(|decision| decision.is_verbatim());
        let payload = setup.stream.in_order();
        // What the switch must send again itself (see `held.rs`), or learn from the answer, is its
        // own to do.
        let simple = verbatim
            && known
            && setup.acked == 0
            && setup.fin_at.is_none()
            && !payload.is_empty()
            && record.flags & !flag::TIMESTAMPS == 0;
        if !simple {
            return;
        }
        record.advance_client(SeqNumber(record.client_isn) + 1 + payload.len() as u32);
        let join = Join {
            terms: setup.terms(),
            client_ts: setup.client_ts,
            client_window: setup.client_window,
            device_mss,
            payload,
        };
        if fast_path.arm(line, index.index(), &record, &join, [&client, &server]) {
            self.note_armed(line, index, None);
        }
    }

    /// A connection is armed from now on; it was begun by the ticket at this place.
    pub(super) fn note_armed(&mut self, line: Line, index: SetupId, place: Option<u32>) {
        let connecting = Custody::Connecting { place };
        self.offload.custody.pass(line, connecting);
        self.offload.connecting.queue.push_back(index);
    }

    /// Takes a connection back that is armed: from here on it is in set-up and the engine's alone,
    /// or it is joined.
    pub(in crate::engine) fn disarm(&mut self, now: Instant, line: Line) {
        let Custody::Connecting { .. } = self.custody(line) else {
            return;
        };
        let fast_path = self.offload.connect();
        match fast_path.and_then(|fast_path| fast_path.disarm(line)) {
            Some(joined) => self.note_joined(now, line, &joined),
            None => self.offload.custody.pass(line, Custody::Engine),
        }
    }

    /// Learns which connections the fast path has joined on its own since it was last asked, as is
    /// done many times a second anyway: [`Self::snapshot`] then counts them all.
    pub fn catch_up_with_fast_path(&mut self, now: Instant) {
        self.learn_begun(now);
        self.look_at_armed(now, self.offload.connecting.queue.len());
    }

    /// Learns of every end in the fast path, which the sweep comes to within a second: for the last
    /// look of a run. The next one knows a record at rest for what is over, and tells it no more.
    pub fn learn_all_ends(&mut self, now: Instant) {
        self.catch_up_with_fast_path(now);
        for line in (0..self.table.high_water()).map(Line) {
            self.catch_up(now, line);
        }
    }

    pub(super) fn look_at_armed(&mut self, now: Instant, count: usize) {
        for _ in 0..count {
            let Some(index) = self.offload.connecting.queue.pop_front() else {
                return;
            };
            if self.look_at(now, index) == Look::Armed {
                self.offload.connecting.queue.push_back(index);
            }
        }
    }

    /// Learns whether the fast path has joined a connection.
    pub(super) fn look_at(&mut self, now: Instant, index: SetupId) -> Look {
        let Some(line) = self.setups.peek(index).map(|setup| setup.line) else {
            return Look::Over;
        };
        let Custody::Connecting { .. } = self.custody(line) else {
            return Look::Over;
        };
        let fast_path = self.offload.connect();
        match fast_path.and_then(|fast_path| fast_path.joined(line)) {
            Some(joined) => {
                self.note_joined(now, line, &joined);
                Look::Over
            }
            None => Look::Armed,
        }
    }

    /// The fast path has joined a connection, and holds it: as [`Self::splice`] does it.
    fn note_joined(&mut self, now: Instant, line: Line, joined: &Joined) {
        let record = self.table.record_mut(line);
        joined.apply_to(record);
        record.state = State::Spliced;
        let server = self.places.server(record.server);
        self.counts.spliced += 1;
        self.counts.live += 1;
        if let Some(index) = self.setup_of(line) {
            self.keep_details(now, line, index, false);
            self.forget_setup(line, index);
        }
        self.offload.custody.pass(line, Custody::Kernel);
        self.watch_load(line);
        self.catch_up(now, line);
        if let Some(id) = server
            && self.backends.reached(id, now)
        {
            self.announce(id);
            self.refresh_offers(now);
        }
        self.note_first_request(line);
        self.keep_watched(now, line);
    }
}

/// What was found of a connection that was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is armed still.
    Armed,
    /// It is joined, or was taken back.
    Over,
}
