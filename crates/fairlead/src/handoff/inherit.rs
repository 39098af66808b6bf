//! Pairs that an earlier run of the switch had: the kernel has carried them meanwhile.

use std::sync::Weak;

use fairlead_bpf_loader::Gate;
use fairlead_datapath::{Line, PairState};
use fairlead_handoff::Refusal;
use fairlead_handoff::message::Kind;
use fairlead_os_tcp::{State, repair};

use super::notes::Notes;
use super::{Carried, Carrier};

/// A pair that was taken over, and what was written down of it.
type Left = (Line, PairState, [fairlead_base::FlowKey; 2], Vec<u8>);

impl Carrier {
    /// Knows all pairs again that the switch has taken over, keeps their ports, and ends what the
    /// earlier run has left at the interfaces.
    ///
    /// # Errors
    /// The switch does not answer, or a gate cannot be set.
    pub(super) fn inherit(&self) -> Result<(), Refusal> {
        let left = self.with_switch(|now, datapath| {
            let pairs: Vec<_> = datapath.pairs(now).collect();
            let endpoints = datapath.endpoints();
            let with_notes = |(line, state): (Line, PairState)| {
                let record = &state.record;
                let keys = [record.client_key(endpoints), record.server_key(endpoints)];
                (line, state, keys, datapath.pair_notes(line).to_vec())
            };
            pairs.into_iter().map(with_notes).collect::<Vec<Left>>()
        })?;
        let (mut known, mut lost) = (0, Vec::new());
        for (line, pair, keys, notes) in left {
            for key in &keys {
                let set = self.state().gates.set(key, Gate::Engine);
                set.map_err(super::adopt::gate)?;
            }
            let resting = pair.record.state.is_resting();
            match Notes::decode(&notes, &keys) {
                Some(notes) if self.knows_again(line, pair.pair.number, keys, &notes) => known += 1,
                _ if resting => {}
                _ => lost.push((line, pair.pair.number)),
            }
        }
        self.state().gates.take_place();
        if known > 0 {
            tracing::info!("{known} handed-off pairs of connections of an earlier run go on");
        }
        if !lost.is_empty() {
            // Nobody could take them back.
            tracing::warn!("{} pairs of an earlier run are nobody's", lost.len());
            self.with_switch(move |now, datapath| {
                for (line, number) in lost {
                    datapath.end_pair(now, line, number);
                }
            })?;
        }
        Ok(())
    }

    fn knows_again(
        &self,
        line: Line,
        number: u64,
        keys: [fairlead_base::FlowKey; 2],
        notes: &Notes,
    ) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        let (cid, owner) = (notes.cid, notes.owner);
        let now_ms = Self::now_ms();
        if state.pairs.contains_key(&cid) {
            return true; // the first try went so far
        }
        if !state.ledger.inherit(cid, owner, Kind::Pair, line.0, now_ms) {
            return false;
        }
        let carried = Carried {
            kept: reserve(&notes.sockets[1]),
            line,
            number,
            keys,
            sockets: notes.sockets,
            link: Weak::new(),
            owner,
            over: false,
            asked_ms: 0,
        };
        state.pairs.insert(cid, carried);
        true
    }
}

/// A socket that keeps the port towards a server from being used again, as before.
fn reserve(server: &State) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::AsFd;

    let socket = server.restore();
    let kept = socket.and_then(|socket| {
        repair::hush(socket.as_fd())?;
        Ok(socket)
    });
    kept.inspect_err(|error| {
        let (local, peer) = (server.leg.local, server.leg.peer);
        tracing::warn!(%error, "the port of a pair cannot be kept: {local} to {peer}");
    })
    .ok()
}
