//! Runs a program under QEMU and gives its events: instructions, accesses to memory, packets.
//!
//! The tracer is a plugin for QEMU (`tracer/` in the repository) that this crate carries. It writes
//! to a pipe; [`trace`] reads, checks and joins what arrives, and hands it to a sink.

mod emulator;
mod guest;
mod initramfs;
mod load_map;
mod object_file;
mod run;
mod stream;

pub use guest::{GuestSpec, has_machine_emulator, trace_guest};
pub use run::{Marks, Outcome, TraceSpec, trace};

/// The tools that built a program: what compilers and linkers write into its file.
///
/// # Errors
/// It cannot be read.
pub fn tools(program: &std::path::Path) -> Result<Vec<String>, crate::LabError> {
    Ok(object_file::ObjectFile::read(program)?.tools())
}

/// The marks as a C header, to be included in programs that are traced.
pub const MARKS_C: &str = include_str!("../../../../../tracer/fairlead_packet.h");
/// The marks as a Rust module.
pub const MARKS_RUST: &str = include_str!("../../../../../tracer/fairlead_packet.rs");
