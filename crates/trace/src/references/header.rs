//! What was traced.

use serde::{Deserialize, Serialize};

/// What was traced, how, and where its code was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Instruction set, as QEMU names it: `x86_64`, `aarch64`.
    pub isa: String,
    /// The processor that was emulated (`-cpu`).
    pub cpu: String,
    /// The emulator and its version.
    pub emulator: String,
    /// Program and arguments, or the workload's own description.
    pub command: Vec<String>,
    /// False if only the work on packets is recorded, true if everything is.
    pub whole_run: bool,
    /// Names of the kinds of packets, by number; empty for numbers without a name.
    pub kinds: Vec<String>,
    /// Where the program and its libraries were loaded.
    pub objects: Vec<Object>,
    /// Counts over the whole file.
    pub totals: Totals,
}

/// A file in the memory of the traced program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Of the file.
    pub path: String,
    /// Its lowest address in memory.
    pub start: u64,
    /// From there to the end of its last byte in memory.
    pub size: u64,
    /// To be added to an address of the file's symbols to get the address in memory.
    pub base: u64,
    /// Its GNU build identifier in hexadecimal digits; empty if it has none.
    pub build_id: String,
}

/// Counts over a whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Records, marks included.
    pub records: u64,
    /// Instructions, further rounds of `rep` not counted.
    pub instructions: u64,
    /// Reads and writes.
    pub accesses: u64,
    /// Packets that were begun.
    pub packets: u64,
}

impl Header {
    /// The name of a kind of packet: its own, or its number.
    pub fn kind_name(&self, kind: u8) -> String {
        match self.kinds.get(usize::from(kind)) {
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("kind {kind}"),
        }
    }

    /// The object that has this address.
    pub fn object_at(&self, address: u64) -> Option<&Object> {
        self.objects
            .iter()
            .find(|object| address.wrapping_sub(object.start) < object.size)
    }
}
