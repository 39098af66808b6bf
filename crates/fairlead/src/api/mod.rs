//! The API of a running instance, `/v1`: JSON over HTTP.
//!
//! It is served at the control socket, with all methods, and at the admin address, where it only
//! reads unless a token is configured. Errors are problem details (RFC 9457).

mod access;
mod announce;
mod answers;
mod cache;
pub(crate) mod client;
mod connections;
mod handoffs;
mod names;
mod requests;
mod servers;
mod sleepers;
mod state;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use fairlead_datapath::{Admin, Change, ServerId};
use tokio::sync::{mpsc, oneshot};

use crate::admin::Shared;
use crate::control::ControlQueue;
use crate::front::FrontDesk;
use crate::handoff::Carrier;
use crate::serve::SleeperDesk;

pub(crate) use access::{AccessDetail, AccessLists, AccessRow, EntryRow};
pub(crate) use announce::Announcement;
use answers::Problem;
pub(crate) use answers::{ConnectionList, ConnectionRow, ServerRow};
#[cfg(test)]
pub(crate) use cache::VariantRow;
pub(crate) use cache::{CacheRow, ExplainRow, PurgeOrder, Purged, SampleRow};
pub(crate) use names::Names;
pub(crate) use requests::{Listing, NotHandled, Page, Request, RequestQueue, Requests, Work};
pub(crate) use sleepers::{Ended, SleeperList, SleeperRow};
pub(crate) use state::{RuntimeState, path_beside};

/// How long the switch may take to handle a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the answer to an order waits for the state that shows it, and between two looks.
const FRESH_PATIENCE: Duration = Duration::from_secs(1);
const FRESH_PAUSE: Duration = Duration::from_millis(5);
/// The longest body of a request, bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What the API needs.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) control: Arc<ControlQueue>,
    pub(crate) names: Names,
    pub(crate) access: AccessLists,
    pub(crate) check_orders: mpsc::UnboundedSender<(ServerId, Admin)>,
    pub(crate) state: Mutex<RuntimeState>,
    /// Where the state is kept; nowhere if `None`.
    pub(crate) state_path: Option<PathBuf>,
    /// Who adopts connections, if that is configured.
    pub(crate) handoff: OnceLock<Arc<Carrier>>,
    /// Who lists and ends sleepers, where there may be some.
    pub(crate) sleepers: OnceLock<Arc<SleeperDesk>>,
    /// The thread that has the caches, if there is one.
    pub(crate) front: OnceLock<Arc<FrontDesk>>,
}

impl Api {
    fn state(&self) -> MutexGuard<'_, RuntimeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the state to its file.
    fn save(&self, state: &mut RuntimeState) {
        let checks = self.names.servers().filter_map(|(id, pool, server)| {
            let known = self.shared.checks().of(id)?;
            Some((pool.to_owned(), server.endpoint, known.state == "up"))
        });
        state.set_checks(checks);
        let Some(path) = &self.state_path else {
            return;
        };
        if let Err(error) = state.save(path) {
            let path = path.display();
            tracing::error!("orders are lost at the next start: {path}: {error}");
        }
    }

    /// Writes the state, with what checks have shown, for the next run.
    pub(crate) fn save_state(&self) {
        self.save(&mut self.state());
    }

    /// Has the switch make a change.
    async fn change(&self, change: Change) -> Result<bool, Problem> {
        let (reply, answer) = oneshot::channel();
        let reply = Some(reply);
        self.make(Request::Change { change, reply })?;
        let outcome = self.wait(answer).await?;
        outcome.map_err(|error| Problem::unavailable(error.to_string()))
    }

    /// Waits until the switch has published its state after a moment, so that whoever lists servers
    /// after an order sees it. A switch that has too much to do is not waited for.
    async fn published_after(&self, moment: Instant) {
        let is_old = || {
            self.shared
                .latest()
                .is_none_or(|latest| latest.at <= moment)
        };
        while is_old() && moment.elapsed() < FRESH_PATIENCE {
            tokio::time::sleep(FRESH_PAUSE).await;
        }
    }

    fn make(&self, request: Request) -> Result<(), Problem> {
        let made = self.requests.make(request);
        made.map_err(|error| Problem::unavailable(error.to_string()))
    }

    async fn wait<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, Problem> {
        let stalled = || Problem::unavailable("the switch does not respond".to_owned());
        let over = || Problem::unavailable(NotHandled::Over.to_string());
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.map_err(|_| stalled())?.map_err(|_| over())
    }
}

/// The API with all methods, for the control socket.
pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new().nest_service("/v1", resources(api))
}

/// What is below `/v1`.
fn resources(api: Arc<Api>) -> Router {
    Router::new()
        .route("/servers", get(servers::list_all))
        .route(
            "/pools/{pool}/servers",
            get(servers::list).post(servers::add),
        )
        .route(
            "/pools/{pool}/servers/{server}",
            get(servers::show)
                .patch(servers::change)
                .delete(servers::remove),
        )
        .route("/announce", get(announce::show).put(announce::change))
        .route("/access", get(access::list_all))
        .route("/access/{list}", get(access::show))
        .route("/access/{list}/entries", post(access::add))
        .route("/access/{list}/entries/{prefix}", delete(access::remove))
        .route(
            "/connections",
            get(connections::list).delete(connections::kill_selected),
        )
        .route(
            "/connections/{id}",
            get(connections::show).delete(connections::kill),
        )
        .route("/handoffs", get(handoffs::list))
        .route("/handoffs/{cid}/give", post(handoffs::give))
        .route("/handoffs/take", post(handoffs::take))
        .route("/cache", get(cache::list))
        .route("/cache/sample", get(cache::sample))
        .route("/cache/explain", get(cache::explain))
        .route("/cache/purge", post(cache::purge))
        .route("/sleepers", get(sleepers::list).delete(sleepers::end_all))
        .route("/sleepers/{client}", delete(sleepers::end))
        .fallback(|| async { Problem::not_found("no such resource".to_owned()) })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "the resource has no such method".to_owned(),
            )
        })
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}

