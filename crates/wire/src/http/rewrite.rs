//! Rewrites a head for connections that serve one request.

use super::head::{RequestHead, field};

/// Fields that speak of keeping the connection. `Proxy-Connection` was never in a standard but is
/// sent (RFC 9112, appendix C.2.2).
const PERSISTENCE: [&str; 3] = ["connection", "keep-alive", "proxy-connection"];

const CLOSE: &[u8] = b"Connection: close\r\n";

/// The head as the server shall see it when the connection carries one request only: fields called
/// `Connection`, `Keep-Alive` and `Proxy-Connection` are left out and `Connection: close` is added
/// as the last field; every other byte stays as it was, in order. Only the head is returned,
/// without anything behind it.
///
/// The options of `Connection` go with it. So an `Upgrade` field that stays asks for nothing
/// (RFC 9110, section 7.8), and the connection ends with the response.
///
/// `bytes` are those that `head` was read from.
pub fn with_connection_close(head: &RequestHead<'_>, bytes: &[u8]) -> Vec<u8> {
    debug_assert!(
        bytes.len() >= head.head_len,
        "the bytes are not those of the head"
    );
    let mut rewritten = Vec::with_capacity(head.head_len + CLOSE.len());
    rewritten.extend_from_slice(&bytes[..head.fields_at.min(bytes.len())]);
    for line in head.lines() {
        let dropped = field(line).is_some_and(|(name, _)| {
            PERSISTENCE
                .iter()
                .any(|persistence| name.eq_ignore_ascii_case(persistence))
        });
        if !dropped {
            rewritten.extend_from_slice(line);
        }
    }
    rewritten.extend_from_slice(CLOSE);
    rewritten.extend_from_slice(b"\r\n");
    rewritten
}
