//! Connections on their way in (`ch_nic_handoff`) and out (`ch_nic_restore`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use fairlead_base::Address;
use fairlead_bpf_loader::{LEASE, Moving};
use fairlead_handoff::{Cid, Refusal};
use fairlead_netns::Namespace;
use fairlead_offload::Line;
use fairlead_offload::layout::{self, SEND_BYTES, line};
use fairlead_os_ring::Hold;
use fairlead_os_ring::shared::{never_wait, set_option};
use fairlead_os_tcp::whole::Unreadable;
use fairlead_os_tcp::{Identity, Refused, Whole, repair};

use crate::guard::{Guard, Step};
use crate::owner::{Open, Owner};
use crate::routes::is_reached;

const TCP: i32 = 6;
const NO_DELAY: i32 = 1;

/// Bytes in a queue of a connection that comes back, at most.
pub(crate) const QUEUE_MOST: u32 = SEND_BYTES * 4;

/// True for a packet of this connection that its peer has sent.
fn is_of(identity: Identity, packet: &[u8]) -> bool {
    let Identity { local, peer } = identity;
    let four = |at: usize| packet.get(at..)?.first_chunk::<4>().copied();
    let sixteen = |at: usize| packet.get(at..)?.first_chunk::<16>().copied();
    let (ends, ports) = match packet.first().map(|first| first >> 4) {
        // The steering program holds up no packets with options or other headers.
        Some(4) => ([12, 16].map(|at| four(at).map(Address::v4)), four(20)),
        Some(6) => ([8, 24].map(|at| sixteen(at).map(Address::v6)), four(40)),
        _ => return false,
    };
    let [a, b] = [peer, local].map(|end| end.port.to_be_bytes());
    ends == [Some(peer.addr), Some(local.addr)] && ports == Some([a[0], a[1], b[0], b[1]])
}

/// What moves need: the map of what is on its way, held packets, and both namespaces. The thread
/// is in the card's.
pub(crate) struct Mover {
    pub(crate) moving: Moving,
    pub(crate) hold: Hold,
    pub(crate) host: Namespace,
    pub(crate) card: Namespace,
    /// The host namespace's number.
    pub(crate) host_number: u64,
    /// Packets that were held.
    pub(crate) held: u64,
    pub(crate) guard: Guard,
    /// For tests: called at each step.
    pub(crate) at_step: fn(Step),
}

/// A connection that has come to the card.
pub(crate) struct Brought {
    pub(crate) socket: OwnedFd,
    pub(crate) parked: Option<OwnedFd>,
    pub(crate) identity: Identity,
}

fn refusal_of(unreadable: &Unreadable) -> Refusal {
    match unreadable {
        Unreadable::State => Refusal::State,
        Unreadable::Queues => Refusal::QueueNotEmpty,
        Unreadable::Unstable => Refusal::Unstable,
        Unreadable::System(_) => Refusal::System,
    }
}

fn refusal_of_socket(refused: Refused) -> Refusal {
    match refused {
        Refused::NotTcp => Refusal::NotTcp,
        Refused::Namespace => Refusal::Namespace,
        Refused::Feature => Refusal::Feature,
    }
}

/// Packets are certainly still held up. A process that waited too long for a processor must not go
/// on: the silent socket may have received and acknowledged something since it was read.
fn is_still_held(began: Instant) -> Result<(), Refusal> {
    match began.elapsed() < LEASE / 2 {
        true => Ok(()),
        false => Err(Refusal::Unstable),
    }
}

