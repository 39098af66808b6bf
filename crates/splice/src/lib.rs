//! The content-aware switch: two TCP connections joined by translating packets.
//!
//! A client's handshake is answered without memory (`engine/handshake.rs`), its first bytes are
//! read (`engine/head.rs`), a [route](routes) and a [server](backends) are chosen, and from the
//! server's answer on packets are only [translated](translate), until both have [closed](closing).
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

pub mod access;
pub mod backends;
pub mod carried;
pub mod closing;
pub mod config;
pub mod engine;
pub mod event;
pub mod routes;
pub mod snapshot;
pub mod snat;
pub mod translate;

pub use engine::Uncached;
pub use engine::{
    Adopted, BadConnectionId, Change, ChangeError, ConfigError, Connection, ConnectionId,
    Departure, Estate, Pair, PairKept, PairRefused, PairState, Parted, Selection, Switch,
};
pub use event::Details;
pub use fairlead_tcp::Unlike;

use fairlead_base::DropReason;

/// What becomes of a packet that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it as it is now.
    Transmit,
    /// Forget it; counted under this reason.
    Drop(DropReason),
    /// The engine took what it needed; nothing to send.
    Consumed,
}
