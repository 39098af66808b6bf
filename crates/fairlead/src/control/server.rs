//! The control socket's server side, on its own thread and runtime.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::{Answer, ControlQueue, OVER, Order};

/// Concurrent connections; one more is refused.
const CONNECTIONS_MAX: u32 = 16;
/// The longest line that is read, bytes.
const LINE_BYTES_MAX: u64 = 64;
/// Time limit for reading the order's line, and for writing a line of the answer.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the switch to carry out an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks whether the client still waits for its order.
const GONE_PAUSE: Duration = Duration::from_millis(100);
/// Long enough for the runtime to poll the kernel once.
const ASK_PAUSE: Duration = Duration::from_millis(2);
/// How long shutdown waits for clients to read their last lines.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket and the thread that serves it. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    queue: Arc<ControlQueue>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // First, so that no client connects that would get no answer.
        let _ = fs::remove_file(&self.path);
        self.queue.close();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates the socket and serves it from a new thread. Sockets of dead instances in the same
/// directory are removed.
///
/// # Errors
/// The socket cannot be created, or another process serves it.
pub fn start(path: &Path, queue: Arc<ControlQueue>, api: Router) -> io::Result<ControlServer> {
    let owner = fs::metadata("/proc/self")?.uid();
    if let Some(folder) = path.parent() {
        let made = make(folder, owner);
        made.map_err(|error| named(folder, &error))?;
        remove_dead(folder);
    }
    let listener = bind(path).map_err(|error| named(path, &error))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(listener)?
    };
    let of_server = Arc::clone(&queue);
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("fairlead-control".into())
        .spawn(move || {
            runtime.block_on(async {
                let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
                tokio::select! {
                    () = accept(&listener, &places, &queue, &api, owner) => {}
                    _ = stopped => {}
                }
                let _ = timeout(END_PATIENCE, places.acquire_many(CONNECTIONS_MAX)).await;
            });
            runtime.shutdown_background();
        })?;
    Ok(ControlServer {
        path: path.to_owned(),
        queue: of_server,
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Creates the directory of the sockets, or checks the existing one: another user with write access
/// could replace a socket.
fn make(folder: &Path, owner: u32) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let found = fs::metadata(folder)?;
    match found.uid() {
        user if user != 0 && user != owner => {
            Err(io::Error::other(format!("owned by user {user}")))
        }
        _ if found.mode() & 0o022 != 0 => Err(io::Error::other("writable by other users")),
        _ => Ok(()),
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Listens at `path`. The socket is created under another name and renamed, so that clients never
/// see it with the wrong mode or before it listens.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let fresh = path.with_added_extension("new");
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Removes sockets in `folder` without a listener; a killed instance leaves its socket behind.
fn remove_dead(folder: &Path) {
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "sock") {
            remove_if_dead(&path);
        }
    }
}

/// Removes a socket if it exists and has no listener. Returns true if it was removed.
pub fn remove_if_dead(path: &Path) -> bool {
    let tried = std::os::unix::net::UnixStream::connect(path);
    let is_dead = tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    is_dead && fs::remove_file(path).is_ok()
}

async fn accept(
    listener: &tokio::net::UnixListener,
    places: &Arc<Semaphore>,
    queue: &Arc<ControlQueue>,
    api: &Router,
    owner: u32,
) {
    loop {
        let mut stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "control connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // The file's mode already ensures this, unless another user can write to the directory.
        let user = stream.peer_cred().map(|peer| peer.uid());
        let why = match user {
            Ok(user) if user == 0 || user == owner => None,
            Ok(user) => Some(format!("user {user} may not control this instance")),
            Err(error) => Some(format!("cannot determine the peer's credentials: {error}")),
        };
        let place = Arc::clone(places).try_acquire_owned().ok();
        let why = why.or_else(|| {
            let many = || format!("too many connections (limit {CONNECTIONS_MAX})");
            place.is_none().then(many)
        });
        if let Some(why) = why {
            // An empty send buffer takes one line at once, so a slow reader cannot block the accept
            // loop.
            let answer = queue.refuse(&why);
            let _ = timeout(ACCEPT_PAUSE, write(&mut stream, &answer)).await;
            continue;
        }
        let (queue, api) = (Arc::clone(queue), api.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &queue, api).await {
                tracing::debug!(%error, "control connection failed");
            }
            drop(place);
        });
    }
}