impl Mover {
    /// Takes a socket of the host's, and returns one of the card's with its connection. The old one
    /// keeps the port, if nobody listens there.
    pub(crate) fn bring(&mut self, real: OwnedFd) -> Result<Brought, Refusal> {
        let identity = Identity::of(real.as_fd(), self.host_number).map_err(refusal_of_socket)?;
        let (peer, local) = (identity.peer, identity.local);
        if peer.addr == local.addr {
            return Err(Refusal::Policy); // nothing is gained
        }
        // This thread is in the card's namespace. Another card may have the address.
        is_reached(&identity)?;
        let began = Instant::now();
        let locked = self.moving.lock(peer, local);
        locked.map_err(|_| Refusal::HoldFull)?;
        (self.at_step)(Step::ToCardLocked);
        let here = (|| {
            let told = self.guard.goes_on(real.as_fd());
            told.map_err(|_| Refusal::System)?;
            repair::enter(real.as_fd()).map_err(|_| Refusal::State)?;
            (self.at_step)(Step::ToCardSilent);
            let whole = Whole::export(real.as_fd(), identity, SEND_BYTES);
            let whole = whole.map_err(|why| refusal_of(&why))?;
            let made = whole.restore().map_err(|_| Refusal::System)?;
            (self.at_step)(Step::ToCardMade);
            is_still_held(began)?;
            self.moving.take(peer, local).map_err(|_| Refusal::System)?;
            // From here on it is the card's.
            let told = self.guard.ends(made.as_fd());
            told.map_err(|_| Refusal::System)?;
            Ok((made, whole))
        })();
        let (socket, whole) = match here {
            Ok(both) => both,
            Err(why) => {
                // It was as it is, and goes on.
                let _ = repair::leave(real.as_fd(), false);
                self.guard.settled();
                self.moving.unlock(peer, local);
                self.replay(identity, false);
                return Err(why);
            }
        };
        // The host's must not speak any more. The program's copy is replaced when it has the
        // answer.
        let parked = repair::park(real.as_fd(), local).is_ok().then_some(real);
        (self.at_step)(Step::ToCardForgotten);
        self.moving.unlock(peer, local);
        let released = whole.release(socket.as_fd());
        self.guard.settled();
        self.replay(identity, true);
        let ready = released
            .and_then(|()| never_wait(socket.as_fd()))
            .and_then(|()| set_option(socket.as_fd(), TCP, NO_DELAY, 1));
        // The connection is here now; if it cannot be used, it ends by a RST.
        ready.map_err(|_| Refusal::System)?;
        (self.at_step)(Step::ToCardReleased);
        Ok(Brought {
            socket,
            parked,
            identity,
        })
    }

    /// Plays what was held up of a connection to whoever has it now. What is left of another,
    /// which came too late for its own move, goes to the host: if that has the connection, or
    /// nobody, it is right; if the card has it, the host's answer is dropped on its way.
    fn replay(&mut self, identity: Identity, to_card: bool) {
        let to_card = |packet: &[u8]| to_card && is_of(identity, packet);
        self.held += self.hold.replay(to_card);
    }

    /// Gives a connection back as a socket of the host's.
    pub(crate) fn give_back(&mut self, owner: &mut Owner, number: u32) -> Result<OwnedFd, Refusal> {
        let read = layout::word_at(number, line::READ);
        let read = owner
            .memory
            .word(read)
            .load(std::sync::atomic::Ordering::Acquire);
        let Some(open) = owner.lines[number as usize].as_deref_mut() else {
            return Err(Refusal::Gone);
        };
        if open.is_finished || open.is_failed || !open.line.can_leave() {
            return Err(Refusal::Busy);
        }
        let Some((from, len)) = open.line.waiting_bytes() else {
            return Err(Refusal::Busy);
        };
        let unread = open.line.unread(read).map_err(|_| Refusal::Protocol)?;
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let memory = &owner.memory;
        memory.copy_out(layout::receive_at(number), unread, &mut before);
        memory.copy_out(
            layout::send_at(number),
            Line::span_of(from, len),
            &mut behind,
        );
        let program = (
            owner.control.as_fd(),
            Cid::new(number, owner.generations[number as usize]),
        );
        let socket = self.carry(open, program, [&before, &behind])?;
        if let Some(ended) = owner.end(number) {
            // Its card's socket is in repair mode, and closed without a word.
            drop(ended);
        }
        Ok(socket)
    }

