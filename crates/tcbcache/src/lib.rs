//! The TCB cache in front of the connection table: recently used connections are found in a few
//! cache-resident lines, all others through the table's own index.
//!
//! The mechanism is that of `cache`, the same as in the lab; the payload of a line is the number of
//! a record in [`fairlead_tcp::Table`]. A line counts only after its record was compared with the
//! packet, so the cache needs no notification of ended connections: see [`TcbCache`].
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
