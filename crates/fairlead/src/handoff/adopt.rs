//! Two sockets become a record.
//!
//! The order matters. Gates first drop data and let acknowledgements pass, until all queues are
//! empty; then they drop everything, the state is read, the record is made, and the gates lead to
//! the switch. Until then the sockets can go on as if nothing had been: a gate that nobody opens
//! opens itself after its lease.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::FlowKey;
use fairlead_bpf_loader::{Gate, GateSeen, Heard, monotonic_ns};
use fairlead_datapath::{PairRefused, Pairing};
use fairlead_handoff::message::Kind;
use fairlead_handoff::{Cid, Facts, Op, Owner, Refusal};
use fairlead_os_tcp::{Identity, PeerClock, Refused, State, repair};
use fairlead_splice::Unlike;

use super::notes::Notes;
use super::{Carried, Carrier, LEASE};
use crate::serve::fastpath::in_full;

/// What must be left of a lock when the switch takes a pair, or gives one up.
pub(super) const MARGIN: Duration = Duration::from_millis(300);
/// How long queues may take to become empty.
const DRAIN_PATIENCE: Duration = Duration::from_millis(500);
/// How long an end may take to show its clock.
const CLOCK_PATIENCE: Duration = Duration::from_millis(250);
const CLOCK_PAUSE: Duration = Duration::from_micros(50);

impl Carrier {
    /// Counts a refusal that the ledger did not see.
    pub(super) fn refused(&self, op: Op, reason: Refusal) -> Refusal {
        self.state().ledger.counts.refusal(op, reason);
        reason
    }

    /// Takes two connections over: the first is a client's, the second leads to a server.
    pub(super) fn adopt(
        &self,
        owner: Owner,
        link: &Arc<OwnedFd>,
        sockets: [OwnedFd; 2],
        unwritten: [u32; 2],
    ) -> Result<Cid, Refusal> {
        let identities = self
            .identify(&sockets, unwritten)
            .map_err(|reason| self.refused(Op::Handoff, reason))?;
        let keys = identities.map(|one| FlowKey {
            src: one.peer,
            dst: one.local,
        });
        let facts = Facts {
            port: identities[0].local.port,
            free_lines: self.free_lines.load(std::sync::atomic::Ordering::Acquire),
            ..Facts::default()
        };
        let cid = {
            let mut state = self.state();
            state
                .ledger
                .enter(owner, Kind::Pair, &facts, Self::now_ms())?
        };
        let until = monotonic_ns() + LEASE.as_nanos() as u64;
        if let Err(reason) = self.lock(&keys, until) {
            self.state().ledger.stayed(cid, reason);
            return Err(reason);
        }
        let moved = self.take((cid, owner), &sockets, &identities, &keys);
        let mut guard = self.state();
        let state = &mut *guard;
        match moved {
            Ok((states, line, number)) => {
                state.ledger.carried(cid, line.0, Self::now_ms());
                let [_, kept] = sockets;
                let carried = Carried {
                    kept: Some(kept),
                    line,
                    number,
                    keys,
                    sockets: states,
                    link: Arc::downgrade(link),
                    owner,
                    over: false,
                    asked_ms: 0,
                };
                state.pairs.insert(cid, carried);
                Ok(cid)
            }
            Err(reason) => {
                keys.iter().for_each(|key| state.gates.open(key));
                state.ledger.stayed(cid, reason);
                Err(reason)
            }
        }
    }

    fn identify(
        &self,
        sockets: &[OwnedFd; 2],
        unwritten: [u32; 2],
    ) -> Result<[Identity; 2], Refusal> {
        if unwritten != [0; 2] {
            return Err(Refusal::QueueNotEmpty);
        }
        let of = |socket: &OwnedFd| {
            Identity::of(socket.as_fd(), self.namespace).map_err(|refused| match refused {
                Refused::NotTcp => Refusal::NotTcp,
                Refused::Namespace => Refusal::Namespace,
                Refused::Feature => Refusal::Feature,
            })
        };
        let identities = [of(&sockets[0])?, of(&sockets[1])?];
        if identities[0] == identities[1] {
            return Err(Refusal::SameSocket);
        }
        // Packets of this host to itself come in by no interface that has a gate.
        match identities.iter().any(is_of_this_host) {
            true => Err(Refusal::Unsupported),
            false => Ok(identities),
        }
    }

