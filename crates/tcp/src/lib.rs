//! TCP state that the organs share: the splice record and its table, SYN cookies, option
//! agreement, reassembly of a connection's first bytes, retransmission timers.
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

pub mod adoption;
pub mod backoff;
pub mod cookie;
pub mod endpoints;
pub mod hits;
pub mod join;
pub mod offload;
pub mod pairing;
pub mod reassembly;
pub mod record;
pub mod second;
pub mod table;
pub mod ticket;
pub mod window;

pub use adoption::{Kept, KeptPair, Misfit};
pub use backoff::Backoff;
pub use cookie::{CookieKey, Promise};
pub use endpoints::Endpoints;
pub use hits::{Hit, HitListen, HitObject, HitVerdict, Hits};
pub use join::{Join, Joined};
pub use offload::{
    ConnectOffload, FastPath, FlowOffload, Held, HostHandoff, HostTerms, ListenOffer, PairOffload,
    Preconnect, Progress, Refusal, Sleeper, SynOffload, Tracking,
};
pub use pairing::{Pairing, Unlike};
pub use reassembly::Reassembly;
pub use record::{Record, Side, State};
pub use second::{PAIR_ROUTE, Renumbering, Second, Seen};
pub use table::{Found, KeyInUse, Line, Table};
pub use ticket::{Begun, Taker, Ticket};
