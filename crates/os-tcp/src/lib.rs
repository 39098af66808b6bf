//! Linux's side of connection handoff.
//!
//! | module | contents |
//! |---|---|
//! | [`destroy`] | ends sockets of this network namespace by their addresses (`SOCK_DESTROY`) |

pub mod destroy;
mod sys;

pub use destroy::Destroyer;
