//! What the API answers.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::admin::CheckStatus;

/// An error (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// `about:blank`: the status says what kind of error it is.
    #[serde(rename = "type")]
    kind: String,
    title: String,
    status: u16,
    /// What was wrong with this request.
    pub(crate) detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: String) -> Self {
        Self {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail,
        }
    }

    pub(super) fn not_found(detail: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn bad_request(detail: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn conflict(detail: String) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    pub(super) fn unavailable(detail: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl Problem {
    /// Whether the answer must say how to give a token (RFC 9110, section 15.5.2).
    pub(super) fn asks_for_token(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED.as_u16()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, kind, Json(self)).into_response()
    }
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerRow {
    pub(crate) pool: String,
    /// Address and port.
    pub(crate) server: String,
    /// `ready`, `drain` or `maint`: what was ordered.
    pub(crate) admin: String,
    /// Why it gets no connections; absent where it gets some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unavailable: Option<String>,
    /// The weight that is configured, or was ordered.
    pub(crate) weight: u16,
    /// The weight that it has now: less while it starts slowly.
    pub(crate) effective_weight: f64,
    pub(crate) backup: bool,
    /// Open connections.
    pub(crate) active: u64,
    /// Connections begun since the start.
    pub(crate) total: u64,
    /// Connections and probes that failed since the start.
    pub(crate) failures: u64,
    /// How often it was ejected as an outlier.
    pub(crate) ejections: u64,
    /// What its health checks have shown; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) check: Option<CheckStatus>,
}

/// A live connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionRow {
    pub(crate) id: String,
    pub(crate) client: String,
    pub(crate) listen: String,
    pub(crate) service: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// The state, as in the paper's Fig. 4.
    pub(crate) state: String,
    pub(crate) age_seconds: f64,
    pub(crate) idle_seconds: f64,
    /// Stream bytes from client to server so far.
    pub(crate) bytes_in: u64,
    /// Stream bytes from server to client so far.
    pub(crate) bytes_out: u64,
}

/// A list of connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionList {
    pub(crate) connections: Vec<ConnectionRow>,
    /// The value of `after` with which the list goes on; absent at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u32>,
}
