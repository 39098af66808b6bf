//! Capture files as packet sources and sinks.
//!
//! [`CaptureReader`] reads pcap and pcapng, plain or packed (gzip, Zstandard), of either byte order
//! and any resolution of stamps, in bounded memory. [`ip_packet`] finds the IP packet behind the
//! link header, [`StampClock`] turns stamps into instants that never go back, and
//! [`CaptureWriter`] writes pcapng. [`CaptureQueue`] and [`CaptureSink`] make the two a receive
//! and a transmit queue.
#![forbid(unsafe_code)]

mod clock;
mod error;
mod intake;
mod legacy;
mod link;
mod ng;
mod queue;
mod reader;
mod writer;

pub use clock::{GAP_MAX, StampClock};
pub use error::{CaptureError, Fault, Place};
pub use link::{IpBytes, LinkType, NotIp, ip_packet};
pub use queue::{CaptureQueue, CaptureSink, QueueCounts};
pub use reader::{CaptureReader, Captured, Format};
pub use writer::{CaptureWriter, Passage};

/// The longest record of one packet that is read, bytes: four times what tools write at most.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
