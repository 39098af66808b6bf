//! How protocol stacks use caches: programs are traced instruction by instruction, and the
//! references of each packet are counted.

pub mod bpf_paths;
pub mod budget;
pub mod caches;
mod chunk;
pub mod layers;
pub mod layouts;
pub mod linux;
pub mod lwip;
pub mod machine;
pub mod packets;
pub mod paper;
pub mod report;
pub mod spread;
pub mod stacks;
pub mod sweep;
pub mod tally;
pub mod tracer;

use fairlead_trace::TraceError;

use crate::error::LabError;

/// A trace of references that cannot be read.
pub(crate) fn unreadable(error: TraceError) -> LabError {
    LabError::Protocol(error.to_string())
}
