//! The HTTP server of the admin pages, on its own thread and runtime.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::capture::{Long, capture_page};

use super::pace::{Paced, Peer, Peers};
use super::{Health, METRICS_CONTENT_TYPE, Shared, Status, metrics};

/// Maximum concurrent connections. One more replaces the connection that has been idle longest.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for a client to send a request head, including idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection. A metrics collector simply reconnects.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum duration of a capture.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Maximum size of a request head, bytes. Requests have no body.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Interval between checks for a connection to replace.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str = "Fairlead\n\n/healthz  ok, or the state\n/metrics  OpenMetrics\n/status   \
                     JSON\n\
                     /capture  packets, pcapng\n/v1/servers, /v1/connections  JSON\n";

/// The running admin server. Dropping it stops it.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// The address served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no state that a panic could leave inconsistent.
            let _ = thread.join();
        }
    }
}

/// Binds `address` and serves the pages, and the API below `/v1`, from a new thread.
pub fn start(
    address: SocketAddr,
    shared: Arc<Shared>,
    api: Option<Router>,
) -> io::Result<AdminServer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("fairlead-admin".into())
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, router(shared, api)) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
    Ok(AdminServer {
        address,
        stop: Some(stop),
        thread: Some(thread),
    })
}

async fn accept(listener: tokio::net::TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let peers = Peers::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = place(&places, &peers).await;
        let long = Long::default();
        let router = router.clone().layer(Extension(long.clone()));
        let peer = peers.enter(long.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = serve(stream, router, long, Arc::clone(&peer)) => {}
                () = peer.gives_way() => tracing::debug!("admin connection replaced"),
            }
            drop(place);
        });
    }
}

/// Acquires a slot for a connection; if all are in use, frees one.
async fn place(places: &Arc<Semaphore>, peers: &Peers) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    loop {
        peers.make_room();
        let place = Arc::clone(places).acquire_owned();
        if let Ok(place) = tokio::time::timeout(ROOM_PAUSE, place).await {
            // The semaphore is never closed.
            return place.ok();
        }
    }
}

async fn serve(stream: TcpStream, router: Router, long: Long, peer: Arc<Peer>) {
    let stream = TokioIo::new(Paced::new(stream, peer));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(stream, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let mut outcome = tokio::time::timeout(CONNECTION_TIMEOUT, &mut connection).await;
    if outcome.is_err() && long.0.load(Ordering::Relaxed) {
        outcome = tokio::time::timeout(CAPTURE_TIMEOUT, connection).await;
    }
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin connection failed"),
        Err(_) => tracing::debug!("admin connection lasted too long"),
    }
}

fn router(shared: Arc<Shared>, api: Option<Router>) -> Router {
    let pages = Router::new()
        .route("/", get(|| async { text(StatusCode::OK, INDEX) }))
        .route("/healthz", get(health_page))
        .route("/metrics", get(metrics_page))
        .route("/status", get(status_page))
        .route("/capture", get(capture_page))
        .with_state(shared);
    let pages = match api {
        Some(api) => pages.nest_service("/v1", api),
        None => pages,
    };
    pages.fallback(|| async { text(StatusCode::NOT_FOUND, INDEX) })
}

fn text(status: StatusCode, body: &'static str) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        body,
    )
        .into_response()
}

fn starting() -> Response {
    text(StatusCode::SERVICE_UNAVAILABLE, Health::Starting.name())
}

async fn health_page(State(shared): State<Arc<Shared>>) -> Response {
    let health = shared.health();
    let status = match health {
        Health::Ok => StatusCode::OK,
        Health::Starting | Health::Draining | Health::Stalled => StatusCode::SERVICE_UNAVAILABLE,
    };
    text(status, health.name())
}

async fn metrics_page(State(shared): State<Arc<Shared>>) -> Response {
    let Some(latest) = shared.latest() else {
        return starting();
    };
    match metrics(Status::of(&shared, &latest)) {
        Ok(page) => ([(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)], page).into_response(),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "cannot write the metrics",
        ),
    }
}

async fn status_page(State(shared): State<Arc<Shared>>) -> Response {
    let Some(latest) = shared.latest() else {
        return starting();
    };
    axum::Json(Status::of(&shared, &latest)).into_response()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use axum::extract::RawQuery;
    use axum::http::Method;
    use fairlead_base::Instant;
    use fairlead_datapath::Datapath;

    use super::*;
    use crate::admin::{Counters, FastPathState, Identity};
    use crate::config;

    /// Pages of a switch of which a capture can be made.
    fn pages() -> Arc<Shared> {
        let shared = Shared::new(Identity {
            instance: "edge".into(),
            version: "1.2.3".into(),
            mode: "engine".into(),
            fast_path: FastPathState::engine("engine"),
            flow_table: "hash".into(),
            device: "fairlead0".into(),
        });
        let settings = config::parse(config::SMALL, "test.toml").unwrap().settings;
        let datapath = Datapath::new(settings.switch.clone(), 1.into(), Instant::ZERO).unwrap();
        shared.capture().open(&settings, &datapath, 0, None);
        shared.publish(Counters::default());
        Arc::new(shared)
    }

    #[tokio::test]
    async fn a_connection_is_long_while_it_has_a_capture() {
        let (shared, long) = (pages(), Long::default());
        let page = |method| {
            let (state, query) = (State(Arc::clone(&shared)), RawQuery(None));
            capture_page(state, Extension(long.clone()), method, query)
        };
        let is_long = || long.0.load(Ordering::Relaxed);
        let answer = page(Method::GET).await;
        assert!(answer.status().is_success() && is_long() && shared.capture().is_on());
        drop(answer);
        assert!(!is_long() && !shared.capture().is_on());
        // Kept, so that a capture would last.
        let answer = page(Method::HEAD).await;
        assert!(answer.status().is_success() && !is_long() && !shared.capture().is_on());
        assert_eq!(answer.headers()["content-type"], "application/x-pcapng");
    }

    #[test]
    fn a_head_request_for_captures_can_be_replaced() {
        let server = start("127.0.0.1:0".parse().unwrap(), pages(), None).unwrap();
        let connect = || {
            let stream = std::net::TcpStream::connect(server.address()).unwrap();
            let patience = Some(Duration::from_secs(20));
            stream.set_read_timeout(patience).unwrap();
            stream
        };
        let ask = |mut stream: &std::net::TcpStream, request: &str| {
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("an answer's head");
                answer.extend(byte);
            }
            String::from_utf8(answer).unwrap()
        };
        let head = "HEAD /capture HTTP/1.1\r\nHost: a\r\n\r\n";
        // More than fit into buffers on the way: none of them is read.
        let pages = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
        let slow: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let stream = connect();
                let answer = ask(&stream, head);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                (&stream).write_all(pages.as_bytes()).unwrap();
                stream
            })
            .collect();
        let answer = ask(&connect(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        drop(slow);
    }
}
