//! Linux's side of connection handoff.
//!
//! | module | contents |
//! |---|---|
//! | [`destroy`] | ends sockets of this network namespace by their addresses (`SOCK_DESTROY`) |
//! | [`heirs`] | what becomes of sockets when their process executes another program |
//! | [`listening`] | whether somebody listens at an address |
//! | [`repair`] | reads the state of connected sockets, and makes sockets of such states |
//! | [`whole`] | the same with the bytes of both queues |
//! | [`pass`] | messages with descriptors over Unix sockets (`SCM_RIGHTS`) |

pub mod destroy;
mod diag;
pub mod heirs;
pub mod listening;
pub mod pass;
pub mod repair;
mod sys;
pub mod whole;
mod written;

pub use destroy::Destroyer;
pub use listening::Listening;
pub use repair::{Identity, PeerClock, Refused, State};
pub use whole::Whole;
pub use written::STATE_BYTES;
