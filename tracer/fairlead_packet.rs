// SPDX-License-Identifier: MIT OR Apache-2.0

//! Marks the work on a packet for `fairlead lab protocol run`:
//!
//! ```ignore
//! mod fairlead_packet;
//! fairlead_packet::names!(b"receive\nsend"); // optional: names of the kinds 0, 1, …
//!
//! fairlead_packet::begin(0);
//! handle(packet);
//! fairlead_packet::end(0);
//! ```
//!
//! Outside the tracer the marks cost a call and a read. They must come in pairs, and may not be
//! nested. To print this file: `fairlead lab protocol markers rust`.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

/// The byte that a mark reads tells the kind: of the first half at a begin, of the other at an end.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "fairlead_packet_kinds")]
static KINDS: [AtomicU8; 512] = [const { AtomicU8::new(0) }; 512];

/// The work on a packet begins.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "fairlead_packet_begin")]
#[inline(never)]
pub(crate) extern "C" fn begin(kind: u8) {
    black_box(KINDS[usize::from(kind)].load(Ordering::Relaxed));
}

/// The work on a packet ends.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "fairlead_packet_end")]
#[inline(never)]
pub(crate) extern "C" fn end(kind: u8) {
    black_box(KINDS[256 + usize::from(kind)].load(Ordering::Relaxed));
}

/// Names the kinds, one a line; at most once in a program.
macro_rules! names {
    ($lines:literal) => {
        // SAFETY: no other symbol has this name.
        #[used]
        #[unsafe(export_name = "fairlead_packet_names")]
        static NAMES: [u8; { $lines.len() }] = *$lines;
    };
}
pub(crate) use names;
