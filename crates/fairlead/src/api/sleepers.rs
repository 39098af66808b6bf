//! `/v1/sleepers`: idle connections that have outlived the socket of their process.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use fairlead_base::Endpoint;
use fairlead_bpf_loader::Life;
use serde::{Deserialize, Serialize};

use super::Api;
use super::answers::Problem;
use crate::serve::SleeperDesk;

/// Rows of one answer.
const ROWS_MAX: usize = 1_000;

type Answer<T> = Result<Json<T>, Problem>;

/// A sleeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SleeperRow {
    pub(crate) client: String,
    pub(crate) listen: String,
    /// The listener that had it.
    pub(crate) listener: String,
    /// How long it has slept, seconds.
    pub(crate) seconds: u64,
    /// How long it may.
    pub(crate) sleep_max_seconds: u64,
}

/// Those that have slept longest, as many as are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SleeperList {
    /// How many there are.
    pub(crate) asleep: usize,
    pub(crate) sleepers: Vec<SleeperRow>,
}

/// How many were ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) ended: usize,
}

fn desk(api: &Api) -> Result<Arc<SleeperDesk>, Problem> {
    let none = "no route of this instance has `sleep = true`, or sockets of this machine cannot be \
                served";
    let desk = api.sleepers.get();
    desk.cloned()
        .ok_or_else(|| Problem::not_found(none.to_owned()))
}

/// Looks at a map with a system call for each entry, and so on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::unavailable(error.to_string()))
}

fn row(life: &Life) -> SleeperRow {
    SleeperRow {
        client: life.client.src.to_string(),
        listen: life.client.dst.to_string(),
        listener: life.listener.to_string(),
        seconds: life.slept.as_secs(),
        sleep_max_seconds: life.sleep_max.as_secs(),
    }
}

pub(super) async fn list(State(api): State<Arc<Api>>) -> Answer<SleeperList> {
    let desk = desk(&api)?;
    let mut all = apart(move || desk.list()).await?;
    all.sort_by_key(|life| std::cmp::Reverse(life.slept));
    Ok(Json(SleeperList {
        asleep: all.len(),
        sleepers: all.iter().take(ROWS_MAX).map(row).collect(),
    }))
}

pub(super) async fn end(State(api): State<Arc<Api>>, Path(client): Path<String>) -> Answer<Ended> {
    let parsed: Result<SocketAddr, _> = client.parse();
    let parsed = parsed.map_err(|_| {
        let why = format!("client {client:?}: write 192.0.2.7:40000 or [2001:db8::7]:40000");
        Problem::bad_request(why)
    })?;
    let desk = desk(&api)?;
    match apart(move || desk.end(Some(Endpoint::from(parsed)))).await? {
        0 => Err(Problem::not_found(format!("{client} does not sleep"))),
        ended => Ok(Json(Ended { ended })),
    }
}

/// What a request to end all says.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    all: bool,
}

pub(super) async fn end_all(
    State(api): State<Arc<Api>>,
    Query(which): Query<Which>,
) -> Answer<Ended> {
    if !which.all {
        let why = "name a client, or say `?all=true`";
        return Err(Problem::bad_request(why.to_owned()));
    }
    let desk = desk(&api)?;
    let ended = apart(move || desk.end(None)).await?;
    Ok(Json(Ended { ended }))
}
