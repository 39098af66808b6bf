//! Bytes in and out of a connection on the card.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use fairlead_handoff::{Command, Side};
use fairlead_offload::layout::{self, RANGES, RECEIVE_BYTES, SEND_BYTES, line, state};
use fairlead_offload::{Piece, Reason, Span, ring};
use fairlead_os_ring::token;
use libc::{c_int, iovec, ssize_t};

use crate::entry::{Carried, InKernel, Inner};
use crate::moves::to_kernel;
use crate::real;
use crate::table::{Entry, hold, hold_moving};

/// Tokens that may wait unread where edges are asked for.
const TOKENS_MAX: u32 = 64;

/// What a call comes to.
pub(crate) enum Outcome {
    /// Bytes.
    Done(usize),
    /// An error number.
    Failed(c_int),
    /// Nothing now.
    Later,
    /// The connection is in the kernel.
    Moved,
}

/// Why a call is not done.
pub(crate) enum Unfinished {
    /// An error number.
    Failed(c_int),
    /// It is to be made in the kernel, which has the connection and keeps it meanwhile.
    Moved(InKernel),
}

/// A descriptor of the program's that stays open while the call lasts.
pub(crate) fn borrowed<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: the program has just passed it; if it closes it meanwhile, the kernel refuses the
    // call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// True if calls on this descriptor wait.
pub(crate) fn waits(fd: c_int, flags: c_int) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return false;
    }
    // SAFETY: a number.
    let status = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    status >= 0 && status & libc::O_NONBLOCK == 0
}

/// Waits for something to read. A read of the token waits as one of the connection would: how long,
/// and whether a signal ends it, is the kernel's to say.
fn wait_to_read(fd: c_int) -> Result<(), c_int> {
    let mut byte = 0_u8;
    let to = (&raw mut byte).cast();
    // SAFETY: room for a byte.
    waited(unsafe { real::recv(fd, to, 1, libc::MSG_PEEK) })
}

/// Waits until something can be written. In the same way, a write to the token waits until the card
/// has made room.
fn wait_to_write(fd: c_int) -> Result<(), c_int> {
    let from = c"s".as_ptr().cast();
    // SAFETY: one byte.
    waited(unsafe { real::send(fd, from, 1, libc::MSG_NOSIGNAL) })
}

fn waited(outcome: ssize_t) -> Result<(), c_int> {
    if outcome >= 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(error @ (libc::EINTR | libc::EAGAIN)) => Err(error),
        // The connection says it better.
        _ => Ok(()),
    }
}

/// Does what `attempt` does, again and again where the descriptor waits.
pub(crate) fn until_done(
    fd: c_int,
    flags: c_int,
    entry: &Entry,
    writes: bool,
    mut attempt: impl FnMut(&mut Inner) -> Outcome,
) -> Result<usize, Unfinished> {
    loop {
        let mut inner = hold_moving(entry);
        let outcome = match inner.is_moving {
            true if waits(fd, flags) => {
                drop(inner);
                drop(hold(entry));
                continue;
            }
            true => Outcome::Later,
            false => attempt(&mut inner),
        };
        match outcome {
            Outcome::Moved => return Err(Unfinished::Moved(InKernel::with(&inner))),
            Outcome::Done(bytes) => return Ok(bytes),
            Outcome::Failed(error) => return Err(Unfinished::Failed(error)),
            Outcome::Later if !waits(fd, flags) => return Err(Unfinished::Failed(libc::EAGAIN)),
            Outcome::Later => {
                drop(inner);
                let waited = match writes {
                    true => wait_to_write(fd),
                    false => wait_to_read(fd),
                };
                waited.map_err(Unfinished::Failed)?;
                come_back_if_wanted(&mut hold(entry));
            }
        }
    }
}

/// The card has had enough of the connection, if it says so.
pub(crate) fn come_back_if_wanted(inner: &mut Inner) {
    let is_wanted = |carried: &mut Carried| carried.state() & state::WANTED_BACK != 0;
    if inner.carried().is_some_and(is_wanted) {
        to_kernel(inner, Reason::Wanted);
    }
}

/// Reads what is there.
///
/// # Safety
/// `parts` are parts of the program's memory that can be written.
pub(crate) unsafe fn receive(
    fd: c_int,
    inner: &mut Inner,
    parts: &[iovec],
    flags: c_int,
) -> Outcome {
    let (edges, is_deaf) = (inner.wants_edges(), inner.is_deaf);
    let Some(carried) = inner.carried() else {
        return Outcome::Moved;
    };
    loop {
        let received = carried.word(line::RECEIVED).load(Ordering::Acquire);
        let Some(there) = ring::used(received, carried.read, RECEIVE_BYTES) else {
            carried.channel.die();
            return Outcome::Failed(libc::ECONNRESET);
        };
        if there > 0 {
            // SAFETY: as the caller promises.
            let got = unsafe { copy_out(carried, parts, there) };
            if got > 0 && flags & libc::MSG_PEEK == 0 {
                have_read(fd, carried, got, received, edges);
            }
            return Outcome::Done(got as usize);
        }
        if parts.iter().all(|part| part.iov_len == 0) {
            return Outcome::Done(0);
        }
        let state = carried.state();
        let received = carried.word(line::RECEIVED).load(Ordering::Acquire);
        if received != carried.read {
            continue;
        }
        if is_deaf || state & state::FINISHED != 0 {
            return Outcome::Done(0);
        }
        if carried.is_lost() {
            return match carried.take_error(0) {
                0 => Outcome::Done(0),
                error => Outcome::Failed(error),
            };
        }
        let is_there = token::drain(borrowed(fd));
        carried.tokens = 0;
        carried.word(line::WANTS_TOKEN).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let received = carried.word(line::RECEIVED).load(Ordering::SeqCst);
        if received != carried.read || carried.state() & (state::FINISHED | state::RESET) != 0 {
            continue;
        }
        if !is_there {
            carried.channel.die();
            continue;
        }
        return Outcome::Later;
    }
}

