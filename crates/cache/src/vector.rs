//! All candidate lines of an access in vectors of eight lanes, without branches.
//!
//! The kernels are written once, over [`Simd`]; [`on_vectors`] compiles them for AVX2 and for what
//! every processor of the architecture has, and picks when it runs. Sets are read and written
//! whole: a store of one lane followed by a load of four would have to wait for the store to reach
//! the cache.

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, i32x4, i32x8, mask32x8, u32x4};

use crate::place::Sets;

/// Lanes of half a vector: what a set is read in.
pub(crate) const QUAD: usize = 4;
/// Vectors of the largest number of candidates that kernels are for.
const PARTS: usize = 2;
const LANES: usize = 2 * QUAD;
/// The largest number of candidate lines that kernels are for.
pub(crate) const CANDIDATES_MAX: usize = PARTS * LANES;

/// Something to do with vectors.
pub(crate) trait Kernel {
    /// Must be `#[inline(always)]`, with all that it calls: only then is it compiled for `simd`.
    fn run<S: Simd>(self, simd: S);
}

/// Runs a kernel with the best vectors of this processor that it is compiled for. AVX-512 brings
/// these kernels nothing over AVX2.
pub(crate) fn on_vectors(kernel: impl Kernel) {
    let level = Level::new();
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = level.as_avx2() {
        return simd.vectorize(
            #[inline(always)]
            || kernel.run(simd),
        );
    }
    #[cfg(target_arch = "x86_64")]
    kernel.run(level.as_sse2().expect("it belongs to the architecture"));
    #[cfg(not(target_arch = "x86_64"))]
    fearless_simd::dispatch!(level, simd => kernel.run(simd))
}

/// As `on_vectors`, for kernels to which AVX-512 brings something.
pub(crate) fn on_widest_vectors(kernel: impl Kernel) {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = Level::new().as_avx512() {
        return simd.vectorize(
            #[inline(always)]
            || kernel.run(simd),
        );
    }
    on_vectors(kernel);
}

/// Whether kernels are for this shape: whole quads, and few enough of them, and known (not 0).
pub(crate) const fn fits(banks: usize, ways: usize) -> bool {
    ways > 0 && ways.is_multiple_of(QUAD) && banks * ways <= CANDIDATES_MAX
}

/// Ones in the first `n` lanes.
pub(crate) const fn lane_bits(lanes: usize) -> u32 {
    (1 << lanes) - 1
}

/// One value for each candidate line, bank after bank; lanes past the last hold padding.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<S: Simd, const B: usize, const W: usize>([i32x8<S>; PARTS]);

/// One bit for each candidate line.
#[derive(Clone, Copy)]
pub(crate) struct Marks<S: Simd, const B: usize, const W: usize>([mask32x8<S>; PARTS]);

/// Where a candidate quad stands among those of all lines.
#[inline(always)]
fn place<const W: usize>(sets: &[u32], quad: usize) -> usize {
    sets[quad * QUAD / W] as usize * (W / QUAD) + quad % (W / QUAD)
}

/// Lines in quads.
#[inline(always)]
pub(crate) fn quads<T>(lines: &[T]) -> &[[T; QUAD]] {
    lines.as_chunks().0
}

/// As `quads`, to write to.
#[inline(always)]
pub(crate) fn quads_mut<T>(lines: &mut [T]) -> &mut [[T; QUAD]] {
    lines.as_chunks_mut().0
}

impl<S: Simd, const B: usize, const W: usize> Lanes<S, B, W> {
    /// Whether there is anything in the second vector.
    const TWO: bool = B * W > LANES;

    /// All lanes the same.
    #[inline(always)]
    pub(crate) fn splat(simd: S, value: i32) -> Self {
        Self([i32x8::splat(simd, value); PARTS])
    }

    /// Lanes of quads, by the number of the quad; those past the last are filled with `padding`.
    #[inline(always)]
    fn of_quads(simd: S, padding: i32, quad: impl Fn(usize) -> i32x4<S>) -> Self {
        let padding = i32x4::splat(simd, padding);
        let whole = padding.combine(padding);
        if B * W == QUAD {
            return Self([quad(0).combine(padding), whole]);
        }
        let low = quad(0).combine(quad(1));
        if Self::TWO {
            Self([low, quad(2).combine(quad(3))])
        } else {
            Self([low, whole])
        }
    }

