//! What logs and streams of accesses are like.
//!
//! | file | what | figure of tcb-cache-2010 |
//! | --- | --- | --- |
//! | `totals.rs` | clients, sessions, bytes, the busiest second | |
//! | `gaps.rs` | gaps within ON bursts and between them | 3 |
//! | `histogram.rs` | counts in bins | |
//! | `bits.rs` | average bits of addresses and ports | 7 |
//! | `open.rs` | sessions open and ON at once, of a stream of accesses | |
//! | `concurrency.rs` | the same for sessions with known start and end | |

mod bits;
mod concurrency;
pub mod gaps;
pub mod histogram;
pub mod open;
mod totals;

pub use bits::{BitAverages, bit_averages};
pub(crate) use concurrency::{Open, circle, line};
pub use totals::{Totals, totals};

/// `part` of `whole`; 0 of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
