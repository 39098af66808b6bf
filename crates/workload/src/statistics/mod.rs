//! What logs and streams of accesses are like.
//!
//! | file | what | figure of tcb-cache-2010 |
//! | --- | --- | --- |
//! | `totals.rs` | clients, sessions, bytes, the busiest second | |
//! | `gaps.rs` | pauses within ON periods, OFF times | 3 |
//! | `bits.rs` | average bits of addresses and ports | 7 |
//! | `concurrency.rs` | sessions open at once | |

mod bits;
mod concurrency;
mod gaps;
mod totals;

pub use bits::{BitAverages, bit_averages};
pub use concurrency::{Open, concurrency};
pub(crate) use concurrency::{circle, line};
pub use gaps::{Gaps, Histogram, OFF_EDGES_S, ON_EDGES_S, gaps};
pub use totals::{Totals, totals};
