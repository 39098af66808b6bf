//! The front: a thread whose sockets take connections of routes with `treatment = "per-request"`
//! (docs/per-request.md) or a cache (docs/content-cache.md).
//!
//! The kernel gives it such connections as it gives others to listeners of this machine
//! (`serve/host.rs`).

mod desk;
mod driver;
mod files;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use fairlead_base::{Endpoint, Instant, Seed};
use fairlead_datapath::Snapshot;
use fairlead_http_front::{Front, Limits};
use fairlead_os_tcp::heirs::{divide, leave_open};
use fairlead_os_tcp::pass;
use fairlead_splice::config::{Config, Listeners, Route};
use mio::{Poll, Waker};

pub(crate) use desk::Shown;
use desk::{Confirm, Desk};
use driver::Driver;
pub(crate) use files::remove_of;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4_096;

/// The sockets, before their thread runs: the engine must know where they listen.
#[derive(Debug)]
pub(crate) struct Ready {
    sockets: Vec<TcpListener>,
}

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    desk: Arc<FrontDesk>,
    thread: Option<JoinHandle<Driver>>,
}

/// What other threads ask of it.
#[derive(Debug)]
pub(crate) struct FrontDesk {
    desk: Arc<Desk>,
    waker: Waker,
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
        let _ = self.waker.wake();
    }
}

/// Whether some route needs it.
pub(crate) fn is_wanted(switch: &Config) -> bool {
    let mut routes = switch.services.iter().flat_map(|service| &service.routes);
    routes.any(Route::is_to_front)
}

impl Ready {
    /// Opens the sockets, and leads the routes to them.
    ///
    /// # Errors
    /// Why no socket can listen.
    pub(crate) fn open(switch: &mut Config) -> io::Result<Self> {
        let v4 = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        // A machine may be without IPv6.
        let v6 = listen(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).ok();
        let sockets: Vec<_> = [Some(v4), v6].into_iter().flatten().collect();
        let mut ends = Vec::new();
        for socket in &sockets {
            let at = socket.local_addr()?;
            ends.push(Endpoint {
                addr: at.ip().into(),
                port: at.port(),
            });
        }
        let listeners = Listeners::of(ends);
        let routes = switch.services.iter_mut().flat_map(|one| &mut one.routes);
        for route in routes.filter(|route| route.is_to_front()) {
            route.listeners = listeners;
        }
        Ok(Self { sockets })
    }

    /// Starts the thread. `predecessor` brings clients of the run before.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) fn start(
        self,
        instance: &str,
        switch: &Config,
        seed: Seed,
        predecessor: Option<OwnedFd>,
    ) -> io::Result<Running> {
        let front = Front::new(Arc::new(switch.clone()), seed, Limits::default());
        let front = front.map_err(io::Error::other)?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), driver::wake_token())?;
        let desk = Arc::new(Desk::default());
        let sockets = self.sockets.into_iter();
        let sockets = sockets.map(mio::net::TcpListener::from_std).collect();
        let mut driver = Driver::new(front, poll, sockets, predecessor, Arc::clone(&desk))?;
        let instance = instance.to_owned();
        let work = move || {
            driver.open_files(&instance);
            if let Err(error) = driver.run() {
                tracing::error!("requests are not served one by one any more: {error}");
            }
            driver
        };
        let thread = std::thread::Builder::new().name("front".to_owned());
        Ok(Running {
            desk: Arc::new(FrontDesk { desk, waker }),
            thread: Some(thread.spawn(work)?),
        })
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(at);
    let kind = socket2::Type::STREAM.nonblocking().cloexec();
    let socket = socket2::Socket::new(domain, kind, Some(socket2::Protocol::TCP))?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Running {
    /// Passes on what is known of servers.
    pub(crate) fn tell(&self, switch: &Snapshot) {
        self.desk.desk.tell(switch);
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
        let mut driver = self.thread.take()?.join().ok()?;
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
