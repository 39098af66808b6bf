//! The study of "Network Interface Data Caching" (Kim, Rixner and Pai, 2005): how much of a web
//! server's content a cache on the network interface saves on the bus.
//!
//! | file | contents |
//! |---|---|
//! | `responses.rs` | a log as responses: file, bytes, client |
//! | `spec.rs` | what is simulated, and what it results in |
//! | `segments.rs` | LRU, exact per block at the cost of one step per response |
//! | `entries.rs` | every other policy, by the residency code of `fairlead_content` |
//! | `bounds.rs` | Belady for blocks, an upper bound for whole files |
//! | `simulate.rs` | runs cells, on all cores |
//! | `traffic.rs` | what responses transfer over a bus; the buses |
//! | `zipf.rs` | popularity of files |
//! | `advise.rs` | which size and policy fit a log |
//! | `paper/` | the paper's figures on the logs at hand |

pub mod advise;
pub mod bounds;
mod entries;
pub mod paper;
mod responses;
mod segments;
mod simulate;
mod spec;
pub mod traffic;
pub mod zipf;

pub use responses::{RESPONSE_BYTES_MAX, Responses, STEPS_BACK_MAX};
pub use simulate::simulate;
pub use spec::{BLOCKS_MAX, CACHES_MAX, Cell, CellResult, Count, Row, SIZES, Split, Unit};