/// Methods by which a connection that speaks HTTP is known.
const METHODS: [&[u8]; 6] = [
    b"GET /",
    b"HEAD /",
    b"POST /",
    b"PUT /",
    b"PATCH /",
    b"DELETE /",
];
/// How long a connection that speaks HTTP may last.
const HTTP_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest head of a request, bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Requests to the API, of which `begun` was read already.
async fn serve_http(stream: UnixStream, begun: Vec<u8>, api: Router) -> io::Result<()> {
    let (reading, writing) = stream.into_split();
    let whole = tokio::io::join(io::Cursor::new(begun).chain(reading), writing);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LINE_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(whole), TowerToHyperService::new(api));
    match timeout(HTTP_TIMEOUT, connection).await {
        Ok(outcome) => outcome.map_err(io::Error::other),
        Err(late) => Err(self::late(late)),
    }
}

/// One order and its answer, or requests to the API.
async fn serve(mut stream: UnixStream, queue: &ControlQueue, api: Router) -> io::Result<()> {
    let mut line = Vec::new();
    let read = async {
        let mut part = (&mut stream).take(LINE_BYTES_MAX);
        while !line.ends_with(b"\n") && part.read_buf(&mut line).await? > 0 {}
        io::Result::Ok(())
    };
    timeout(LINE_TIMEOUT, read).await.map_err(late)??;
    if line.is_empty() {
        return Ok(()); // a probe whether the socket has a listener
    }
    if METHODS.iter().any(|method| line.starts_with(method)) {
        return serve_http(stream, line, api).await;
    }
    let text = String::from_utf8_lossy(&line);
    let order = text.strip_suffix('\n').and_then(|word| {
        let mut all = Order::ALL.into_iter();
        all.find(|order| order.name() == word)
    });
    let Some(order) = order else {
        let names = Order::ALL.map(Order::name).join(", ");
        let answer = queue.refuse(&format!("unknown order; expected one of: {names}"));
        return write(&mut stream, &answer).await;
    };
    if order == Order::Look {
        return write(&mut stream, &Answer::State(queue.state())).await;
    }
    let mut states = queue.state.subscribe();
    let Some(outcome) = given(queue, order, &stream).await else {
        return Ok(());
    };
    let answer = match outcome {
        Ok(_) if order == Order::Drain => None,
        Ok(changes) => Some(Answer::Reloading(changes)),
        Err(answer) => Some(answer),
    };
    if let Some(answer) = answer {
        return write(&mut stream, &answer).await;
    }
    loop {
        let state = states.borrow_and_update().clone();
        let is_over = state.phase.is_over();
        write(&mut stream, &Answer::State(state)).await?;
        if is_over || states.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Queues the order for the switch and waits for the outcome. `None` if the client disconnects
/// first; the order is then withdrawn, because the client has reported a failure.
async fn given(
    queue: &ControlQueue,
    order: Order,
    stream: &UnixStream,
) -> Option<Result<Vec<String>, Answer>> {
    if has_gone(stream).await {
        return None;
    }
    let mut outcome = match queue.leave(order) {
        Ok(outcome) => outcome,
        Err(why) => return Some(Err(queue.refuse(why))),
    };
    let until = tokio::time::Instant::now() + ORDER_TIMEOUT;
    while tokio::time::Instant::now() < until {
        match timeout(GONE_PAUSE, &mut outcome).await {
            Ok(Ok(outcome)) => return Some(outcome.map_err(Answer::Refused)),
            Ok(Err(_)) => return Some(Err(queue.refuse(OVER))),
            Err(_) if has_gone(stream).await => return None,
            Err(_) => {}
        }
    }
    Some(Err(queue.refuse(
        "the switch does not respond: its main loop is stalled",
    )))
}

/// True if the client has disconnected. A client that has only shut down its sending side still
/// reads.
async fn has_gone(stream: &UnixStream) -> bool {
    // The runtime reports a new connection as ready before it has polled the kernel.
    tokio::time::sleep(ASK_PAUSE).await;
    let ready = timeout(GONE_PAUSE, stream.ready(Interest::WRITABLE)).await;
    ready.is_ok_and(|ready| ready.is_ok_and(|ready| ready.is_write_closed()))
}

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

async fn write(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    timeout(LINE_TIMEOUT, stream.write_all(&line))
        .await
        .map_err(late)?
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Stream;
    use std::time::Instant;

    use super::super::ask::{Asked, ask_at};
    use super::super::{Outcome, Phase};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A served socket in a folder of its own.
    struct Served {
        folder: PathBuf,
        path: PathBuf,
        queue: Arc<ControlQueue>,
        server: Option<ControlServer>,
    }

    impl Served {
        fn new(name: &str) -> Self {
            let folder = format!("fairlead-control-{}-{name}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            let path = folder.join("edge.1.sock");
            let queue = Arc::new(ControlQueue::new("edge", 7));
            let server = start(&path, Arc::clone(&queue), Router::new()).unwrap();
            Self {
                folder,
                path,
                queue,
                server: Some(server),
            }
        }

        fn ask(&self, order: Order) -> Asked {
            ask_at(&self.path, order).unwrap()
        }

        /// Carries out the next order in place of the switch.
        fn answer(&self, order: Order, outcome: Outcome) {
            let until = Instant::now() + PATIENCE;
            loop {
                if let Some(pending) = self.queue.take() {
                    assert_eq!(pending.order, order);
                    return pending.answer(outcome);
                }
                assert!(Instant::now() < until, "no order came");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        /// The answer to these bytes.
        fn exchange(&self, bytes: &[u8]) -> String {
            let mut stream = Stream::connect(&self.path).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            text
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.server = None;
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn other_users_have_no_access() {
        let served = Served::new("mode");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&served.path), 0o600);
        assert_eq!(mode(&served.folder), 0o700);
    }

    #[test]
    fn a_folder_writable_by_others_is_refused() {
        let served = Served::new("folder");
        let path = served.folder.join("b.1.sock");
        let begin = || start(&path, Arc::new(ControlQueue::new("b", 8)), Router::new());
        fs::set_permissions(&served.folder, Permissions::from_mode(0o777)).unwrap();
        let why = begin().unwrap_err().to_string();
        assert!(why.contains("writable by other users"), "{why}");
        let user = fs::metadata(&served.folder).unwrap().uid();
        let why = make(&served.folder, user + 1).unwrap_err().to_string();
        assert!(user == 0 || why.contains("owned by user"), "{why}");
        fs::set_permissions(&served.folder, Permissions::from_mode(0o750)).unwrap();
        assert!(begin().is_ok());
    }

    #[test]
    fn a_look_is_answered_without_the_loop() {
        let served = Served::new("look");
        served.queue.tell(|state| state.live = 3);
        let Some(Answer::State(state)) = served.ask(Order::Look).answer().unwrap() else {
            panic!("no state")
        };
        assert_eq!(
            (state.instance.as_str(), state.run, state.live),
            ("edge", 7, 3)
        );
        assert_eq!(state.process, std::process::id());
    }

    #[test]
    fn a_reload_has_an_outcome() {
        let served = Served::new("reload");
        let mut asked = served.ask(Order::Reload);
        served.answer(Order::Reload, Err("no room".to_owned()));
        let refused = Answer::Refused("no room".to_owned());
        assert_eq!(asked.answer().unwrap(), Some(refused));
        assert_eq!(served.queue.refused(), 0, "counted where it is refused");
        let mut asked = served.ask(Order::Reload);
        served.answer(Order::Reload, Ok(vec!["pool a is new".to_owned()]));
        let begun = Answer::Reloading(vec!["pool a is new".to_owned()]);
        assert_eq!(asked.answer().unwrap(), Some(begun));
        assert_eq!(asked.answer().unwrap(), None);
    }

    #[test]
    fn a_drain_is_reported_to_its_end_even_if_immediate() {
        let mut served = Served::new("drain");
        let mut asked = served.ask(Order::Drain);
        served.queue.tell(|state| state.phase = Phase::Draining);
        served.answer(Order::Drain, Ok(Vec::new()));
        let mut next = || match asked.answer().unwrap() {
            Some(Answer::State(state)) => Some(state.phase),
            other => {
                assert_eq!(other, None);
                None
            }
        };
        assert_eq!(next(), Some(Phase::Draining));
        served.queue.tell(|state| state.phase = Phase::Ended);
        served.server = None;
        assert_eq!(next(), Some(Phase::Ended));
        assert_eq!(next(), None);
        assert!(!served.path.exists(), "the socket stays");
    }

    #[test]
    fn an_order_of_a_disconnected_client_is_withdrawn() {
        let served = Served::new("gone");
        let asked = served.ask(Order::Drain);
        let waits = || served.queue.pending.lock().unwrap().as_ref().map(Vec::len);
        let until = Instant::now() + PATIENCE;
        while waits() == Some(0) {
            assert!(Instant::now() < until, "no order came");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(asked);
        std::thread::sleep(GONE_PAUSE * 5);
        assert!(served.queue.take().is_none(), "nobody waits for it");
        // A client that has only shut down its sending side still waits.
        let mut stream = Stream::connect(&served.path).unwrap();
        stream.write_all(b"drain\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        std::thread::sleep(GONE_PAUSE * 5);
        assert!(served.queue.take().is_some());
    }

    #[test]
    fn a_client_gone_before_accept_is_noticed() {
        let served = Served::new("early");
        let path = served.folder.join("early");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Stream::connect(&path)
            .unwrap()
            .write_all(b"drain\n")
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut line = Vec::new();
            stream.read_buf(&mut line).await.unwrap();
            assert!(has_gone(&stream).await);
        });
    }

    #[test]
    fn an_order_during_shutdown_gets_an_answer() {
        let mut served = Served::new("late");
        let mut asked = served.ask(Order::Drain);
        let until = Instant::now() + PATIENCE;
        let waits = || served.queue.pending.lock().unwrap().as_ref().map(Vec::len);
        while waits() == Some(0) {
            assert!(Instant::now() < until, "no order came");
            std::thread::sleep(Duration::from_millis(1));
        }
        served.server = None;
        let Some(Answer::Refused(why)) = asked.answer().unwrap() else {
            panic!("it was not refused")
        };
        assert!(why.contains("try again"), "{why}");
    }

    #[test]
    fn unknown_orders_are_refused_with_a_reason_and_counted() {
        let served = Served::new("strange");
        let long = [b'x'; 100_000];
        for bytes in [
            &b"end\n"[..],
            b"drain",
            b"\xff\n",
            b"DRAIN\n",
            b"drain \n",
            &long,
        ] {
            let before = served.queue.refused();
            let answer = served.exchange(bytes);
            // The rest of a line that is too long may reset the answer.
            let known = answer.contains("expected one of: look, reload, drain") || bytes.len() > 64;
            assert!(known, "{answer}");
            assert_eq!(served.queue.refused(), before + 1);
        }
        assert_eq!(served.exchange(b""), "");
        assert_eq!(
            served.queue.refused(),
            6,
            "an empty connection is not an order"
        );
        assert!(served.queue.take().is_none());
    }

    #[test]
    fn connections_are_bounded() {
        let served = Served::new("many");
        let waiting: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| served.ask(Order::Drain))
            .collect();
        let until = Instant::now() + PATIENCE;
        loop {
            let Some(Answer::Refused(why)) = served.ask(Order::Look).answer().unwrap() else {
                assert!(Instant::now() < until, "never refused");
                continue;
            };
            assert!(why.contains("limit 16"), "{why}");
            break;
        }
        drop(waiting);
    }

    #[test]
    fn dead_sockets_are_replaced_and_live_ones_are_not() {
        let served = Served::new("dead");
        let [other, dead, fresh] =
            ["a.1.sock", "b.1.sock", "c.1.sock"].map(|name| served.folder.join(name));
        drop(UnixListener::bind(&dead).unwrap());
        drop(UnixListener::bind(&other).unwrap());
        let second = start(&other, Arc::new(ControlQueue::new("a", 8)), Router::new()).unwrap();
        assert!(other.exists() && !dead.exists() && served.path.exists());
        let taken = start(
            &served.path,
            Arc::new(ControlQueue::new("edge", 9)),
            Router::new(),
        )
        .unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(!remove_if_dead(&served.path) && !remove_if_dead(&fresh));
        drop(second);
        let Some(Answer::State(state)) = served.ask(Order::Look).answer().unwrap() else {
            panic!("no state")
        };
        assert_eq!(state.run, 7);
        assert_eq!(served.queue.refused(), 0);
    }
}