    /// Holds segments with data up, both ways. Nothing is changed where somebody else is moving, or
    /// has moved, a connection with these addresses.
    fn lock(&self, keys: &[FlowKey; 2], until: u64) -> Result<(), Refusal> {
        let gates = &mut self.state().gates;
        if keys.iter().any(|key| gates.seen(key).is_ok()) {
            return Err(Refusal::Busy);
        }
        set(gates, keys, Gate::Acks(until))
            .inspect_err(|_| keys.iter().for_each(|key| gates.open(key)))
    }

    /// The record: the states of both sockets, its line and number.
    fn take(
        &self,
        (cid, owner): (Cid, Owner),
        sockets: &[OwnedFd; 2],
        identities: &[Identity; 2],
        keys: &[FlowKey; 2],
    ) -> Result<([State; 2], fairlead_datapath::Line, u64), Refusal> {
        let [a, b] = [sockets[0].as_fd(), sockets[1].as_fd()];
        let heard = |at: usize| Some(self.seen(&keys[at]).ok()?.heard?.ack);
        let drained = repair::drain(a, b, heard, DRAIN_PATIENCE);
        match drained {
            Ok((_, true)) => {}
            Ok((_, false)) => return Err(Refusal::QueueNotEmpty),
            Err(_) => return Err(Refusal::State),
        }
        self.learn_clocks(sockets, keys)?;
        let until = monotonic_ns() + LEASE.as_nanos() as u64;
        set(&mut self.state().gates, keys, Gate::Shut(until))?;
        let taken = self.export(sockets, identities, keys).and_then(|states| {
            let pairing = Pairing::of(&states[0].leg, &states[1].leg).map_err(refusal_of)?;
            let notes = Notes {
                cid,
                owner,
                sockets: states,
            };
            let notes = notes.encode();
            // Too late, the kernel would take packets that the record does not know of.
            let adopted = self.with_switch(move |now, datapath| {
                let in_time = monotonic_ns() + MARGIN.as_nanos() as u64 <= until;
                in_time.then(|| datapath.adopt_pair(now, &pairing, &notes))
            });
            match adopted?.ok_or(Refusal::Busy)? {
                Ok((line, number)) => Ok((states, line, number)),
                Err(PairRefused::Full) => Err(Refusal::TableFull),
                Err(PairRefused::KeyInUse) => Err(Refusal::KeyInUse),
            }
        });
        let (states, line, number) = taken.inspect_err(|_| {
            let leave = |socket: &OwnedFd| repair::leave(socket.as_fd(), false);
            let _ = sockets.iter().map(leave).collect::<Result<Vec<_>, _>>();
        })?;
        // From here on the switch has the connection, whatever becomes of the sockets.
        let led = set(&mut self.state().gates, keys, Gate::Engine);
        let left = repair::disconnect(a).and_then(|()| keep(b, &states[1]));
        if let Err(error) = left {
            tracing::warn!(%error, "a socket that was handed off stays connected");
        }
        led?;
        Ok((states, line, number))
    }

    /// Waits until both ends have sent a segment with their clock, if they have one. Ends that are
    /// silent are asked.
    fn learn_clocks(&self, sockets: &[OwnedFd; 2], keys: &[FlowKey; 2]) -> Result<(), Refusal> {
        let is_known = |key| Ok(self.clock_of(key)?.is_some());
        let mut missing = Vec::new();
        for (socket, key) in sockets.iter().zip(keys) {
            let fd = socket.as_fd();
            if repair::has_timestamps(fd).map_err(|_| Refusal::State)? && !is_known(key)? {
                repair::ask(fd).map_err(|error| failed("repair mode", &error))?;
                missing.push(key);
            }
        }
        let until = monotonic_ns() + CLOCK_PATIENCE.as_nanos() as u64;
        for key in missing {
            while !is_known(key)? {
                if monotonic_ns() > until {
                    return Err(Refusal::Busy);
                }
                std::thread::sleep(CLOCK_PAUSE);
            }
        }
        Ok(())
    }

    fn seen(&self, key: &FlowKey) -> Result<GateSeen, Refusal> {
        self.state().gates.seen(key).map_err(gate)
    }

