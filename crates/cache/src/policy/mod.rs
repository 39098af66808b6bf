//! Who makes room for a newcomer. One policy a file; `registry.rs` knows the names of those of the
//! TCB cache, `memory/replacement.rs` those of memory caches.
//!
//! A policy sees the [`Lines`] and one [`Access`] at a time. It may keep a byte a line
//! ([`Lines::set_byte`]), anything about the whole cache in itself, move one line into another of
//! its sets, or refuse the newcomer.

mod access;
mod clock;
mod drrip;
mod enru;
mod fifo;
mod lru;
mod order;
mod plru;
mod random;
mod round_robin;
mod s3_fifo;
mod sieve;
mod spec;
mod state;
mod tide;
mod timestamp;

pub use access::AccessCount;
pub use clock::SecondChance;
pub use drrip::Drrip;
pub use enru::Enru;
pub use fifo::Fifo;
pub use lru::Lru;
pub(crate) use order::Order;
pub use plru::TreePlru;
pub use random::Random;
pub use round_robin::RoundRobin;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use spec::{NoMigrate, Spec};
pub use state::{STAMP_BITS_EXACT, StateBits};
pub(crate) use state::{counter_bits, number_bits, order_bits, rank_bits};
pub use tide::Tide;
pub use timestamp::Timestamp;

use crate::cache::{Cache, HitsByVectors};
use crate::geometry::Geometry;
use crate::lifetime::Lifetime;
use crate::lines::{Access, Lines, Spot};
use crate::place::{Places, Sets};
use crate::vector::{fits, on_vectors};

/// What can be set about policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// How long lines stay ON.
    pub lifetime: Lifetime,
    /// Bits of the stamps of `timestamp`, 1 to 31; 16 in the paper (section 4.4).
    pub stamp_bits: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            lifetime: Lifetime::default(),
            stamp_bits: 16,
        }
    }
}

/// What a policy is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The shape of the cache.
    pub geometry: Geometry,
    /// What can be set.
    pub parameters: Parameters,
    /// Where its chance comes from.
    pub seed: u64,
}

/// Where a newcomer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Into this line, whatever it holds.
    Replace(Spot),
    /// Into `from`, whose line moves to `to`, whatever that holds; `to` must be in a set of the
    /// moving line's [`Lines::homes`].
    Relocate {
        /// The line that moves.
        from: Spot,
        /// Where it moves to.
        to: Spot,
    },
    /// Nowhere.
    Bypass,
}

/// Accesses in blocks, their places read.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, const B: usize> {
    /// Dense numbers.
    pub ids: &'a [u32],
    /// The tick of each.
    pub ticks: &'a [u32],
    /// The hint of each; empty when none is known.
    pub hints: &'a [u8],
    /// The first sets of each.
    pub first: &'a [Sets<B>],
    /// The second sets of each; empty for policies that do not move lines.
    pub second: &'a [Sets<B>],
    /// The places of all numbers, of which those were read.
    pub places: &'a Places,
}

impl<const B: usize> Block<'_, B> {
    /// One access, as policies see it.
    #[inline(always)]
    pub(crate) fn access(&self, at: usize) -> Access<B> {
        Access {
            first: self.first[at],
            second: self.second.get(at).copied().unwrap_or([0; B]),
            hint: self.hints.get(at).copied().unwrap_or(0),
            finger: self.ids[at],
        }
    }
}

/// A replacement policy for `B` banks of `W` ways; where `W` is 0, of [`Lines::ways`].
pub trait Policy<const B: usize, const W: usize>: Send + Sized + 'static {
    /// Lines may be moved: look-ups also see the second sets, and [`Lines::homes`] are kept.
    const MOVES: bool = false;

    /// What it keeps in hardware, beside tags and payload.
    fn state_bits(geometry: &Geometry, parameters: &Parameters) -> StateBits;

    /// With nothing seen yet.
    fn new(setup: &Setup) -> Self;

    /// A line was hit; its stamp is new already.
    #[inline]
    fn on_hit(&mut self, _lines: &mut Lines<B, W>, _spot: Spot, _access: &Access<B>) {}

    /// Where a newcomer goes. An empty line among its own sets should be taken before anything is
    /// evicted.
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice;

    /// A line is about to be given up; `finger` is its tag's.
    #[inline]
    fn on_evict(&mut self, _lines: &mut Lines<B, W>, _spot: Spot, _finger: u32) {}

    /// A line has moved, with its byte.
    #[inline]
    fn on_move(&mut self, _lines: &mut Lines<B, W>, _from: Spot, _to: Spot) {}

    /// A newcomer has its line.
    #[inline]
    fn on_fill(&mut self, _lines: &mut Lines<B, W>, _spot: Spot, _access: &Access<B>) {}

    /// A line is about to be emptied because its connection is gone.
    #[inline]
    fn on_remove(&mut self, _lines: &mut Lines<B, W>, _spot: Spot) {}

    /// Stamps were replaced by `renumbered(stamp)`, which keeps their order: for policies that
    /// remember stamps.
    #[inline]
    fn on_compress(&mut self, _renumbered: &dyn Fn(i32) -> i32) {}

    /// A block of accesses. A policy that has a faster way than one after the other puts it here;
    /// the results must be the same.
    #[inline]
    fn run(cache: &mut Cache<u32, Self, B, W>, block: &Block<'_, B>) {
        if fits(B, W) {
            on_vectors(HitsByVectors { cache, block });
        } else {
            cache.run_plainly(block);
        }
    }
}

/// The first empty line of a newcomer's sets.
#[inline]
fn empty<const B: usize, const W: usize>(lines: &Lines<B, W>, access: &Access<B>) -> Option<Spot> {
    let oldest = lines.oldest_of(&access.first);
    lines.is_empty(oldest).then_some(oldest)
}
