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
    /// Functions of a kernel that were executed, by address: they are in no file at hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<Symbol>,
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

/// A function in the memory of the traced machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// Of its first instruction.
    pub address: u64,
    /// To the next function, bytes.
    pub size: u64,
    /// Its name.
    pub name: String,
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

    /// The function of [`Header::symbols`] that has this address.
    pub fn symbol_at(&self, address: u64) -> Option<&Symbol> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        (address - symbol.address < symbol.size).then_some(symbol)
    }

    /// Addresses at which the kernel takes interrupts, in ascending order.
    pub fn interrupts(&self) -> Vec<u64> {
        /// Beginnings of names of such functions of Linux on x86.
        const NAMES: [&str; 3] = [
            "asm_common_interrupt",
            "asm_sysvec_",
            "asm_spurious_interrupt",
        ];
        let is_entry = |name: &str| NAMES.iter().any(|start| name.starts_with(start));
        let entries = self.symbols.iter().filter(|symbol| is_entry(&symbol.name));
        let mut addresses: Vec<u64> = entries.map(|symbol| symbol.address).collect();
        addresses.sort_unstable();
        addresses
    }

    /// The object that has this address.
    pub fn object_at(&self, address: u64) -> Option<&Object> {
        self.objects
            .iter()
            .find(|object| address.wrapping_sub(object.start) < object.size)
    }
}
