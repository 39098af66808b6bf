//! Linux's side of connection handoff.
//!
//! | module | contents |
//! |---|---|
//! | [`destroy`] | ends sockets of this network namespace by their addresses (`SOCK_DESTROY`) |
//! | [`heirs`] | what becomes of sockets when their process executes another program |
//! | [`listening`] | whether somebody listens at an address |
//! | [`repair`] | reads the state of connected sockets, and makes sockets of such states |
//! | [`pass`] | messages with descriptors over Unix sockets (`SCM_RIGHTS`) |

pub mod destroy;
mod diag;
pub mod heirs;
pub mod listening;
pub mod pass;
pub mod repair;
mod sys;
mod written;

pub use destroy::Destroyer;
pub use listening::Listening;
pub use repair::{Identity, PeerClock, Refused, State};
pub use written::STATE_BYTES;
