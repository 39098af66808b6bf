//! The front: a thread whose sockets take connections of routes with `treatment = "per-request"`
//! (docs/per-request.md) or a cache (docs/content-cache.md).
//!
//! The kernel gives it such connections as it gives others to listeners of this machine
//! (`serve/host.rs`).

mod desk;
mod driver;
mod files;
mod handoffs;
mod hits;
mod listen;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use fairlead_base::{Instant, Seed};
use fairlead_datapath::Snapshot;
use fairlead_http_front::{Front, Limits};
use fairlead_os_tcp::heirs::{divide, leave_open};
use fairlead_os_tcp::pass;
use fairlead_splice::config::{Config, Route};
use mio::{Poll, Waker};

pub(crate) use desk::Shown;
use desk::{Confirm, Desk};
use driver::Driver;
pub(crate) use files::remove_of;
pub(crate) use handoffs::Adopts;
use handoffs::Handoffs;
pub(crate) use hits::KernelHits;
use listen::Listening;
pub(crate) use listen::Ready;

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    desk: Arc<FrontDesk>,
    thread: Option<JoinHandle<Option<Driver>>>,
}

/// What other threads ask of it.
#[derive(Debug)]
pub(crate) struct FrontDesk {
    desk: Arc<Desk>,
    waker: Mutex<Waker>,
}

/// How long the thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

impl FrontDesk {
    /// Has the thread do something with the front, and waits for what it says. `None` where it
    /// does not answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Front, Instant) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        let call = Box::new(move |front: &mut Front, now: Instant| -> Confirm {
            let done = work(front, now);
            // The client may have gone.
            Box::new(move || drop(answer.send(done)))
        });
        self.desk.call(call).then_some(())?;
        self.wake();
        answered.recv_timeout(PATIENCE).ok()
    }

    fn wake(&self) {
        // It looks by itself soon.
        let _ = self
            .waker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wake();
    }
}

/// Whether some route needs it.
pub(crate) fn is_wanted(switch: &Config) -> bool {
    let mut routes = switch.services.iter().flat_map(|service| &service.routes);
    routes.any(Route::is_to_front)
}

/// All that a thread is made of, to make it once more.
struct Plan {
    instance: String,
    switch: Arc<Config>,
    seed: Seed,
    listening: Listening,
    /// Where upgraded connections go.
    adopts: Option<Adopts>,
    desk: Arc<FrontDesk>,
}

/// How long the thread rests after a failure, the first time and at most.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// A thread that lived for so long was in order.
const SOUND: Duration = Duration::from_secs(60);
/// After this number of failures in a row what caches hold is given up: it may be the cause.
const FAILURES_MAX: u32 = 3;

/// Starts the thread. `predecessor` brings clients of the run before.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn start(
    ready: Ready,
    (instance, device): (&str, &str),
    switch: &Config,
    seed: Seed,
    predecessor: Option<OwnedFd>,
    adopts: Option<Adopts>,
) -> io::Result<Running> {
    let listening = ready.listen(device)?;
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), driver::wake_token())?;
    let desk = Arc::new(FrontDesk {
        desk: Arc::default(),
        waker: Mutex::new(waker),
    });
    let plan = Plan {
        instance: instance.to_owned(),
        switch: Arc::new(switch.clone()),
        seed,
        listening,
        adopts,
        desk: Arc::clone(&desk),
    };
    let driver = plan.driver(poll, predecessor)?;
    let thread = std::thread::Builder::new().name("front".to_owned());
    Ok(Running {
        desk,
        thread: Some(thread.spawn(move || plan.serve(driver))?),
    })
}

impl Plan {
    fn driver(&self, poll: Poll, predecessor: Option<OwnedFd>) -> io::Result<Driver> {
        let front = Front::new(Arc::clone(&self.switch), self.seed, Limits::default());
        let front = front.map_err(io::Error::other)?;
        let desk = Arc::clone(&self.desk.desk);
        let listening = self.listening.shared()?;
        let mut driver = Driver::new(front, poll, listening, predecessor, desk)?;
        if let Some(adopts) = self.adopts.clone() {
            let handoffs = Handoffs::start(adopts, Arc::clone(&self.switch), &self.desk)?;
            driver.hand_off_by(handoffs);
        }
        Ok(driver)
    }

