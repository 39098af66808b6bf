//! What a ClientHello asks for.

use fairlead_wire::tls::ClientHello;

use super::host;
use crate::config::NamePattern;

/// Whether the hello names a server, and one of these.
pub(super) fn server_name(names: &[NamePattern], hello: &ClientHello) -> bool {
    host::any(names, hello.sni.as_deref())
}

/// Whether any of these protocols is among those offered, whatever the client likes best.
pub(super) fn protocol(protocols: &[String], hello: &ClientHello) -> bool {
    hello.alpn.iter().any(|offered| {
        protocols
            .iter()
            .any(|protocol| protocol.as_bytes() == &offered[..])
    })
}
