//! The TCB cache in front of the connection table: which connections are looked up in a few lines
//! that stay near, and which through the table's own index.
//!
//! The mechanism is `cache`'s, the same as in the lab; the payload of a line is the number of a
//! record in [`fairlead_tcp::Table`]. A line is only ever believed after its record was compared
//! with the packet, so nothing needs to be told of connections that end: see [`TcbCache`].
//!
//! After "A New TCB Cache to Efficiently Manage TCP Sessions for Web Servers" (ANCS 2010).
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

mod asked;
mod front;
mod report;
mod settings;

pub use asked::{Asked, hint};
pub use fairlead_cache::{Geometry, GeometryError, Lifetime, Mask, Scheme, SchemeError, WAYS_MAX};
pub use front::TcbCache;
pub use report::{Report, TcbCacheCounters};
pub use settings::{LINE_BYTES, Settings, TICK, tick};
