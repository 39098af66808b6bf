//! The content-aware switch: two TCP connections joined by translating packets.
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

pub mod backends;
pub mod config;
pub mod event;
pub mod routes;
pub mod snapshot;
pub mod snat;
