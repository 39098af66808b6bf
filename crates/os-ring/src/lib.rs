//! Linux's side of offload: what the card and the bypass library need of the system.
//!
//! | module | contents |
//! |---|---|
//! | [`shared`] | the sealed shared memory, its words, and bytes between it and descriptors |
//! | [`doorbell`] | wakes a card that sleeps |
//! | [`token`] | a socket pair that carries no bytes of the connection, only readiness |
//! | [`hold`] | packets of a connection on its way: taken from one device, given to another |

pub mod doorbell;
pub mod hold;
pub mod shared;
pub mod token;

pub use doorbell::Doorbell;
pub use hold::Hold;
pub use shared::Shared;

use std::io;

/// The result of a call that returns a negative number for an error.
fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
