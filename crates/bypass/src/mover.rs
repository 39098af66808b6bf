//! The thread that hands connections off, so that the program goes on meanwhile.
//!
//! While a connection moves, non-blocking reads and writes return `EAGAIN`, and calls of
//! `epoll_ctl` are recorded; epoll reports readiness after the move. All other calls wait until it
//! has moved. A thread that would block in the kernel for the connection hands it off itself: while
//! it blocks, no other thread may replace the descriptor.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlead_offload::Reason;

use crate::channel::look_for_cards;
use crate::entry::Inner;
use crate::flow::waits;
use crate::moves::{all_come_back, begin, finish, may_be_ready, to_card};
use crate::table::{Entry, Own, hold, hold_moving, lock};

/// Threads of a program with much thread-local storage need room for that, too.
const STACK_BYTES: usize = 1 << 20;
/// How often the thread looks again while a call on the connection is in progress, and when.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_micros(50);

struct Queue {
    entries: VecDeque<Entry>,
    /// The process that has the thread. A forked one has none.
    process: u32,
    /// The thread waits.
    is_idle: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    entries: VecDeque::new(),
    process: 0,
    is_idle: false,
});
static FILLED: Condvar = Condvar::new();
/// Held during each move, so that no process begins in the middle of one.
static MOVING: Mutex<()> = Mutex::new(());

/// Hands a connection off: by the thread, or at once if the descriptor blocks.
pub(crate) fn hand_off(entry: &Entry, inner: &mut Inner) {
    // Most connections that stay cost no more than this.
    if inner.is_queued || !may_be_ready(inner) {
        return;
    }
    let is_for_the_thread = match inner.fds.as_slice() {
        &[fd] => !waits(fd, 0),
        _ => false,
    };
    inner.is_queued = is_for_the_thread && queue(entry);
    if !inner.is_queued {
        to_card(inner);
    }
}

/// Hands a connection off that is in the queue: the program is about to wait for it.
pub(crate) fn now(inner: &mut Inner) {
    if std::mem::take(&mut inner.is_queued) {
        to_card(inner);
    }
}

/// False: the thread cannot be created.
fn queue(entry: &Entry) -> bool {
    let mut queue = lock(&QUEUE);
    let process = std::process::id();
    if queue.process != process {
        // Those of the process before the fork.
        queue.entries.clear();
        if !begin_thread() {
            return false;
        }
        queue.process = process;
        queue.is_idle = false;
    }
    queue.entries.push_back(Entry::clone(entry));
    if std::mem::take(&mut queue.is_idle) {
        FILLED.notify_one();
    }
    true
}

/// Begins the thread, which gets none of the program's signals.
fn begin_thread() -> bool {
    // SAFETY: sets of signals, for which all zeros are a value, and their addresses.
    unsafe {
        let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        if libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) != 0 {
            return false;
        }
        let thread = std::thread::Builder::new().name("fairlead-move".to_owned());
        let begun = thread.stack_size(STACK_BYTES).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        begun.is_ok()
    }
}

fn run() {
    loop {
        let entry = next();
        let mut tries = 0;
        while !settle(&entry, tries == TRIES) {
            tries += 1;
            std::thread::sleep(PAUSE);
        }
    }
}

/// Hands it off, unless it left the queue meanwhile. False: a call on it is in progress.
fn settle(entry: &Entry, is_last: bool) -> bool {
    let _moving = lock(&MOVING);
    {
        let _own = Own::calls();
        look_for_cards();
    }
    let mut inner = hold(entry);
    if inner.is_queued && inner.is_called() && !is_last {
        return false;
    }
    if std::mem::take(&mut inner.is_queued)
        && !inner.fds.is_empty() // it was not closed meanwhile
        && let Some(ready) = begin(&mut inner)
    {
        inner.is_moving = true;
        drop(inner);
        let taken = {
            let _own = Own::calls();
            ready.ask()
        };
        inner = hold_moving(entry);
        inner.is_moving = false;
        finish(&mut inner, ready, taken);
    }
    true
}

fn next() -> Entry {
    let mut queue = lock(&QUEUE);
    loop {
        if let Some(entry) = queue.entries.pop_front() {
            return entry;
        }
        queue.is_idle = true;
        queue = FILLED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Nothing is moved as long as this is there, and the queue can be used by a forked process.
pub(crate) struct Still {
    _queue: MutexGuard<'static, Queue>,
    _moving: MutexGuard<'static, ()>,
}

/// Takes all connections back, and lets none move until another process has begun.
pub(crate) fn still(why: Reason) -> Still {
    let moving = lock(&MOVING);
    all_come_back(why);
    Still {
        _queue: lock(&QUEUE),
        _moving: moving,
    }
}
