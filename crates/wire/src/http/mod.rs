//! The head of an HTTP/1 request, read strictly: as far as a switch needs it to choose a server,
//! and never in a way that the server behind it could read differently.
//!
//! [`HeadScanner`] is shown the client's bytes as they arrive and looks at each byte once. It
//! refuses what cannot become a request at the first byte that shows it, and reads the request
//! line as soon as that is whole. When the empty line has come, the fields are cut by `httparse`
//! and judged by the rules of RFC 9110 and RFC 9112, of which each broken one has a name of its
//! own in [`HeadError`].
//!
//! Stricter than the RFC asks of a server, on purpose: line ends are CRLF only, at most one empty
//! line before the request line, no repeated `Content-Length` even with equal values, and no
//! bytes beyond ASCII in the target.
//!
//! Verdicts come as `Scan<RequestHead<'a>, HeadError>`: [`Scan`] has the error's type as its second
//! parameter, because the scanner for TLS shares it.
//!
//! Absent by design: bodies. Nothing here knows where a request's body ends.

mod answer;
mod authority;
mod error;
mod head;
mod plain;
mod query;
mod rewrite;
mod rules;
mod scanner;

#[cfg(test)]
mod tests;

pub use crate::scan::Scan;
pub use answer::response;
pub use error::HeadError;
pub use head::{FIELDS_MAX, Fields, RequestHead, SUBJECT_BYTES_MAX};
pub use plain::plain_hash;
pub use rewrite::with_connection_close;
pub use scanner::{HeadScanner, METHOD_BYTES_MAX};
