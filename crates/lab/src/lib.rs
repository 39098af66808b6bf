//! The laboratory: simulates caches of connection state on traces. The cache code is
//! `fairlead_cache`, which the switch also runs.
#![forbid(unsafe_code)]

pub mod advise;
mod bounds;
pub mod calibrate;
pub mod cli;
pub mod content;
mod control;
pub mod cost;
mod error;
mod fingerprint;
pub mod handoff;
mod html;
pub mod load;
pub mod map;
pub mod notes;
pub mod paper;
pub mod plan;
mod pool;
pub mod protocol;
mod read_note;
pub mod run;
pub mod schemes;
mod size;
mod spec;
pub mod stat;
pub mod sweep;
pub mod table;

pub use bounds::Wanted;
pub use control::{Control, Silent};
pub use error::{LabError, in_words};
pub use fingerprint::{Fingerprint, Printer};
pub use load::{Loader, Stream, StreamSpec};
pub use run::{run_each, run_many};
pub use size::Size;
pub use spec::{Bounds, RunResult, RunSpec};
