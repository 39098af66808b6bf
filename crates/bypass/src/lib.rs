//! The bypass library: `fairlead run` loads it into an unmodified program (`LD_PRELOAD`). It takes
//! the place of the C library's socket calls. A connection that is handed off to a card keeps its
//! descriptor number, but the descriptor is then a token without bytes, on which epoll, poll and
//! select work as before; the bytes are in shared memory.
//!
//! What the library cannot carry it gives back to the kernel first, so that the call means what it
//! meant. Calls that it does not see (a raw `syscall`, `io_uring`, static programs) are named in
//! docs/offload.md.
//!
//! | file | concern |
//! |---|---|
//! | `real.rs` | the functions of the C library |
//! | `settings.rs` | what `fairlead run` has set |
//! | `table.rs` | which descriptors are watched |
//! | `entry.rs` | one socket: where it is, what is known of it |
//! | `channel.rs` | the connection to the card, the command ring |
//! | `options.rs` | socket options that go along |
//! | `flow.rs` | bytes in and out |
//! | `file.rs` | ranges of files |
//! | `moves.rs` | to the card and back |
//! | `mover.rs` | the thread that hands connections off |
//! | `reasons.rs` | why connections are not on the card, counted |
//! | `calls/` | the functions that programs call |

pub mod calls;
mod channel;
mod entry;
mod file;
mod flow;
mod mover;
mod moves;
mod options;
mod real;
mod reasons;
mod settings;
mod table;
