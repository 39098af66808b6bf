//! Single connections of unmodified programs, carried by another TCP: what the program's side (the
//! bypass library) and the card agree on, without sockets, memory or clocks.
//!
//! Commands are the twelve of [`fairlead_handoff`]. Where a command is an index that moves, it is
//! a word of the shared memory, and no message is sent.
//!
//! | command | here |
//! |---|---|
//! | `ch_nic_handoff`, `ch_nic_restore` | a message with descriptors on the control socket |
//! | `ch_nic_send` | a message in the command ring: bytes of the ring, or a range of a file |
//! | `ch_nic_recvd` | [`layout::line::READ`]; a message if the ring was full, or a token is due |
//! | `ch_nic_ctrl` | a message in the command ring |
//! | `ch_nic_forward` | the card writes a held packet to its own device |
//! | `ch_nic_post` | the receive buffer is posted by the handoff; a message names a file |
//! | `ch_os_recv` | [`layout::line::RECEIVED`], and a token if one was wanted |
//! | `ch_os_ack` | [`layout::line::TAKEN`], [`layout::line::RANGES_DONE`]: the kernel has them |
//! | `ch_os_ctrl` | [`layout::line::STATE`], and the token's end |
//! | `ch_os_resource` | [`layout::head::ROOM`] |
//! | `ch_os_restore` | a flag of [`layout::line::STATE`], and a token |
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | the shared memory |
//! | [`piece`] | what `ch_nic_send` names, as an address |
//! | [`ring`] | positions in a buffer that is used round and round |
//! | [`line`] | the card's side of one connection |
//! | [`choice`] | when a connection is handed off |
//! | [`reason`] | why a connection is not on the card |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod choice;
pub mod layout;
pub mod line;
pub mod piece;
pub mod reason;
pub mod ring;

pub use choice::Turns;
pub use line::{Fault, Line};
pub use piece::Piece;
pub use reason::Reason;
pub use ring::Span;
