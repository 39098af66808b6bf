//! What lies between hosts and the switch: links with faults, router hops, odd stacks, devices
//! that merge and cut packets.

mod icmp;
mod link;
mod offload;
mod quirks;
pub(crate) mod segment;

pub(crate) use icmp::{TooBig, too_big};
pub(crate) use link::{Crossing, Link};
pub use link::{Faults, LinkPlan};
pub(crate) use offload::{merge, split};
pub(crate) use quirks::QuirkState;
pub use quirks::Quirks;
pub(crate) use segment::Segment;
