//! Words that every room of Fairlead shares.
//!
//! Absent by design: sockets, clocks, threads, files, random sources. Time is passed in as an
//! [`Instant`], randomness as a seed.
#![forbid(unsafe_code)]

mod address;
mod counters;
mod instant;
mod packet;
mod reason;
mod rng;
mod seed;
mod seq;

pub use address::{Address, Endpoint, FlowKey, HashKey};
pub use counters::{Counter, CounterKind, CounterSet};
pub use instant::Instant;
pub use packet::{Checksum, Gso, PACKET_BYTES_MAX, Packet};
pub use reason::{DropReason, ReasonCounts};
pub use rng::Rng;
pub use seed::Seed;
pub use seq::SeqNumber;
