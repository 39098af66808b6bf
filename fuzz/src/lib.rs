//! Fuzz targets: everything that reads what strangers send, under arbitrary bytes.
//!
//! A target is a function of bytes ([`Target::run`]) that panics when a promise is broken. The
//! promises (oracles) are in the target: that nothing panics, that a verdict does not depend on how
//! the bytes arrive, that what leaves has valid checksums, that memory stays within its limits.
//!
//! Two front ends run the same targets: the wrappers in `fuzz/fuzz_targets` for `cargo fuzz`
//! (libFuzzer, nightly toolchain), and the binary of this package, which needs nothing but the
//! stable toolchain ([`session`]). The latter has no view of the code's branches; targets tell it
//! what they saw by [`novelty::note`] instead, and inputs that show something new are kept.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod find;
pub mod mutate;
pub mod novelty;
pub mod script;
pub mod session;
pub mod targets;
mod watch;

pub use targets::{Target, all, named};

/// Runs the target of this name.
///
/// # Panics
/// When a promise is broken, or when there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    match named(name) {
        Some(target) => (target.run)(bytes),
        None => panic!("there is no target {name:?}"),
    }
}
