//! The ClientHello of a TLS connection, read as far as a switch needs it to choose a server.
//!
//! [`HelloScanner`] receives the client's bytes as they arrive. It follows the records (RFC 8446,
//! section 5.1) that the message may span, and refuses at the first byte that rules out a
//! ClientHello; the message itself (section 4.1.2) is parsed once, when it is complete.
//!
//! Verdicts come as `Scan<ClientHello, TlsError>`: [`Scan`] is shared with the HTTP scanner and has
//! the error's type as its second parameter.
//!
//! Absent by design: keys. Nothing is decrypted, and the bytes are forwarded unchanged.

mod error;
mod hello;
mod scanner;

#[cfg(test)]
mod tests;

pub use crate::scan::Scan;
pub use error::TlsError;
pub use hello::{ALPN_NAMES_MAX, ClientHello, EXTENSIONS_MAX};
pub use scanner::{HELLO_BYTES_MAX, HelloScanner, RECORD_BYTES_MAX, RECORDS_MAX};

/// A whole record with a fatal alert of the given description (RFC 8446, section 6.2), as a server
/// sends it before anything is encrypted. The record says TLS 1.2, as section 5.1 asks.
pub fn alert(description: u8) -> [u8; 7] {
    const ALERT: u8 = 21;
    const FATAL: u8 = 2;
    [ALERT, 3, 3, 0, 2, FATAL, description]
}