/// Who may use the API at the admin address.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    /// Names of this machine, in lower case.
    pub(crate) hosts: Vec<String>,
    /// With it orders are taken; without it the address only reads.
    pub(crate) token: Option<String>,
}

/// The API for the admin address. It takes requests that name this machine by an address,
/// `localhost` or a known name, so that a page from elsewhere cannot read it by DNS rebinding, and
/// orders with the token.
pub(crate) fn guarded_router(api: Arc<Api>, guard: Guard) -> Router {
    let guard = Arc::new(guard);
    resources(api).layer(middleware::from_fn_with_state(guard, admit))
}

async fn admit(State(guard): State<Arc<Guard>>, request: HttpRequest, next: Next) -> Response {
    match guard.refusal_of(&request) {
        None => next.run(request).await,
        Some(problem) => {
            let challenge = problem.asks_for_token();
            let mut response = problem.into_response();
            if challenge {
                let bearer = header::HeaderValue::from_static("Bearer");
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, bearer);
            }
            response
        }
    }
}

impl Guard {
    fn refusal_of<T>(&self, request: &axum::http::Request<T>) -> Option<Problem> {
        let text = |name| {
            let value = request.headers().get(name);
            value.and_then(|value| value.to_str().ok())
        };
        if !text(header::HOST).is_some_and(|host| self.is_this_machine(host)) {
            let why = "`Host` must be an IP address, `localhost` or one of `admin_hosts`";
            return Some(Problem::new(StatusCode::FORBIDDEN, why.to_owned()));
        }
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let Some(token) = &self.token else {
            let why = "the admin address only reads; orders go to the control socket, or need \
                       `admin_token_file`";
            return Some(Problem::new(StatusCode::FORBIDDEN, why.to_owned()));
        };
        let given = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
        let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        if given.is_some_and(|(_, given)| is_same(given.trim().as_bytes(), token.as_bytes())) {
            return None;
        }
        let why = "orders need `Authorization: Bearer` with the token of `admin_token_file`";
        Some(Problem::new(StatusCode::UNAUTHORIZED, why.to_owned()))
    }

    fn is_this_machine(&self, host: &str) -> bool {
        let name = without_port(host);
        is_address(name)
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|one| name.eq_ignore_ascii_case(one))
    }
}

/// Compares in a time that depends on the lengths alone.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let different = |all: u8, (one, other): (&u8, &u8)| std::hint::black_box(all | (one ^ other));
    given.len() == token.len() && given.iter().zip(token).fold(0, different) == 0
}

/// A `Host` without its port.
fn without_port(host: &str) -> &str {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    }
}

fn is_address(name: &str) -> bool {
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    bare.unwrap_or(name).parse::<core::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(token: Option<&str>) -> Guard {
        Guard {
            hosts: vec!["edge.example.com".to_owned()],
            token: token.map(str::to_owned),
        }
    }

    #[test]
    fn hosts_of_other_names_are_refused() {
        let guard = guard(None);
        for host in [
            "127.0.0.1",
            "127.0.0.1:9090",
            "localhost",
            "LOCALHOST:1",
            "[::1]:9",
            "[::1]",
            "edge.example.com",
            "Edge.Example.Com:9090",
        ] {
            assert!(guard.is_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9090",
            "localhost.evil",
            "127.0.0.1.x",
            "edge.example.com.evil",
            "x.edge.example.com",
            ":",
        ] {
            assert!(!guard.is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn orders_need_the_whole_token_where_there_is_one() {
        let status = |guard: &Guard, method: &str, authorization: Option<&str>| {
            let mut request = axum::http::Request::builder().method(method);
            request = request.header("Host", "127.0.0.1:9090");
            if let Some(value) = authorization {
                request = request.header("Authorization", value);
            }
            let request = request.body(()).unwrap();
            guard
                .refusal_of(&request)
                .map(|problem| problem.into_response().status().as_u16())
        };
        let (closed, open) = (guard(None), guard(Some("0123456789abcdef")));
        assert_eq!(status(&closed, "GET", None), None);
        assert_eq!(status(&open, "GET", None), None);
        let right = Some("Bearer 0123456789abcdef");
        assert_eq!(status(&closed, "DELETE", right), Some(403));
        assert_eq!(status(&open, "DELETE", right), None);
        assert_eq!(
            status(&open, "PATCH", Some("bearer 0123456789abcdef")),
            None
        );
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer 0123456789abcde"),
            Some("Bearer 0123456789abcdeg"),
            Some("Bearer 0123456789abcdef0"),
            Some("Basic 0123456789abcdef"),
            Some("0123456789abcdef"),
        ] {
            assert_eq!(status(&open, "POST", wrong), Some(401), "{wrong:?}");
        }
    }
}
