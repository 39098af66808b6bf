//! The far end of a link with references: `bpf/fairlead_resolve.bpf.c`.

use aya::maps::{Array, MapData};
use aya::programs::tc::TcAttachType;
use aya::{Ebpf, include_bytes_aligned};

use crate::content::{BLOCK_BYTES, ContentError, attach, load_sized, map, token};
use crate::kernel::LoadError;
use crate::trial::{Fate, run_at_tc};

static RESOLVE: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_resolve.o"));
/// Blocks of an element of the store.
const STORE_BLOCKS: u64 = 256;

/// What the far end did. Counts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ResolveCounts {
    /// Packets of this protocol that came.
    pub lists: u64,
    /// Of these, packets of references that were resolved.
    pub references: u64,
    /// Segments that these became.
    pub segments: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Blocks, or parts of blocks, that were kept.
    pub stored: u64,
    /// Packets that were damaged, or from a stranger.
    pub strange: u64,
    /// Lists that contradict themselves.
    pub invalid: u64,
    /// Packets that referred to what is not here. They were dropped, and the server's end was
    /// informed.
    pub unknown: u64,
    /// Segments whose block was replaced while it was copied. They were dropped.
    pub replaced: u64,
    /// Parts of blocks whose checksum was wrong. They were not kept.
    pub damaged: u64,
    /// Blocks that were not kept because another processor was at them.
    pub busy: u64,
    /// Segments for which the kernel had no memory, or its queue no room.
    pub failed: u64,
    is_ordered: u64,
}

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for ResolveCounts {}

/// The programs at the interface, for as long as this is there.
pub struct ResolveProgram {
    counts: Array<MapData, ResolveCounts>,
    ebpf: Ebpf,
}

impl core::fmt::Debug for ResolveProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ResolveProgram").finish_non_exhaustive()
    }
}

impl ResolveProgram {
    /// Attaches the programs to the interface that leads to the server. `bytes` is the size of the
    /// store, as at the server's end.
    ///
    /// # Errors
    /// See [`ContentError`].
    pub fn attach(interface: &str, secret: &[u8], bytes: u64) -> Result<Self, ContentError> {
        let blocks = (bytes / BLOCK_BYTES).clamp(8, 1 << 27).next_power_of_two();
        let elements = blocks.div_ceil(STORE_BLOCKS) as u32;
        let sizes = [
            ("fl_resolve_blocks", blocks as u32),
            ("fl_resolve_store", elements),
        ];
        let mut ebpf = load_sized(RESOLVE, interface, &sizes)?;
        let mut settings: Array<MapData, [u8; 8]> = map(&mut ebpf, "fl_resolve_settings")?;
        settings.set(0, token(secret), 0)?;
        let counts = map(&mut ebpf, "fl_resolve_counts")?;
        attach(
            &mut ebpf,
            "fairlead_resolve_out",
            interface,
            TcAttachType::Egress,
        )?;
        attach(
            &mut ebpf,
            "fairlead_resolve",
            interface,
            TcAttachType::Ingress,
        )?;
        Ok(Self { counts, ebpf })
    }

    /// Runs the program for what comes in on an Ethernet frame, without an interface: for tests.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_frame(&self, frame: &[u8], interface: u32) -> Result<Fate, LoadError> {
        let name = "fairlead_resolve";
        let program = self.ebpf.program(name).ok_or(LoadError::Missing(name))?;
        run_at_tc(program.try_into()?, frame, interface)
    }

    /// What was done since the start.
    pub fn counts(&self) -> ResolveCounts {
        self.counts.get(&0, 0).unwrap_or_default()
    }
}
