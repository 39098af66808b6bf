//! Cost models: time for a miss ratio, and hardware for a cache.
//!
//! | file | |
//! |---|---|
//! | `constants.rs` | every constant with its source |
//! | `toe.rs` | receive time in an offload engine (figure 17) |
//! | `cpu.rs` | request time on a processor (figures 18 and 19) |
//! | `gates.rs` | gates and gate delays of the hash (section 4.3) |
//! | `hardware.rs` | bits and gates of a configuration |

pub mod constants;
pub mod cpu;
pub mod gates;
pub mod hardware;
pub mod toe;

pub use constants::Constants;
