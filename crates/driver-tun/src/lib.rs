//! The TUN device of Linux as a packet queue, with checksum and segmentation offload, and the
//! network settings that bring packets to it.
//!
//! The kernel passes packets as they are inside it: unsegmented up to 64 KiB, and with partial
//! checksums. A switch that only rewrites headers passes them on in the same form, so up to 45
//! segments share the cost of a system call.
#![deny(unsafe_code)] // but for `sys`

mod counters;
mod device;
mod neighbours;
pub mod net;
mod passing;
mod sys;
mod vnet;
mod wait;

pub use counters::{DeviceCounters, SIZE_CLASSES, SizeCounts};
pub use device::{SendError, TunDevice, TunError};
pub use neighbours::{Neighbours, WAIT_MAX as NEIGHBOURS_WAIT_MAX};
pub use passing::PassingErrors;
pub use vnet::{BadHeader, Unsendable, VNET_HEADER_BYTES, VnetHeader};
pub use wait::{
    EndSignal, EndSignals, PIPE_BYTES, Ready, open_for_appending, open_named_pipe, wait_for_packet,
    wait_for_room,
};
