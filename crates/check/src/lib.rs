//! Health checks: what is asked of a server, when, and what the answers mean.
//!
//! A [`Schedule`] has one *target* for each address and [`Check`]; servers of several pools that
//! are checked alike share it. The order of calls:
//!
//! ```text
//! poll_due(now)   → a target to check now         (at most IN_FLIGHT_MAX at once)
//! handle_result(now, target, passed)              when its check has ended
//! poll_change()   → members whose state changed
//! poll_timeout()  → when poll_due has the next target
//! ```
//!
//! Absent by design: sockets, clocks, threads. Whoever drives this connects, sends and waits.
#![forbid(unsafe_code)]

mod check;
mod judge;
mod schedule;

pub use check::{Check, Kind, OnDown, StatusRange};
pub use judge::Judge;
pub use schedule::{Change, IN_FLIGHT_MAX, Member, Schedule, TargetId};