/// Copies up to `most` bytes of the receive buffer.
///
/// # Safety
/// As of [`receive`].
unsafe fn copy_out(carried: &Carried, parts: &[iovec], most: u32) -> u32 {
    let buffer = layout::receive_at(carried.cid.line());
    let mut got = 0;
    for part in parts {
        let len = part.iov_len.min((most - got) as usize) as u32;
        let span = Span::of(carried.read.wrapping_add(got), len, RECEIVE_BYTES);
        // SAFETY: `len` bytes of this part.
        unsafe {
            carried
                .channel
                .memory
                .copy_to(buffer, span, part.iov_base.cast())
        };
        got += len;
    }
    got
}

/// Moves the read position on. `received`: what there was.
fn have_read(fd: c_int, carried: &mut Carried, got: u32, received: u32, edges: bool) {
    carried.read = carried.read.wrapping_add(got);
    carried
        .word(line::READ)
        .store(carried.read, Ordering::Release);
    let credit = Command::Received {
        from: Side::Client,
        bytes: u64::from(got),
    };
    let mut is_due = false;
    if carried.read == received {
        // Empty: readiness must go before it comes again, unless only edges are seen.
        carried.tokens += 1;
        if !edges || carried.tokens > TOKENS_MAX {
            token::drain(borrowed(fd));
            carried.tokens = 0;
        }
        carried.word(line::WANTS_TOKEN).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Bytes that came meanwhile have no token, and only the card can write one.
        let now = carried.word(line::RECEIVED).load(Ordering::SeqCst);
        is_due = now != carried.read && carried.word(line::WANTS_TOKEN).load(Ordering::SeqCst) != 0;
    }
    if carried.word(line::FULL).load(Ordering::SeqCst) != 0 {
        carried.word(line::FULL).store(0, Ordering::SeqCst);
        is_due = true;
    }
    if is_due {
        carried.channel.post(carried.cid, credit);
    }
}

/// Takes writability away until the card has made room.
pub(crate) fn stop(fd: c_int, carried: &Carried) {
    token::stop(borrowed(fd));
    carried.word(line::WANTS_ROOM).store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let has_room = carried.room() >= SEND_BYTES / 2 && carried.waiting_ranges() <= RANGES / 2;
    if has_room {
        let nothing = Command::Received {
            from: Side::Client,
            bytes: 0,
        };
        carried.channel.post(carried.cid, nothing);
    }
}

/// The error of a write, if it cannot be done.
pub(crate) fn cannot_write(carried: &mut Carried) -> Option<c_int> {
    if carried.is_ended {
        return Some(libc::EPIPE);
    }
    carried.is_lost().then(|| carried.take_error(libc::EPIPE))
}

/// Writes what there is room for, from `skip` bytes on.
///
/// # Safety
/// `parts` are parts of the program's memory that can be read.
pub(crate) unsafe fn send(fd: c_int, inner: &mut Inner, parts: &[iovec], skip: usize) -> Outcome {
    let Some(carried) = inner.carried() else {
        return Outcome::Moved;
    };
    let all: usize = parts.iter().map(|part| part.iov_len).sum();
    if let Some(error) = cannot_write(carried) {
        return Outcome::Failed(error);
    }
    if all == skip {
        return Outcome::Done(0);
    }
    let room = carried.room();
    if room == 0 || carried.waiting_ranges() >= RANGES {
        if !carried.channel.look() {
            return Outcome::Failed(carried.take_error(libc::EPIPE));
        }
        stop(fd, carried);
        return Outcome::Later;
    }
    // SAFETY: as the caller promises.
    let taken = unsafe { copy_in(carried, parts, skip, room) };
    post_bytes(carried, taken);
    if (taken as usize) < all - skip {
        // A short write announces that writability will be waited for.
        stop(fd, carried);
    }
    Outcome::Done(taken as usize)
}

/// Says that bytes have been put into the send buffer.
pub(crate) fn post_bytes(carried: &mut Carried, len: u32) {
    let from = carried.sent;
    carried.sent = from.wrapping_add(len);
    post_piece(carried, Piece::Bytes { from, len });
}

/// Says that something is to be sent. False: it has no address.
pub(crate) fn post_piece(carried: &Carried, piece: Piece) -> bool {
    let Some(address) = piece.address() else {
        return false;
    };
    let command = Command::Send {
        from: Side::Server,
        len: 0,
        address,
    };
    carried.channel.post(carried.cid, command);
    true
}

/// Copies up to `room` bytes into the send buffer.
///
/// # Safety
/// As of [`send`].
unsafe fn copy_in(carried: &Carried, parts: &[iovec], skip: usize, room: u32) -> u32 {
    let buffer = layout::send_at(carried.cid.line());
    let (mut taken, mut skip) = (0, skip);
    for part in parts {
        let over = skip.min(part.iov_len);
        skip -= over;
        let len = (part.iov_len - over).min((room - taken) as usize) as u32;
        if len == 0 {
            continue;
        }
        let span = Span::of(carried.sent.wrapping_add(taken), len, SEND_BYTES);
        // SAFETY: `len` bytes of this part, behind those that are skipped.
        unsafe {
            let from = part.iov_base.cast::<u8>().add(over);
            carried.channel.memory.copy_in(buffer, span, from);
        }
        taken += len;
    }
    taken
}
