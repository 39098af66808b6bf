//! Capture files as packet sources and sinks.
//!
//! [`CaptureReader`] reads pcap and pcapng, optionally compressed (gzip, Zstandard), in either byte
//! order and any time stamp resolution, in bounded memory. [`ip_packet`] finds the IP packet after
//! the link header, [`StampClock`] converts time stamps to monotonic instants, and
//! [`CaptureWriter`] writes pcapng. [`CaptureQueue`] and [`CaptureSink`] are a receive and a
//! transmit queue on captures.
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

/// Maximum record size, bytes: four times the maximum that tools write.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
