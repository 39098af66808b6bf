//! For tests only: packets in one expression, byte streams that can be checked from any position,
//! and a slow, obviously right twin of the checksum.
//!
//! Unlike the core, functions here panic: a test that builds nonsense should say so at once.
#![forbid(unsafe_code)]

pub mod oracle;
mod segment;
pub mod stream;

pub use segment::{Segment, endpoint, segment, tcp};
