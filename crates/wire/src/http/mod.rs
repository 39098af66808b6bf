//! Strict parsing of HTTP/1 request heads: as much as the switch needs to choose a server, and
//! never in a way that the server could interpret differently.
//!
//! [`HeadScanner`] receives the client's bytes as they arrive and reads each byte once. It refuses
//! an invalid request at the first wrong byte, and parses the request line as soon as it is
//! complete. After the empty line, `httparse` splits the fields, and the rules of RFC 9110 and RFC
//! 9112 are applied; each violation has its own name in [`HeadError`].
//!
//! Stricter than the RFC asks of a server, on purpose: line ends are CRLF only, at most one empty
//! line before the request line, and no repeated `Content-Length` even with equal values. Less
//! strict in one place: bytes beyond ASCII in the target are let through as they are, because old
//! programs and people send them, and no server ends a target at one.
//!
//! Verdicts come as `Scan<RequestHead<'a>, HeadError>`: [`Scan`] has the error's type as its second
//! parameter, because the scanner for TLS shares it.
//!
//! Absent by design: what bodies hold. Only where a request's body ends is known ([`Body`]).

mod answer;
mod authority;
mod body;
mod error;
mod fault;
mod head;
mod hit;
mod list;
mod plain;
mod query;
mod response;
mod rewrite;
mod rules;
mod scanner;

#[cfg(test)]
mod tests;

pub use crate::asked::SUBJECT_BYTES_MAX;
pub use crate::scan::Scan;
pub use answer::{response, response_head};
pub use body::{Body, ChunkScan, ChunkScanner};
pub use error::HeadError;
pub use head::{FIELDS_MAX, Fields, RequestHead};
pub use hit::{HitHead, hit_head};
pub use list::members;
pub use plain::plain_hash;
pub use response::{ResponseEnd, response_end};
pub use rewrite::with_connection_close;
pub use scanner::{HeadScanner, METHOD_BYTES_MAX};