    /// The number of each lane.
    #[inline(always)]
    pub(crate) fn numbers(simd: S) -> Self {
        Self::of_quads(
            simd,
            0,
            #[inline(always)]
            |quad| i32x4::simd_from(simd, core::array::from_fn(|at| (quad * QUAD + at) as i32)),
        )
    }

    /// The number of each lane's bank; padding is in none.
    #[inline(always)]
    pub(crate) fn by_bank(simd: S) -> Self {
        Self::of_quads(
            simd,
            -1,
            #[inline(always)]
            |quad| i32x4::splat(simd, (quad * QUAD / W) as i32),
        )
    }

    /// Of each lane, the word of its set.
    #[inline(always)]
    pub(crate) fn by_set(simd: S, words: &[i32], sets: &Sets<B>) -> Self {
        Self::of_quads(
            simd,
            0,
            #[inline(always)]
            |quad| i32x4::splat(simd, words[sets[quad * QUAD / W] as usize]),
        )
    }

    /// The stamps of sets; padding is later than all.
    #[inline(always)]
    pub(crate) fn stamps(simd: S, quads: &[[i32; QUAD]], sets: &Sets<B>) -> Self {
        Self::of_quads(
            simd,
            i32::MAX,
            #[inline(always)]
            |quad| i32x4::simd_from(simd, quads[place::<W>(sets, quad)]),
        )
    }

    /// The tags of sets; padding is nobody's.
    #[inline(always)]
    pub(crate) fn tags(simd: S, quads: &[[u32; QUAD]], sets: &Sets<B>) -> Self {
        Self::of_quads(
            simd,
            -1,
            #[inline(always)]
            |quad| u32x4::simd_from(simd, quads[place::<W>(sets, quad)]).bitcast(),
        )
    }

    #[inline(always)]
    fn quad(&self, quad: usize) -> i32x4<S> {
        let (low, high) = self.0[quad / 2].split();
        if quad.is_multiple_of(2) { low } else { high }
    }

    /// Writes the stamps of sets.
    #[inline(always)]
    pub(crate) fn store_stamps(&self, quads: &mut [[i32; QUAD]], sets: &Sets<B>) {
        for quad in 0..B * W / QUAD {
            quads[place::<W>(sets, quad)] = self.quad(quad).into();
        }
    }

    /// Writes the tags of sets.
    #[inline(always)]
    pub(crate) fn store_tags(&self, quads: &mut [[u32; QUAD]], sets: &Sets<B>) {
        for quad in 0..B * W / QUAD {
            quads[place::<W>(sets, quad)] = self.quad(quad).bitcast::<u32x4<S>>().into();
        }
    }

    #[inline(always)]
    fn marks(
        &self,
        other: &Self,
        of: impl Fn(i32x8<S>, i32x8<S>) -> mask32x8<S>,
    ) -> Marks<S, B, W> {
        let low = of(self.0[0], other.0[0]);
        let high = if Self::TWO {
            of(self.0[1], other.0[1])
        } else {
            low
        };
        Marks([low, high])
    }

    /// Where both are equal.
    #[inline(always)]
    pub(crate) fn equals(&self, other: &Self) -> Marks<S, B, W> {
        self.marks(
            other,
            #[inline(always)]
            |a, b| a.simd_eq(b),
        )
    }

    /// Where this one is less.
    #[inline(always)]
    pub(crate) fn less(&self, other: &Self) -> Marks<S, B, W> {
        self.marks(
            other,
            #[inline(always)]
            |a, b| a.simd_lt(b),
        )
    }

    /// Each lane changed.
    #[inline(always)]
    pub(crate) fn map(self, of: impl Fn(i32x8<S>) -> i32x8<S>) -> Self {
        let low = of(self.0[0]);
        Self([low, if Self::TWO { of(self.0[1]) } else { low }])
    }

