//! Requests of other threads to the one that runs the switch.
//!
//! They are handled between two batches of packets. Whoever makes one wakes that thread by a byte
//! on a socket pair, so that an order takes effect at once.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairlead_base::Instant;
use fairlead_datapath::{Change, ChangeError, Connection, Datapath, Selection};
use tokio::sync::oneshot;

/// Requests that wait, at most; one more is refused.
const PENDING_MAX: usize = 1_024;
/// Requests that are handled between two batches of packets, at most.
const AT_ONCE: usize = 256;
/// Lines of the connection table that are looked at between two batches.
const LINES_AT_ONCE: u32 = 4_096;

/// A request.
#[derive(Debug)]
pub(crate) enum Request {
    /// A change; the answer is whether something is different by it.
    Change {
        change: Change,
        reply: Option<oneshot::Sender<Result<bool, ChangeError>>>,
    },
    /// Live connections.
    List(Listing),
    /// Anything else.
    Work(Work),
}

/// What is to be done with the switch.
pub(crate) struct Work(pub(crate) Box<DoWork>);

type DoWork = dyn FnOnce(Instant, &mut Datapath) + Send;

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

/// A list that is being made.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) selection: Selection,
    /// The line to go on with.
    pub(crate) from: u32,
    /// The most connections that are wanted.
    pub(crate) limit: usize,
    pub(crate) page: Page,
    pub(crate) reply: oneshot::Sender<Page>,
}

/// Live connections, and where the list goes on.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) connections: Vec<Connection>,
    pub(crate) next: Option<u32>,
}

/// Why a request is not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHandled {
    /// Too many wait.
    TooMany,
    /// The switch handles no more.
    Over,
}

impl fmt::Display for NotHandled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "{PENDING_MAX} requests are waiting; try again"),
            Self::Over => f.write_str("the switch is stopping or restarting; try again"),
        }
    }
}

/// The queue, for those who make requests.
#[derive(Debug)]
pub(crate) struct Requests {
    /// `None` once no more are handled.
    pending: Mutex<Option<VecDeque<Request>>>,
    wake: UnixStream,
    /// Somebody has woken the switch since it handled requests last.
    is_waiting: AtomicBool,
}

/// The queue, for the thread that handles them.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    requests: Arc<Requests>,
    woken: UnixStream,
}

impl Requests {
    /// An empty queue.
    pub(crate) fn channel() -> io::Result<(Arc<Self>, RequestQueue)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let requests = Arc::new(Self {
            pending: Mutex::new(Some(VecDeque::new())),
            wake,
            is_waiting: AtomicBool::new(false),
        });
        let queue = RequestQueue {
            requests: Arc::clone(&requests),
            woken,
        };
        Ok((requests, queue))
    }

    /// Queues a request.
    pub(crate) fn make(&self, request: Request) -> Result<(), NotHandled> {
        let mut pending = self.lock();
        let pending = pending.as_mut().ok_or(NotHandled::Over)?;
        if pending.len() >= PENDING_MAX {
            return Err(NotHandled::TooMany);
        }
        pending.push_back(request);
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        self.is_waiting.store(true, Ordering::Release);
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[0]);
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Request>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for RequestQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        self.close();
    }
}

impl RequestQueue {
    /// Handles no more requests; those who wait hear of it.
    pub(crate) fn close(&mut self) {
        *self.requests.lock() = None;
    }

    /// Whether requests may wait: for a loop that has no time to look at files.
    pub(crate) fn is_waiting(&self) -> bool {
        self.requests.is_waiting.load(Ordering::Acquire)
    }

    /// Handles the requests that wait, some of them where there are many. True when there were any.
    pub(crate) fn handle(&mut self, now: Instant, datapath: &mut Datapath) -> bool {
        self.requests.is_waiting.store(false, Ordering::Release);
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|count| count > 0) {}
        let mut handled = 0;
        while handled < AT_ONCE {
            let request = self.requests.lock().as_mut().and_then(VecDeque::pop_front);
            match request {
                None => return handled > 0,
                Some(Request::Change { change, reply }) => {
                    let outcome = datapath.apply(now, change);
                    if let Some(reply) = reply {
                        // Whoever asked may have gone.
                        let _ = reply.send(outcome);
                    }
                }
                Some(Request::Work(Work(work))) => work(now, datapath),
                Some(Request::List(listing)) => {
                    if let Some(rest) = list(now, datapath, listing) {
                        let mut pending = self.requests.lock();
                        if let Some(pending) = pending.as_mut() {
                            pending.push_back(Request::List(rest));
                        }
                        break;
                    }
                }
            }
            handled += 1;
        }
        self.requests.wake();
        true
    }
}

/// Goes on with a list. What is left of it, or `None` when it is complete.
fn list(now: Instant, datapath: &Datapath, mut listing: Listing) -> Option<Listing> {
    if listing.reply.is_closed() {
        return None;
    }
    let lines = (listing.from, LINES_AT_ONCE);
    let found = &mut listing.page.connections;
    let next = datapath.connections(now, &listing.selection, lines, found);
    let is_full = found.len() >= listing.limit;
    if let (Some(next), false) = (next, is_full) {
        listing.from = next;
        return Some(listing);
    }
    listing.page.next = next;
    if found.len() > listing.limit {
        found.truncate(listing.limit);
        listing.page.next = found.last().map(|last| last.id.line() + 1);
    }
    let _ = listing.reply.send(listing.page);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SMALL, parse};

    fn change() -> Request {
        Request::Change {
            change: Change::End(Selection::default()),
            reply: None,
        }
    }

    #[test]
    fn requests_are_bounded_wake_the_switch_and_end_with_it() {
        let (requests, mut queue) = Requests::channel().unwrap();
        for _ in 0..PENDING_MAX {
            requests.make(change()).unwrap();
        }
        assert_eq!(requests.make(change()), Err(NotHandled::TooMany));
        let config = parse(SMALL, "a.toml").unwrap().settings.switch;
        let mut datapath = Datapath::new(config, 1.into(), Instant::ZERO).unwrap();
        let mut byte = [0];
        assert_eq!((&queue.woken).read(&mut byte).unwrap(), 1);
        let mut rounds = 0;
        while queue.handle(Instant::ZERO, &mut datapath) {
            rounds += 1;
        }
        assert_eq!(rounds, PENDING_MAX / AT_ONCE);
        let waits = (&queue.woken).read(&mut byte).unwrap_err();
        assert_eq!(waits.kind(), io::ErrorKind::WouldBlock);
        drop(queue);
        assert_eq!(requests.make(change()), Err(NotHandled::Over));
    }
}
