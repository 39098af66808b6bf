//! Connections on their way in (`ch_nic_handoff`) and out (`ch_nic_restore`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use fairlead_bpf_loader::Moving;
use fairlead_handoff::{Op, Refusal};
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

impl Mover {
    /// Takes a socket of the host's, and returns one of the card's with its connection.
    pub(crate) fn bring(&mut self, real: OwnedFd) -> Result<(OwnedFd, Identity), Refusal> {
        let identity = Identity::of(real.as_fd(), self.host_number).map_err(refusal_of_socket)?;
        let (peer, local) = (identity.peer, identity.local);
        if peer.addr == local.addr {
            return Err(Refusal::Policy); // nothing is gained
        }
        // This thread is in the card's namespace. Another card may have the address.
        is_reached(&identity)?;
        let locked = self.moving.lock(peer, local);
        locked.map_err(|_| Refusal::HoldFull)?;
        (self.at_step)(Step::ToCardLocked);
        let here = self.silence(Op::Handoff, real.as_fd()).and_then(|()| {
            (self.at_step)(Step::ToCardSilent);
            let whole = Whole::export(real.as_fd(), identity, SEND_BYTES);
            let whole = whole.map_err(|why| refusal_of(&why))?;
            let made = whole.restore().map_err(|_| Refusal::System)?;
            (self.at_step)(Step::ToCardMade);
            // From here on it is the card's.
            let taken = self.guard.takes(Op::Restore, made.as_fd());
            taken.map_err(|_| Refusal::System)?;
            Ok((made, whole))
        });
        let (socket, whole) = match here {
            Ok(both) => both,
            Err(why) => {
                // It was as it is, and goes on.
                let _ = repair::leave(real.as_fd(), false);
                self.guard.settled();
                self.moving.unlock(peer, local);
                self.held += self.hold.replay(false);
                return Err(why);
            }
        };
        // The host's must not speak any more. The program's copy is replaced when it has the
        // answer.
        let _ = repair::disconnect(real.as_fd());
        drop(real);
        (self.at_step)(Step::ToCardForgotten);
        self.moving.unlock(peer, local);
        let released = whole.release(socket.as_fd());
        self.guard.settled();
        self.held += self.hold.replay(true);
        let ready = released
            .and_then(|()| never_wait(socket.as_fd()))
            .and_then(|()| set_option(socket.as_fd(), TCP, NO_DELAY, 1));
        // The connection is here now; if it cannot be used, it ends by a RST.
        ready.map_err(|_| Refusal::System)?;
        (self.at_step)(Step::ToCardReleased);
        Ok((socket, identity))
    }

    /// Puts a socket into repair mode, under the guard's eyes.
    fn silence(&self, op: Op, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.guard.takes(op, socket).map_err(|_| Refusal::System)?;
        repair::enter(socket).map_err(|_| Refusal::State)
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
        let socket = self.carry(open, &before, &behind)?;
        if let Some(ended) = owner.end(number) {
            // Its card's socket is in repair mode, and closed without a word.
            drop(ended);
        }
        Ok(socket)
    }

    fn carry(&mut self, open: &mut Open, before: &[u8], behind: &[u8]) -> Result<OwnedFd, Refusal> {
        let Identity { local, peer } = open.identity;
        let locked = self.moving.lock(peer, local);
        locked.map_err(|_| Refusal::HoldFull)?;
        (self.at_step)(Step::BackLocked);
        let outcome = self.read_and_make(open, before, behind);
        let (socket, whole) = match outcome {
            Ok(both) => both,
            Err(why) => {
                let _ = repair::leave(open.socket.as_fd(), false);
                self.guard.settled();
                self.moving.unlock(peer, local);
                self.held += self.hold.replay(true);
                return Err(why);
            }
        };
        (self.at_step)(Step::BackMade);
        // Before packets pass again, the card's table must not have the connection any more.
        let _ = repair::disconnect(open.socket.as_fd());
        (self.at_step)(Step::BackForgotten);
        self.moving.unlock(peer, local);
        let released = whole.release(socket.as_fd());
        self.guard.settled();
        self.held += self.hold.replay(false);
        released.map_err(|_| Refusal::System)?;
        (self.at_step)(Step::BackReleased);
        Ok(socket)
    }

    fn read_and_make(
        &mut self,
        open: &mut Open,
        before: &[u8],
        behind: &[u8],
    ) -> Result<(OwnedFd, Whole), Refusal> {
        self.silence(Op::Restore, open.socket.as_fd())?;
        (self.at_step)(Step::BackSilent);
        let whole = Whole::export(open.socket.as_fd(), open.identity, SEND_BYTES * 4);
        let mut whole = whole.map_err(|why| refusal_of(&why))?;
        whole.add(before, behind);
        let made = self.in_host(|| whole.restore());
        let made = made.map_err(|_| Refusal::System)?;
        // It is the one that would be silent now.
        let taken = self.guard.takes(Op::Restore, made.as_fd());
        taken.map_err(|_| Refusal::System)?;
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
        }
    }
}