    /// Serves until the desk says that it is over. After a failure the sockets end, and another
    /// front takes new connections; caches go on from their files. `None` if it cannot.
    fn serve(&self, mut driver: Driver) -> Option<Driver> {
        let mut failures = 0;
        loop {
            let begun = Clock::now();
            let work = || {
                driver.open_files(&self.instance);
                driver.run()
            };
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(Ok(())) => return Some(driver),
                Ok(Err(error)) => tracing::error!("the front has failed: {error}"),
                Err(_) => tracing::error!("the front has failed; its connections are reset"),
            }
            driver.cut();
            drop(driver);
            failures = match begun.elapsed() > SOUND {
                true => 1,
                false => failures + 1,
            };
            std::thread::sleep((REST * failures).min(REST_MAX));
            if failures >= FAILURES_MAX
                && let Ok(removed) = remove_of(&self.instance)
                && !removed.is_empty()
            {
                tracing::warn!("what caches held is given up");
            }
            driver = self
                .begin_anew()
                .inspect_err(|error| {
                    tracing::error!("requests are not served one by one any more: {error}");
                })
                .ok()?;
        }
    }

    fn begin_anew(&self) -> io::Result<Driver> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), driver::wake_token())?;
        *self
            .desk
            .waker
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = waker;
        let mut driver = self.driver(poll, None)?;
        driver.go_on_counting(self.desk.desk.begin_anew());
        Ok(driver)
    }
}

impl Running {
    /// Passes on what is known of servers.
    pub(crate) fn tell(&self, switch: &Snapshot) {
        self.desk.desk.tell(switch);
    }

    /// Has the kernel answer what it can.
    pub(crate) fn answer_in_kernel(&self, hits: KernelHits) {
        self.desk.desk.leave_hits(hits);
        self.desk.wake();
    }

    /// No new connections and no further requests.
    pub(crate) fn drain(&self) {
        self.desk.desk.drain();
        self.desk.wake();
    }

    /// Nothing that caches hold is to outlive the process.
    pub(crate) fn forget(&self) {
        self.desk.desk.forget();
    }

    /// Resets all connections.
    pub(crate) fn abort(&self) {
        self.desk.desk.abort();
        self.desk.wake();
    }

    /// What it has done since the last call.
    pub(crate) fn take(&self) -> Shown {
        self.desk.desk.take()
    }

    /// Clients that are connected.
    pub(crate) fn clients(&self) -> u64 {
        self.desk.desk.clients()
    }

    /// Ends the thread while its connections go on in a process of their own. That gives each
    /// client to the program that this process is to execute, once it waits for its next request,
    /// and ends after `patience`. Returns where the program hears of them.
    pub(crate) fn leave(mut self, patience: Duration) -> Option<RawFd> {
        self.desk.desk.leave();
        self.desk.wake();
        let mut driver = self.thread.take()?.join().ok()??;
        if driver.is_idle() {
            return None;
        }
        let divided = pass::pair().and_then(|(ours, theirs)| {
            let left = leave_open(ours.as_fd())?;
            let mut kept = driver.descriptors();
            kept.push(theirs.as_raw_fd());
            divide(&kept, || driver.finish(theirs, patience))?;
            Ok(left)
        });
        divided
            .inspect_err(|error| tracing::warn!("clients of the front are cut off: {error}"))
            .ok()
    }

    /// For those that ask something of it.
    pub(crate) fn desk(&self) -> &Arc<FrontDesk> {
        &self.desk
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.desk.desk.end();
        self.desk.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // after a panic of its own there is nothing to be kept
        }
    }
}

#[cfg(test)]
mod tests;
