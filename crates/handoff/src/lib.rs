//! Connection handoff: live connections move between two places that can carry them, and the
//! owner of a connection chooses. The interface is the twelve commands of Kim and Rixner, "TCP
//! offload through connection handoff" (connection-handoff-2006).
//!
//! The *owner* has sockets: an application, a proxy, the kernel's TCP. The *carrier* (the paper's
//! network interface) forwards or serves the connection without them: a splice record, a sleeper.
//!
//! | module | contents |
//! |---|---|
//! | [`message`] | the commands, their answers, and their 16 bytes |
//! | [`refusal`] | why a command is refused |
//! | [`ledger`] | which connections are handed off, whose they are, bytes each way |
//! | [`budget`] | what an owner may use, and the room that is kept for others |
//! | [`policy`] | which connections an owner hands off, and when room is advertised |
//! | [`counts`] | commands and refusals, counted |
//!
//! Absent by design: sockets, clocks, threads, files. Only `core` and `alloc` are used.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod budget;
pub mod counts;
pub mod ledger;
pub mod message;
pub mod policy;
pub mod refusal;

pub use budget::{Budget, Limits};
pub use counts::Counts;
pub use ledger::{Entry, Ledger, Owner, Phase};
pub use message::{Body, Cid, Command, Error, MESSAGE_BYTES, Message, Op, Side};
pub use policy::{Advertiser, Facts, Policy};
pub use refusal::Refusal;
