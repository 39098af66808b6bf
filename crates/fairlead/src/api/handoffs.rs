//! `/v1/handoffs`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use fairlead_handoff::{Cid, Refusal};

use super::Api;
use super::answers::Problem;
use crate::handoff::{Carrier, Handoffs};

fn carrier(api: &Api) -> Result<&Arc<Carrier>, Problem> {
    let none = "this instance adopts no connections: `adopt_socket` is not set";
    api.handoff
        .get()
        .ok_or_else(|| Problem::not_found(none.to_owned()))
}

pub(super) async fn list(State(api): State<Arc<Api>>) -> Result<Json<Handoffs>, Problem> {
    Ok(Json(carrier(&api)?.list()))
}

/// Asks the owner of a connection to take it back. It does so by itself, a moment later.
pub(super) async fn give(
    State(api): State<Arc<Api>>,
    Path(cid): Path<u32>,
) -> Result<StatusCode, Problem> {
    let asked = carrier(&api)?.ask_back(Cid(cid));
    asked.map_err(|reason| {
        let detail = format!("{}: {}", reason.name(), reason.meaning());
        match reason {
            Refusal::Gone => Problem::not_found(detail),
            Refusal::Busy => Problem::unavailable(detail),
            _ => Problem::conflict(detail),
        }
    })?;
    Ok(StatusCode::ACCEPTED)
}

/// How many proxies were asked.
#[derive(Debug, serde::Serialize)]
pub(super) struct Asked {
    asked: usize,
}

/// Asks all proxies to hand connections off.
pub(super) async fn take(State(api): State<Arc<Api>>) -> Result<Json<Asked>, Problem> {
    let asked = carrier(&api)?.ask_for_connections();
    Ok(Json(Asked { asked }))
}
