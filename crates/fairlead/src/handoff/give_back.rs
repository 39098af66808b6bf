//! A record becomes two sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fairlead_base::FlowKey;
use fairlead_bpf_loader::{Gate, monotonic_ns};
use fairlead_datapath::{PairKept, PairState, Pairing};
use fairlead_handoff::{Cid, Op, Refusal};
use fairlead_os_tcp::{State, repair};

use super::adopt::{MARGIN, failed, gate};
use super::{Carrier, LEASE};

/// Between two tries at a quiet point.
const PAUSE: Duration = Duration::from_millis(5);

impl Carrier {
    /// Makes two sockets of a pair, at a moment when nothing is in flight.
    pub(super) fn give_back(&self, cid: Cid, wait: Duration) -> Result<[OwnedFd; 2], Refusal> {
        let until = Instant::now() + wait;
        let (line, number, keys, before) = {
            let mut guard = self.state();
            let state = &mut *guard;
            state.ledger.leave(cid, Self::now_ms())?;
            let pair = state.pairs.get(&cid).ok_or(Refusal::Gone)?;
            (pair.line, pair.number, pair.keys, pair.sockets)
        };
        let released = loop {
            let shut_until = monotonic_ns() + LEASE.as_nanos() as u64;
            let tried = self.lead(&keys, Gate::Shut(shut_until));
            let released = tried.and_then(|()| {
                // Too late, the kernel would answer packets before there are sockets.
                self.with_switch(move |now, datapath| {
                    let in_time = monotonic_ns() + MARGIN.as_nanos() as u64 <= shut_until;
                    let outcome = in_time.then(|| datapath.release_pair(now, line, number));
                    outcome.unwrap_or(Err(PairKept::Busy))
                })
            });
            match released {
                Ok(Ok(released)) => break Ok(released),
                Ok(Err(PairKept::Busy)) if Instant::now() < until => {
                    let _ = self.lead(&keys, Gate::Engine);
                    std::thread::sleep(PAUSE);
                }
                Ok(Err(PairKept::Busy)) => break Err(Refusal::Busy),
                Ok(Err(PairKept::Gone)) => break Err(Refusal::Gone),
                Err(reason) => break Err(reason),
            }
        };
        match released {
            Err(reason) => {
                // One that has ended meanwhile is noticed like any other.
                let _ = self.lead(&keys, Gate::Engine);
                self.state().ledger.stays(cid, reason, Self::now_ms());
                Err(reason)
            }
            Ok(released) => self.finish(cid, &keys, &before, &released),
        }
    }

    /// The switch has no record any more: sockets are made, and their packets are let through.
    fn finish(
        &self,
        cid: Cid,
        keys: &[FlowKey; 2],
        before: &[State; 2],
        released: &PairState,
    ) -> Result<[OwnedFd; 2], Refusal> {
        let [client, server] = now(before, released);
        let pair = {
            let mut state = self.state();
            state.clocks.note(keys, [&client, &server], Self::now_ms());
            state.pairs.remove(&cid)
        };
        if let Some(kept) = pair.and_then(|pair| pair.kept) {
            let _ = repair::disconnect(kept.as_fd());
        }
        let made = client.restore().and_then(|a| Ok([a, server.restore()?]));
        let mut guard = self.state();
        let state = &mut *guard;
        keys.iter().for_each(|key| state.gates.open(key));
        state.ledger.restored(cid);
        drop(guard);
        let sockets = made.map_err(|error| {
            // Nobody has it any more: the ends hear so from the kernel as soon as they speak.
            tracing::error!(%error, "a handed-off connection is lost: no socket can be made");
            self.refused(Op::Restore, Refusal::System)
        })?;
        for socket in &sockets {
            let fd = socket.as_fd();
            let left = repair::leave(fd, true).and_then(|()| repair::settle(fd));
            left.map_err(|error| failed("leaving repair mode", &error))?;
        }
        Ok(sockets)
    }

    fn lead(&self, keys: &[FlowKey; 2], to: Gate) -> Result<(), Refusal> {
        let mut state = self.state();
        let mut all = keys.iter();
        all.try_for_each(|key| state.gates.set(key, to))
            .map_err(gate)
    }

    /// Ends a pair by a RST to both ends.
    pub(super) fn abort(&self, cid: Cid) -> Result<(), Refusal> {
        let (line, number) = {
            let state = self.state();
            let pair = state.pairs.get(&cid).ok_or(Refusal::Gone)?;
            (pair.line, pair.number)
        };
        let ended = self.with_switch(move |now, datapath| datapath.end_pair(now, line, number))?;
        if ended { Ok(()) } else { Err(Refusal::Gone) }
    }
}

/// What the sockets would be, had they never left.
fn now(before: &[State; 2], released: &PairState) -> [State; 2] {
    let (record, pair) = (&released.record, &released.pair);
    let legs = before.map(|state| state.leg);
    let legs = Pairing::returned(legs, record, &pair.second, pair.seen);
    let mut states = *before;
    for (state, leg) in states.iter_mut().zip(legs) {
        state.leg = leg;
        state.window_at = leg.rcv_nxt;
        state.told_at = leg.rcv_nxt;
    }
    states
}
