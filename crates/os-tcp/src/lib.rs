//! Linux's side of connection handoff.
//!
//! | module | contents |
//! |---|---|
//! | [`destroy`] | ends sockets of this network namespace by their addresses (`SOCK_DESTROY`) |
//! | [`repair`] | reads the state of connected sockets, and makes sockets of such states |
//! | [`pass`] | messages with descriptors over Unix sockets (`SCM_RIGHTS`) |

pub mod destroy;
pub mod pass;
pub mod repair;
mod sys;
mod written;

pub use destroy::Destroyer;
pub use repair::{Identity, PeerClock, Refused, State};
pub use written::STATE_BYTES;
