//! The card of offloaded connections: a second network stack of Linux, in a network namespace of
//! its own, and a process there that imports connections and serves their rings.
//!
//! | file | concern |
//! |---|---|
//! | `setup.rs` | makes the card on one machine, takes it away |
//! | `routes.rs` | the host's addresses and routes, and their changes |
//! | `serve.rs` | the process: programs that connect, and what wakes it |
//! | `owner.rs` | one program: its memory, its commands |
//! | `pump.rs` | bytes between a connection's rings and its socket |
//! | `orders.rs` | orders of the operator |
//! | `room.rs` | what the operator and scarce room ask of connections |
//! | `guard.rs` | a process that ends moves which the card has left half done |
//! | `moves.rs` | connections on their way in and out |
//! | `trial.rs` | a program without a process, for tests that write what they like |
//! | `counts.rs` | what happened, and why connections were refused or reset |
#![forbid(unsafe_code)]

mod counts;
mod guard;
mod moves;
pub mod orders;
mod owner;
mod pump;
mod room;
mod routes;
mod serve;
pub mod setup;
pub mod trial;

pub use counts::CardCounts;
pub use guard::Step;
pub use serve::{CardError, Settings, serve};
