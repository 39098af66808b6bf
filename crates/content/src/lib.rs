//! A content cache on a network interface: the host decides which file blocks the device keeps, and
//! packets are built from headers in host memory and blocks in the device's own memory.
//!
//! | file | contents |
//! |---|---|
//! | `block.rs` | block sizes, identities of files and blocks, places in both memories |
//! | `directory.rs` | the host's list of cached blocks, one per device |
//! | `residency/` | which entries stay: one file per policy; admission by size |
//! | `command.rs` | the device's four commands, as descriptors of 16 bytes |
//! | `host.rs` | from a packet's parts to commands |
//! | `device.rs` | executes commands in order, with interlocks, over a [`Store`] |
//! | `lease.rs` | reads of a block that are still pending |
//! | `bus.rs` | bytes and transfers by kind; a model of the bus |
//! | `meter.rs` | bytes by kind, with and without caches, of packets that a real server sent |
//! | `object.rs` | a whole response made of cached blocks, and its ranges |
//! | `invariants.rs` | checks after every change, in debug builds |
//!
//! After "Network Interface Data Caching" (Kim, Rixner and Pai, IEEE Transactions on Computers,
//! 2005).
//!
//! Absent by design: sockets, clocks, threads, files, random sources. Nothing is allocated after a
//! directory, a sender or a device is made.
#![forbid(unsafe_code)]

mod block;
pub mod bus;
mod command;
mod device;
mod directory;
mod host;
mod invariants;
mod lease;
pub mod meter;
mod object;
pub mod residency;

pub use block::{BlockKey, BlockSize, CacheOffset, Extent, FileId, HostAddress, Revision};
pub use command::{Command, DESCRIPTOR_BYTES, DescriptorError, Flags};
pub use device::{Completion, Device, Full, Limits, Outcome, Piece, Refusal, Store};
pub use directory::{Directory, Found};
pub use host::{Counts, Part, Sender, SenderConfig};
pub use object::Object;
pub use residency::{Admission, Policy, Residency};
