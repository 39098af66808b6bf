//! The TCB cache: which connections' state stays in the small, fast store. And, for the laboratory,
//! a processor's caches of memory lines: [`memory`].
//!
//! Shared by the datapath and the lab. A [`Geometry`] defines the number and arrangement of lines;
//! an [`Indexer`] maps each session identifier to its [`Place`]; a [`Cache`] looks up, fills and
//! removes under a [`policy`]; a [`Scheme`] names a combination of these, and [`build`] makes a
//! simulation of it. Payloads belong to the caller, who stores them by line number.
//!
//! After "A New TCB Cache to Efficiently Manage TCP Sessions for Web Servers" (ANCS 2010).
//!
//! Absent by design: sockets, clocks, threads, files, random sources. Nothing is allocated by an
//! access.
#![forbid(unsafe_code)]

pub mod bounds;
mod cache;
mod family;
mod geometry;
pub mod index;
mod key;
mod lifetime;
mod lines;
mod lookup;
pub mod memory;
mod place;
pub mod policy;
pub mod queue;
pub mod registry;
mod scheme;
mod simulate;
mod statistics;
mod vector;

pub use cache::{Cache, Filled, Found, Outcome, Tag};
pub use family::LruFamily;
pub use geometry::{BANKS_MAX, Geometry, GeometryError, LINES_MAX, WAYS_MAX};
pub use index::Indexer;
pub use key::{Bits, Mask, MaskError};
pub use lifetime::{COUNTER_MAX, Clock, Lifetime, LifetimeError, ON_TICKS_MAX};
pub use lines::{Access, Homes, Lines, Spot};
pub use lookup::{Lookup, build_lookup};
pub use place::{Place, Places};
pub use scheme::{Scheme, SchemeError};
pub use simulate::{BATCH, Member, RunError, Simulate, Simulation, build, run_all};
pub use statistics::Statistics;
