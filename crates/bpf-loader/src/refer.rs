//! The server's end of a link with references: `bpf/fairlead_refer.bpf.c`.

use aya::maps::{Array, MapData};
use aya::programs::tc::TcAttachType;
use aya::{Ebpf, include_bytes_aligned};

use crate::content::{BLOCK_BYTES, ContentError, attach, load_sized, map, pieces_of, token};

static REFER: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_refer.o"));
/// Places of a set.
const WAYS: u64 = 32;

/// `struct fl_refer_settings`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawSettings {
    token: [u8; 8],
    epoch: u32,
    sets: u32,
    cache_bytes: u64,
}

const _: () = assert!(size_of::<RawSettings>() == 24);

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for RawSettings {}

/// What the server's end did. Bytes and counts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReferCounts {
    /// TCP packets with data that were looked at. A packet may be one that is cut into segments
    /// later.
    pub packets: u64,
    /// Bytes of files in these.
    pub content_bytes: u64,
    /// Of these, bytes that went as references.
    pub referred_bytes: u64,
    /// Packets that went as references.
    pub references: u64,
    /// Bytes of all packets of references and inserts, with their headers.
    pub list_bytes: u64,
    /// Blocks, or parts of blocks, that the other end was asked to keep.
    pub inserts: u64,
    /// Blocks that lost their place to others.
    pub replaced: u64,
    /// Parts of blocks that the other end has kept.
    pub held: u64,
    /// Blocks that the other end did not know when they were referred to.
    pub unknown: u64,
    /// Bytes of pages that may change without a new revision.
    pub dirty_bytes: u64,
    /// Packets of this protocol that were damaged, or from a stranger.
    pub strange: u64,
    /// Blocks that were not looked up because another processor was at it.
    pub busy: u64,
    /// Packets that the kernel could not change, and that were dropped.
    pub failed: u64,
    unheard: u64,
    tried: u64,
    generation: u64,
}

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for ReferCounts {}

/// The programs at the interface, for as long as this is there.
pub struct ReferProgram {
    counts: Array<MapData, ReferCounts>,
    _ebpf: Ebpf,
}

impl core::fmt::Debug for ReferProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReferProgram").finish_non_exhaustive()
    }
}

impl ReferProgram {
    /// Attaches the programs to an interface of this network namespace. Packets from one of `ports`
    /// are looked at, from any where there are none. `bytes` is the size of the other end's store,
    /// which is rounded down to a power of two; `epoch` a number that no other run has.
    ///
    /// # Errors
    /// See [`ContentError`].
    pub fn attach(
        interface: &str,
        ports: &[u16],
        secret: &[u8],
        bytes: u64,
        epoch: u32,
    ) -> Result<Self, ContentError> {
        let sets = (bytes / (WAYS * BLOCK_BYTES)).max(1).ilog2();
        let sets = 1u32 << sets.min(24);
        let mut ebpf = load_sized(REFER, interface, &[("fl_refer_sets", sets)])?;
        pieces_of(&mut ebpf, ports)?;
        let mut settings: Array<MapData, RawSettings> = map(&mut ebpf, "fl_refer_settings")?;
        let raw = RawSettings {
            token: token(secret),
            epoch: epoch.to_be(),
            sets,
            cache_bytes: u64::from(sets) * WAYS * BLOCK_BYTES,
        };
        settings.set(0, raw, 0)?;
        let counts = map(&mut ebpf, "fl_refer_counts")?;
        attach(
            &mut ebpf,
            "fairlead_refer_in",
            interface,
            TcAttachType::Ingress,
        )?;
        attach(&mut ebpf, "fairlead_refer", interface, TcAttachType::Egress)?;
        Ok(Self {
            counts,
            _ebpf: ebpf,
        })
    }

    /// What was done since the start.
    pub fn counts(&self) -> ReferCounts {
        self.counts.get(&0, 0).unwrap_or_default()
    }
}
