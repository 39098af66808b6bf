//! For tests only: packets in one expression, byte streams that can be checked from any position,
//! a slow, obviously right twin of the checksum, and a fast path that does what a test says.
//!
//! Unlike the core, functions here panic: a test that builds nonsense should say so at once.
#![forbid(unsafe_code)]

mod fast_path;
pub mod oracle;
mod segment;
pub mod stream;

pub use fast_path::{FastPathDouble, IssuedTicket, Kept, Newcomer, TakenTicket, Told};
pub use segment::{Segment, endpoint, segment, tcp};
