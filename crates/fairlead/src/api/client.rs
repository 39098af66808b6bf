//! The API's client side, for commands: requests at the control socket.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

use super::answers::Problem;
use crate::control::{explain, socket_of};

/// How long a command waits for the whole answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer that is read, bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Makes a request to an instance, and reads its answer; `Null` where there is no body.
///
/// # Errors
/// The instance is not running here, this user may not control it, or the request is refused.
pub(crate) fn ask<T: DeserializeOwned>(
    instance: &str,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let answer = runtime.block_on(async {
        let answer = tokio::time::timeout(PATIENCE, exchange(instance, method, path, body)).await;
        answer.unwrap_or_else(|_| Err("timed out: the process is suspended or overloaded".into()))
    })?;
    serde_json::from_value(answer).map_err(|error| format!("unexpected answer: {error}"))
}

async fn exchange(
    instance: &str,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, String> {
    let socket = socket_of(instance).map_err(|error| error.to_string())?;
    let stream = UnixStream::connect(&socket).await;
    let stream = stream.map_err(|error| explain(instance, &socket, &error))?;
    let failed = |error: hyper::Error| format!("no answer: {error}");
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", "localhost")
        .header("Content-Type", "application/json")
        .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(failed)?;
    let status = answer.status();
    let text = to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await;
    let text = text.map_err(|error| format!("no answer: {error}"))?;
    if !status.is_success() {
        let problem: Result<Problem, _> = serde_json::from_slice(&text);
        return Err(problem.map_or_else(|_| status.to_string(), |problem| problem.detail));
    }
    match text.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&text).map_err(|error| format!("bad answer: {error}")),
    }
}

/// A text as a part of a path or query (RFC 3986, section 2.1).
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