    /// The guard is not [settled](Guard::settled): the program does not have the socket yet.
    fn carry(
        &mut self,
        open: &mut Open,
        program: (BorrowedFd<'_>, Cid),
        rings: [&[u8]; 2],
    ) -> Result<OwnedFd, Refusal> {
        let Identity { local, peer } = open.identity;
        let began = Instant::now();
        let locked = self.moving.lock(peer, local);
        locked.map_err(|_| Refusal::HoldFull)?;
        let outcome = self.read_and_make(open, program, rings).and_then(|made| {
            is_still_held(began)?;
            Ok(made)
        });
        let (socket, whole) = match outcome {
            Ok(both) => both,
            Err(why) => {
                let _ = repair::leave(open.socket.as_fd(), false);
                self.guard.settled();
                self.moving.unlock(peer, local);
                self.replay(open.identity, true);
                return Err(why);
            }
        };
        (self.at_step)(Step::BackMade);
        // Before packets pass again, the card's table must not have the connection any more.
        let _ = repair::disconnect(open.socket.as_fd());
        (self.at_step)(Step::BackForgotten);
        self.moving.give(peer, local);
        let released = whole.release(socket.as_fd());
        self.replay(open.identity, false);
        released.map_err(|_| Refusal::System)?;
        (self.at_step)(Step::BackReleased);
        Ok(socket)
    }

    fn read_and_make(
        &mut self,
        open: &mut Open,
        program: (BorrowedFd<'_>, Cid),
        rings: [&[u8]; 2],
    ) -> Result<(OwnedFd, Whole), Refusal> {
        let (card, identity) = (open.socket.as_fd(), open.identity);
        let told = self.guard.comes_back(card, program, identity, rings);
        told.map_err(|_| Refusal::System)?;
        (self.at_step)(Step::BackLocked);
        repair::enter(card).map_err(|_| Refusal::State)?;
        (self.at_step)(Step::BackSilent);
        let whole = Whole::export(card, identity, QUEUE_MOST);
        let mut whole = whole.map_err(|why| refusal_of(&why))?;
        whole.add(rings[0], rings[1]);
        let made = self.in_host(|| whole.restore());
        let made = made.map_err(|_| Refusal::System)?;
        let told = self.guard.is_made(made.as_fd(), &whole);
        told.map_err(|_| Refusal::System)?;
        Ok((made, whole))
    }

    /// Does something in the host's namespace.
    fn in_host<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.host.enter()?;
        let done = work();
        self.card.enter()?;
        done
    }
}

impl Open {
    /// A connection that has just arrived.
    pub(crate) fn new(socket: OwnedFd, token: OwnedFd, identity: Identity, number: u32) -> Self {
        let now = Instant::now();
        Self {
            line: Line::default(),
            socket,
            token,
            identity,
            readable: true,
            writable: true,
            is_ending: false,
            is_finished: false,
            is_failed: false,
            bytes: [0; 2],
            number,
            since: now,
            active: now,
            asked: None,
            _parked: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Endpoint;

    use super::*;

    fn packet(head: &[u8], ends: [&[u8]; 2], ports: [u16; 2]) -> Vec<u8> {
        let ports = ports.map(u16::to_be_bytes);
        [head, ends[0], ends[1], &ports.concat(), &[0; 16]].concat()
    }

    #[test]
    fn packets_are_known_by_both_ends() {
        let end = |addr, port| Endpoint { addr, port };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let v4 = Identity {
            local: end(Address::v4(b), 80),
            peer: end(Address::v4(a), 5_000),
        };
        let head = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        let right = packet(&head, [&a, &b], [5_000, 80]);
        assert!(is_of(v4, &right));
        assert!(!is_of(v4, &packet(&head, [&a, &b], [5_001, 80])));
        assert!(!is_of(v4, &packet(&head, [&b, &a], [5_000, 80])));
        for len in 0..24 {
            assert!(!is_of(v4, &right[..len]), "{len}");
        }
        let (a, b) = ([1; 16], [2; 16]);
        let v6 = Identity {
            local: end(Address::v6(b), 80),
            peer: end(Address::v6(a), 5_000),
        };
        let head = [0x60, 0, 0, 0, 0, 20, 6, 64];
        let right = packet(&head, [&a, &b], [5_000, 80]);
        assert!(is_of(v6, &right) && !is_of(v4, &right));
        assert!(!is_of(v6, &right[..43]));
    }
}
