//! HTTP/1 in front of pools, request by request (`treatment = "per-request"`,
//! docs/per-request.md).
//!
//! [`Front`] is one state machine for all connections of a thread: clients' and servers'. Its
//! driver owns the sockets. It shows what they receive, sends what it is given, and carries out
//! [`Action`]s:
//!
//! ```text
//! accepted(client, listen) → id        received(id, n), after reading into space(id)
//! poll_action() → connect, send, …     sent(id, n), after writing output(id)
//! poll_event() → a request is over     ended(id), failed(id), connected(id)
//! handle_time(now), every 100 ms
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `front.rs` | the driver's side |
//! | `announced.rs` | clients whose connections are spliced to sockets of the front |
//! | `client.rs` | reads requests, ends connections |
//! | `exchange.rs` | one request: choice of a server, retries, its end |
//! | `server.rs` | reads responses |
//! | `cached.rs`, `caches.rs` | requests of routes with a cache; the caches |
//! | `kept.rs` | caches in files |
//! | `hits.rs` | responses that the kernel sends |
//! | `orders.rs` | what an operator asks of the caches |
//! | `parting.rs` | connections go to other processes |
//! | `purge.rs` | `PURGE` requests |
//! | `tunnel.rs` | connections that have changed to another protocol |
//! | `fields.rs`, `response.rs`, `framing.rs` | heads, and where bodies end |
//! | `conns.rs`, `buffer.rs` | connections and the bytes in them |
//!
//! Where a request goes is decided by the same routes, pools and policies as for spliced
//! connections. A body is not copied inside: the bytes that were received for one connection are
//! those that the other one sends.
//!
//! Absent by design: sockets, clocks, threads.
#![forbid(unsafe_code)]

mod announced;
mod buffer;
mod cached;
mod caches;
mod client;
mod conns;
mod counts;
mod event;
mod exchange;
mod fields;
mod framing;
mod front;
mod hits;
mod kept;
mod orders;
mod parting;
mod purge;
mod response;
mod server;
mod tunnel;

#[cfg(test)]
mod tests;

pub use buffer::BLOCK_BYTES;
pub use conns::ConnId;
pub use counts::{Counts, FrontCounters};
pub use event::{Event, RequestEnd};
pub use front::{Action, Front, Limits};
pub use hits::{HitChange, HitId, Offer};
pub use kept::{Backing, FILE_BYTES_MIN, FilePart, Owner};
pub use orders::CacheView;
pub use response::BadResponse;
pub use tunnel::TunnelEnds;
