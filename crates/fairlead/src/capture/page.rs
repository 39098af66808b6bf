//! `/capture` of the admin pages: streams a capture until the reader disconnects.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::hub::{Reading, Refusal, Wanted};
use super::prefix;
use crate::admin::Shared;

/// Set while a connection streams a capture, which may last longer than other pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Long(pub(crate) Arc<AtomicBool>);

/// A capture streamed over a connection. When it ends, however, the connection's time limits apply
/// again.
struct Lasting {
    reading: Reading,
    long: Long,
}

impl Lasting {
    fn of(reading: Reading, long: Long) -> Self {
        long.0.store(true, Ordering::Relaxed);
        Self { reading, long }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.long.0.store(false, Ordering::Relaxed);
    }
}

/// Attempts, and the pause between them, while a previous capture ends.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The page. A HEAD request starts no capture.
pub(crate) async fn capture_page(
    State(shared): State<Arc<Shared>>,
    Extension(long): Extension<Long>,
    method: Method,
    RawQuery(query): RawQuery,
) -> Response {
    let wanted = match wanted(query.as_deref().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(why) => return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    let kind = [(header::CONTENT_TYPE, "application/x-pcapng")];
    if method == Method::HEAD {
        // Without a length, like the capture.
        let none = futures_util::stream::empty::<Result<Vec<u8>, Infallible>>();
        return (kind, Body::from_stream(none)).into_response();
    }
    // The end of a previous reader is noticed with a delay.
    let mut begun = shared.capture().begin(&wanted);
    for _ in 0..TRIES {
        if !matches!(begun, Err(Refusal::Taken)) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        begun = shared.capture().begin(&wanted);
    }
    let reading = match begun.map_err(refused) {
        Ok(reading) => reading,
        Err((status, why)) => return (status, format!("{why}\n")).into_response(),
    };
    let lasting = Lasting::of(reading, long);
    let blocks = futures_util::stream::unfold(lasting, |mut lasting| async move {
        let block = lasting.reading.next().await;
        Some((Ok::<_, Infallible>(block), lasting))
    });
    (kind, Body::from_stream(blocks)).into_response()
}

fn refused(refusal: Refusal) -> (StatusCode, String) {
    match refusal {
        Refusal::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting".to_owned()),
        Refusal::Taken => (
            StatusCode::CONFLICT,
            "another capture is running; only one can run at a time".to_owned(),
        ),
        Refusal::NoService(names) => (
            StatusCode::NOT_FOUND,
            format!("unknown service; configured services: {}", names.join(", ")),
        ),
        Refusal::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

/// Parses `service=…&client=…&when=…&snaplen=…`, each at most once.
fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        service: None,
        client: None,
        before: true,
        after: true,
        snap_bytes: super::SNAP_BYTES_MAX,
    };
    let mut said = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if said.contains(&key) {
            return Err(format!("duplicate parameter {key}"));
        }
        said.push(key);
        let value = decoded(value).ok_or_else(|| format!("{value} is not valid text"))?;
        match key {
            "service" => wanted.service = Some(value),
            "client" => wanted.client = Some(prefix(&value)?),
            "when" => match value.as_str() {
                "before" => wanted.after = false,
                "after" => wanted.before = false,
                _ => return Err("`when` must be `before` or `after`".to_owned()),
            },
            "snaplen" => {
                let number = value.parse().ok();
                let fits = number.filter(|one| (1..=super::SNAP_BYTES_MAX).contains(one));
                wanted.snap_bytes =
                    fits.ok_or("`snaplen` must be a number of bytes up to 65535")?;
            }
            _ => {
                return Err(
                    "unknown parameter; expected service, client, when or snaplen".to_owned(),
                );
            }
        }
    }
    Ok(wanted)
}

/// Decodes unreserved characters and `%2F`, which most programs write for the slash of a prefix.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let are_digits = digits.bytes().all(|one| one.is_ascii_hexdigit());
        bytes.push(are_digits.then(|| u8::from_str_radix(digits, 16).ok())??);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed_and_invalid_ones_refused() {
        let all = wanted("").unwrap();
        assert!(all.before && all.after && all.service.is_none());
        let some = wanted("service=web&client=10.0.0.0/8&when=after&snaplen=96").unwrap();
        assert!(!some.before && some.after);
        assert_eq!(
            (some.service.as_deref(), some.snap_bytes),
            (Some("web"), 96)
        );
        assert_eq!(some.client.unwrap().1, 96 + 8);
        let encoded = wanted("service=w%65b&client=fd00%3A%3a%2F8").unwrap();
        let prefix = encoded.client.unwrap();
        assert_eq!((encoded.service.as_deref(), prefix.1), (Some("web"), 8));
        for wrong in [
            "client=10.0.0.0%2",
            "client=10.0.0.0%+28",
            "service=%ff",
            "when=before&when=after",
            "service=web&service=web",
            "client=x",
            "client=1.2.3.4/33",
            "when=now",
            "snaplen=0",
            "snap",
            "a=b",
        ] {
            assert!(wanted(wrong).is_err(), "{wrong}");
        }
    }
}