    /// The least of all lanes.
    #[inline(always)]
    pub(crate) fn least(&self) -> i32 {
        let least = if Self::TWO {
            self.0[0].min(self.0[1])
        } else {
            self.0[0]
        };
        least.reduce_min()
    }
}

impl<S: Simd, const B: usize, const W: usize> Marks<S, B, W> {
    /// One lane of `yes` where there is a mark, of `no` where there is none.
    #[inline(always)]
    pub(crate) fn pick(&self, yes: &Lanes<S, B, W>, no: &Lanes<S, B, W>) -> Lanes<S, B, W> {
        let low = self.0[0].select(yes.0[0], no.0[0]);
        let high = if Lanes::<S, B, W>::TWO {
            self.0[1].select(yes.0[1], no.0[1])
        } else {
            low
        };
        Lanes([low, high])
    }

    /// Marks that are not among the others.
    #[inline(always)]
    pub(crate) fn without(self, others: &Self) -> Self {
        let [a, b] = self.0;
        Self([a & !others.0[0], b & !others.0[1]])
    }

    /// The marks as bits, the first lane's lowest; of padding too.
    #[inline(always)]
    pub(crate) fn bits(&self) -> u32 {
        let low = self.0[0].to_bitmask() as u32;
        if Lanes::<S, B, W>::TWO {
            low | (self.0[1].to_bitmask() as u32) << LANES
        } else {
            low
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lane;

    impl Kernel for Lane {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            check::<S, 2, 4>(simd);
            check::<S, 1, 4>(simd);
            check::<S, 1, 8>(simd);
            check::<S, 4, 4>(simd);
            check::<S, 2, 8>(simd);
            check::<S, 1, 16>(simd);
        }
    }

    #[inline(always)]
    fn check<S: Simd, const B: usize, const W: usize>(simd: S) {
        assert!(fits(B, W));
        let lanes = B * W;
        let mut stamps: Vec<i32> = (0..2 * B as i32)
            .flat_map(|set| (0..W as i32).map(move |way| 100 * set + way + 3))
            .collect();
        let mut tags = vec![u32::MAX; 2 * B * W];
        let sets: Sets<B> = core::array::from_fn(|bank| 2 * bank as u32 + 1);
        tags[2 * W - 1] = 7;
        let read = Lanes::<S, B, W>::stamps(simd, quads(&stamps), &sets);
        assert_eq!(read.least(), 103);
        let wanted = Lanes::splat(simd, 7);
        let found = Lanes::tags(simd, quads(&tags), &sets).equals(&wanted);
        assert_eq!(found.bits(), 1 << (W - 1));
        found
            .pick(&wanted, &read)
            .store_stamps(quads_mut(&mut stamps), &sets);
        assert_eq!((stamps[2 * W - 1], stamps[W], stamps[0]), (7, 103, 3));
        let read = Lanes::<S, B, W>::stamps(simd, quads(&stamps), &sets);
        assert_eq!(read.least(), 7);
        let older = read.less(&Lanes::splat(simd, 104)).bits();
        assert_eq!(older, 1 | 1 << (W - 1));
        let numbers = Lanes::<S, B, W>::numbers(simd);
        for lane in 0..lanes {
            let at = numbers.equals(&Lanes::splat(simd, lane as i32)).bits();
            assert_eq!(at & lane_bits(lanes), 1 << lane);
        }
        let words: Vec<i32> = (0..2 * B as i32).collect();
        let by_set = Lanes::<S, B, W>::by_set(simd, &words, &sets);
        let last = by_set.equals(&Lanes::splat(simd, 2 * B as i32 - 1)).bits();
        assert_eq!(last, ((1 << W) - 1) << (lanes - W));
        let doubled = numbers.map(|lane| lane + lane);
        doubled.store_tags(quads_mut(&mut tags), &sets);
        assert_eq!(tags[W], 0);
        assert_eq!(tags[2 * B * W - 1] as usize, 2 * (lanes - 1));
    }

    #[test]
    fn lanes_are_what_they_are_one_by_one() {
        on_vectors(Lane);
        #[cfg(target_arch = "x86_64")]
        Lane.run(Level::baseline().as_sse2().unwrap());
    }
}
