//! The API of a running instance, `/v1`: JSON over HTTP.
//!
//! It is served at the control socket, with all methods, and at the admin address, where it only
//! reads. Errors are problem details (RFC 9457).

mod access;
mod answers;
pub(crate) mod client;
mod connections;
mod names;
mod requests;
mod servers;
mod state;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use fairlead_datapath::{Admin, Change, ServerId};
use tokio::sync::{mpsc, oneshot};

use crate::admin::Shared;
use crate::control::ControlQueue;

pub(crate) use access::{AccessDetail, AccessLists, AccessRow, EntryRow};
use answers::Problem;
pub(crate) use answers::{ConnectionList, ConnectionRow, ServerRow};
pub(crate) use names::Names;
pub(crate) use requests::{Listing, NotHandled, Page, Request, RequestQueue, Requests};
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

/// The API for the admin address: it only reads, and only for requests that name this machine by an
/// address or `localhost`, so that a page from elsewhere cannot read it by DNS rebinding.
pub(crate) fn reading_router(api: Arc<Api>) -> Router {
    resources(api).layer(middleware::from_fn(only_reads))
}

async fn only_reads(request: HttpRequest, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let why = "the admin address only reads; orders go to the control socket";
        return Problem::new(StatusCode::FORBIDDEN, why.to_owned()).into_response();
    }
    let host = request.headers().get(header::HOST);
    if !host.is_some_and(|host| host.to_str().is_ok_and(is_this_machine)) {
        let why = "`Host` must be an IP address or `localhost`";
        return Problem::new(StatusCode::FORBIDDEN, why.to_owned()).into_response();
    }
    next.run(request).await
}

/// Whether a `Host` is an address, or `localhost`, with or without a port.
fn is_this_machine(host: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    bare.unwrap_or(name).parse::<core::net::IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn hosts_of_other_names_are_refused() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9090",
            "localhost",
            "LOCALHOST:1",
            "[::1]:9",
            "[::1]",
        ] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9090",
            "localhost.evil",
            "127.0.0.1.x",
            ":",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
