//! Deterministic worlds: a virtual clock, seeded links, independent TCP hosts (smoltcp), and the
//! datapath between them.
//!
//! One 64-bit seed decides everything: addresses, options, timings, faults, what applications say
//! and when they leave. The same seed gives the same packets, bit for bit. While a world runs,
//! oracles watch every packet and every byte; the first promise that is broken stops it.
//!
//! Three ways in:
//! - [`run_seed`]: a scenario drawn from a seed, judged at its end (the tests run hundreds),
//! - [`World`]: a world put together by hand, for one story or one bug,
//! - [`demo::run`]: a given configuration, servers conjured up for its pools, and a list of
//!   requests: what `fairlead demo` shows where namespaces are not allowed.
//!
//! Absent by design: sockets, clocks, threads, files. Time is virtual and jumps.
#![forbid(unsafe_code)]

mod app;
pub mod demo;
mod dice;
mod host;
mod mischief;
mod mutant;
mod net;
mod oracle;
mod order;
mod scenario;
mod trace;
mod world;

pub use app::{
    ClientPlan, Dialect, Expect, Finish, Manner, Pace, RequestPlan, ServerPlan, SocketPlan, Turn,
    client_hello, http_request,
};
pub use host::HostPlan;
pub use mutant::Mutant;
pub use net::{Faults, LinkPlan, Quirks};
pub use scenario::{Outcome, Scenario, run_scenario, run_seed};
pub use trace::Trace;
pub use world::{Budget, Failure, Middle, World, WorldPlan};
