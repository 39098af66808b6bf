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

pub mod bounds;
mod entries;
mod responses;
mod segments;
mod simulate;
mod spec;

pub use responses::{RESPONSE_BYTES_MAX, Responses};
pub use simulate::simulate;
pub use spec::{BLOCKS_MAX, CACHES_MAX, Cell, CellResult, Count, Row, SIZES, Split, Unit};
