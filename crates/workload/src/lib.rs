//! From requests to accesses.
//!
//! A log has clients and seconds; a cache of connection state sees packets and ports. [`expand`]
//! derives the latter from the former, by a model with named parameters, each with a documented
//! default ([`Expansion`]). [`standard`] and [`zipf`] generate accesses from a seed. [`statistics`]
//! describes a log or a stream of accesses.
//!
//! **Concurrency.** A session is open from its first access to its last, both included; a session
//! of a single access is open for that instant. Concurrency at an instant is the number of open
//! sessions, and over a stretch of time it is the mean over that time. Nothing lingers: TIME_WAIT
//! and idle timeouts would be a property of a server, not of its load.
#![forbid(unsafe_code)]

pub mod count;
mod draw;
mod expand;
mod expansion;
mod overlay;
mod ports;
mod sessions;
mod standard;
pub mod statistics;
mod zipf;

pub use expand::{Expanded, Prepared, WorkloadError, expand};
pub use expansion::{Expansion, PacketModel, SubSecond};
pub use ports::PortModel;
pub use sessions::askers;
pub use standard::{Standard, standard, warmed};
pub use zipf::{check_zipf, zipf};
