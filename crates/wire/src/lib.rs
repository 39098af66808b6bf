//! Bytes on the wire: packet views and builders, checksums, TCP options, and the first bytes of
//! the protocols that a content-aware switch reads.
//!
//! Everything here is a function of bytes: no sockets, clocks, threads or randomness, and no state
//! except a scanner's position. All input is untrusted: nothing panics on it, every loop is
//! bounded, and violations of the RFCs give a [`fairlead_base::DropReason`].
#![forbid(unsafe_code)]

pub mod asked;
pub mod build;
pub mod checksum;
pub mod fragment;
pub mod http;
pub mod icmp;
pub mod options;
pub mod packet;
pub mod proxy_protocol;
mod scan;
pub mod tls;

pub use asked::Asked;
pub use build::TcpRepr;
pub use fragment::{Datagram, Fragment};
pub use icmp::{IcmpKind, IcmpPacket, IcmpQuote};
pub use options::{SynOptions, Timestamps};
pub use packet::{Classified, TcpFlags, TcpPacket, classify};
pub use scan::{Fault, Scan};