    /// An end's last timestamp, and the number of the segment that carried it.
    fn clock_of(&self, key: &FlowKey) -> Result<Option<(u32, u32)>, Refusal> {
        let seen = self.seen(key)?.stamp;
        Ok(seen.or_else(|| self.state().clocks.of(key, Self::now_ms())))
    }

    /// Both sockets enter repair mode, and their states are read.
    fn export(
        &self,
        sockets: &[OwnedFd; 2],
        identities: &[Identity; 2],
        keys: &[FlowKey; 2],
    ) -> Result<[State; 2], Refusal> {
        let of = |at: usize| {
            let fd = sockets[at].as_fd();
            let stamp = self.clock_of(&keys[at])?;
            let clock = match stamp {
                Some((stamp, _)) => PeerClock::Seen(stamp),
                None => PeerClock::Unknown,
            };
            repair::enter(fd).map_err(|error| failed("repair mode", &error))?;
            let mut state =
                State::export(fd, identities[at], clock).map_err(|error| match error.kind() {
                    std::io::ErrorKind::TimedOut => Refusal::Unstable,
                    std::io::ErrorKind::NotFound => Refusal::Busy,
                    _ => failed("the state of a socket", &error),
                })?;
            // A clock that came with a number of nowhere near was somebody else's.
            let is_near = |seq: u32| {
                let ahead = seq.wrapping_sub(state.leg.rcv_nxt) as i32;
                (-STALE_BYTES..=state.leg.promised as i32).contains(&ahead)
            };
            if stamp.is_some_and(|(_, seq)| !is_near(seq)) {
                return Err(Refusal::Unstable);
            }
            if let Some(heard) = self.seen(&keys[at])?.heard
                && is_near(heard.seq)
            {
                hear(&mut state, heard);
            }
            Ok(state)
        };
        let states = [of(0), of(1)];
        let [a, b] = states;
        Ok([a?, b?])
    }
}

/// A socket is brought up to an acknowledgement that did not reach it, if it is of everything.
fn hear(state: &mut State, heard: Heard) {
    let leg = &mut state.leg;
    if leg.unacknowledged != 0 && heard.ack == leg.write_seq {
        let scale = leg.scales.map_or(0, |scales| scales.peer);
        leg.window = u32::from(heard.window) << scale.min(SCALE_MAX);
        leg.window_max = leg.window_max.max(leg.window);
        leg.unacknowledged = 0;
    }
}

/// Leaves a socket in repair mode that only keeps its port: it sends nothing any more, also where
/// its end has acknowledged bytes unbeknown to it.
fn keep(socket: BorrowedFd<'_>, state: &State) -> std::io::Result<()> {
    if repair::queues(socket)?.1 != 0 {
        repair::disconnect(socket)?;
        state.restore_in(socket)?;
    }
    repair::hush(socket)
}

/// The largest window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;
/// How old a segment may be from which a clock is taken: a window of what was sent again.
const STALE_BYTES: i32 = 8 << 20;

fn set(
    gates: &mut fairlead_bpf_loader::Gates,
    keys: &[FlowKey; 2],
    gate: Gate,
) -> Result<(), Refusal> {
    keys.iter()
        .try_for_each(|key| gates.set(key, gate))
        .map_err(self::gate)
}

pub(super) fn gate(error: fairlead_bpf_loader::LoadError) -> Refusal {
    failed("a gate", &in_full(&error))
}

pub(super) fn failed(what: &str, error: &dyn std::fmt::Display) -> Refusal {
    tracing::debug!("{what}: {error}");
    Refusal::System
}

/// True for an end that is a process of this host.
fn is_of_this_host(identity: &Identity) -> bool {
    let ip = identity.peer.addr.to_ip();
    identity.peer.addr == identity.local.addr || UdpSocket::bind((ip, 0)).is_ok()
}

fn refusal_of(unlike: Unlike) -> Refusal {
    match unlike {
        Unlike::State => Refusal::State,
        Unlike::QueueNotEmpty => Refusal::QueueNotEmpty,
        Unlike::Family => Refusal::Family,
        Unlike::SameSocket => Refusal::SameSocket,
        Unlike::Timestamps => Refusal::Timestamps,
        Unlike::Sack => Refusal::Sack,
        Unlike::Mss => Refusal::Mss,
        Unlike::Scale => Refusal::Scale,
        Unlike::Ecn => Refusal::Ecn,
        _ => Refusal::Unstable,
    }
}
