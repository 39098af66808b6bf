//! What a program's file says: instruction set, segments, symbols.

use std::fs;
use std::path::{Path, PathBuf};

use object::elf::{ET_DYN, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Architecture, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::error::LabError;

/// Files that are read, bytes at most: they are read as a whole.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A program or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectFile {
    pub(super) path: PathBuf,
    /// As QEMU names it.
    pub(super) isa: &'static str,
    /// It may be loaded anywhere.
    pub(super) is_movable: bool,
    /// Lowest and highest address of what is loaded.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Lowest address of what is executed.
    pub(super) text: u64,
    pub(super) build_id: String,
    bytes: Vec<u8>,
}

/// A symbol: its address and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) address: u64,
    pub(super) size: u64,
}

impl ObjectFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no ELF file, or is of an instruction set that QEMU is not asked for.
    pub(super) fn read(path: &Path) -> Result<Self, LabError> {
        let failed = |error| LabError::file(path, error);
        let metadata = fs::metadata(path).map_err(failed)?;
        let refuse = |why: &str| LabError::Protocol(format!("{}: {why}", path.display()));
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(refuse("no program: not a file of at most 1 GiB"));
        }
        let bytes = fs::read(path).map_err(failed)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Err(refuse(
                "no ELF program; of a script, trace its interpreter: -- /bin/sh SCRIPT",
            ));
        }
        let damaged = |error: object::Error| refuse(&format!("damaged ELF file: {error}"));
        let file = object::File::parse(&bytes[..]).map_err(damaged)?;
        let isa = isa_of(&file).ok_or_else(|| {
            refuse(
                "an instruction set that is not traced (x86_64, i386, aarch64, arm, mips, riscv)",
            )
        })?;
        let segments = match &file {
            object::File::Elf64(elf) => loaded(elf.elf_header(), elf.endian(), elf.data()),
            object::File::Elf32(elf) => loaded(elf.elf_header(), elf.endian(), elf.data()),
            _ => None,
        };
        let Some(Segments {
            from,
            to,
            text,
            is_movable,
        }) = segments
        else {
            return Err(refuse("it has no segments to execute"));
        };
        let build_id = file.build_id().ok().flatten().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            path: path.to_owned(),
            isa,
            is_movable,
            from,
            to,
            text,
            build_id,
            bytes,
        })
    }

    fn parsed(&self) -> Option<object::File<'_>> {
        object::File::parse(&self.bytes[..]).ok()
    }

    /// The symbol of this name.
    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        let file = self.parsed()?;
        let found = file
            .symbols()
            .chain(file.dynamic_symbols())
            .find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?;
        Some(Symbol {
            address: found.address(),
            size: found.size(),
        })
    }

    /// What compilers and linkers say of themselves (`.comment`), without what is said twice.
    pub(super) fn tools(&self) -> Vec<String> {
        let file = self.parsed();
        let section = file
            .as_ref()
            .and_then(|file| file.section_by_name(".comment"));
        let bytes = section
            .and_then(|section| section.data().ok())
            .unwrap_or_default();
        let mut tools: Vec<String> = bytes
            .split(|byte| *byte == 0)
            .filter(|text| !text.is_empty())
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect();
        tools.sort();
        tools.dedup();
        tools
    }

    /// The text that a symbol names.
    pub(super) fn text_of(&self, name: &str) -> Option<String> {
        let Symbol { address, size } = self.symbol(name)?;
        let file = self.parsed()?;
        let section = file
            .sections()
            .find(|section| address.wrapping_sub(section.address()) < section.size())?;
        let bytes = section.data_range(address, size).ok().flatten()?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

struct Segments {
    from: u64,
    to: u64,
    text: u64,
    is_movable: bool,
}

fn loaded<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    bytes: &[u8],
) -> Option<Segments> {
    const EXECUTE: u32 = 1;
    let (mut from, mut to, mut text) = (u64::MAX, 0, u64::MAX);
    for segment in header.program_headers(endian, bytes).ok()? {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        let address: u64 = segment.p_vaddr(endian).into();
        let size: u64 = segment.p_memsz(endian).into();
        from = from.min(address);
        to = to.max(address.saturating_add(size));
        if segment.p_flags(endian) & EXECUTE != 0 {
            text = text.min(address);
        }
    }
    (text != u64::MAX).then_some(Segments {
        from,
        to,
        text,
        is_movable: header.e_type(endian) == ET_DYN,
    })
}

fn isa_of(file: &object::File<'_>) -> Option<&'static str> {
    let is_little = file.is_little_endian();
    Some(match (file.architecture(), is_little) {
        (Architecture::X86_64, _) => "x86_64",
        (Architecture::I386, _) => "i386",
        (Architecture::Aarch64, true) => "aarch64",
        (Architecture::Arm, true) => "arm",
        (Architecture::Mips, false) => "mips",
        (Architecture::Mips, true) => "mipsel",
        (Architecture::Mips64, false) => "mips64",
        (Architecture::Mips64, true) => "mips64el",
        (Architecture::Riscv64, _) => "riscv64",
        (Architecture::Riscv32, _) => "riscv32",
        _ => return None,
    })
}
