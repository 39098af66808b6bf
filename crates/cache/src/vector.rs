//! Four lanes at once, for scans of sets without branches.
//!
//! A set is read and written whole: a store of one lane followed by a load of four would have to
//! wait for the store to reach the cache.

use wide::i32x4;

/// Lanes of a vector.
pub(crate) const LANES: usize = 4;
/// Vectors of the widest set.
const PARTS_MAX: usize = crate::geometry::WAYS_MAX / LANES;

/// One set of up to 16 ways; only the first `W / 4` vectors are used.
#[derive(Clone, Copy)]
pub(crate) struct Row([i32x4; PARTS_MAX]);

impl Row {
    /// All lanes of all ways the same.
    #[inline(always)]
    pub(crate) fn splat(value: i32) -> Self {
        Self([i32x4::splat(value); PARTS_MAX])
    }

    /// The ways of a set; `W` is 4, 8 or 16.
    #[inline(always)]
    pub(crate) fn load<const W: usize>(row: &[i32; W]) -> Self {
        let mut parts = [i32x4::splat(0); PARTS_MAX];
        let (chunks, _) = row.as_chunks::<LANES>();
        for (part, chunk) in parts.iter_mut().zip(chunks) {
            *part = i32x4::new(*chunk);
        }
        Self(parts)
    }

    /// As `load`, of tags.
    #[inline(always)]
    pub(crate) fn load_tags<const W: usize>(row: &[u32; W]) -> Self {
        Self::load(&row.map(|tag| tag as i32))
    }

    /// Writes the ways of a set.
    #[inline(always)]
    pub(crate) fn store<const W: usize>(&self, row: &mut [i32; W]) {
        let (chunks, _) = row.as_chunks_mut::<LANES>();
        for (part, chunk) in self.0.iter().zip(chunks) {
            *chunk = part.to_array();
        }
    }

    /// As `store`, of tags.
    #[inline(always)]
    pub(crate) fn store_tags<const W: usize>(&self, row: &mut [u32; W]) {
        let mut words = [0; W];
        self.store(&mut words);
        *row = words.map(|word| word as u32);
    }

    #[inline(always)]
    fn each<const W: usize>(mut self, other: &Self, of: impl Fn(i32x4, i32x4) -> i32x4) -> Self {
        for (part, other) in self.0.iter_mut().zip(&other.0).take(W / LANES) {
            *part = of(*part, *other);
        }
        self
    }

    /// All ones where both are equal.
    #[inline(always)]
    pub(crate) fn equals<const W: usize>(self, other: &Self) -> Self {
        self.each::<W>(other, |a, b| a.simd_eq(b))
    }

    /// All ones where this one is less.
    #[inline(always)]
    pub(crate) fn less<const W: usize>(self, other: &Self) -> Self {
        self.each::<W>(other, |a, b| a.simd_lt(b))
    }

    /// This one where the mask has zeros, zero where it has ones.
    #[inline(always)]
    pub(crate) fn without<const W: usize>(self, mask: &Self) -> Self {
        self.each::<W>(mask, |a, mask| a & !mask)
    }

    /// This one where the mask has ones, zero where it has zeros.
    #[inline(always)]
    pub(crate) fn only<const W: usize>(self, mask: &Self) -> Self {
        self.each::<W>(mask, |a, mask| a & mask)
    }

    /// Bits of both.
    #[inline(always)]
    pub(crate) fn or<const W: usize>(self, other: &Self) -> Self {
        self.each::<W>(other, |a, b| a | b)
    }

    /// The sum.
    #[inline(always)]
    pub(crate) fn plus<const W: usize>(self, other: &Self) -> Self {
        self.each::<W>(other, |a, b| a + b)
    }

    /// The lesser of both.
    #[inline(always)]
    pub(crate) fn least<const W: usize>(self, other: &Self) -> Self {
        self.each::<W>(other, |a, b| {
            let less = a.simd_lt(b);
            (a & less) | (b & !less)
        })
    }

    /// `with` where the mask has ones, this one where it has zeros.
    #[inline(always)]
    pub(crate) fn replaced<const W: usize>(self, mask: &Self, with: &Self) -> Self {
        self.without::<W>(mask).or::<W>(&with.only::<W>(mask))
    }

    /// The least of all lanes.
    #[inline(always)]
    pub(crate) fn minimum<const W: usize>(&self) -> i32 {
        let mut parts = self.0;
        for at in 1..W / LANES {
            let less = parts[at].simd_lt(parts[0]);
            parts[0] = (parts[at] & less) | (parts[0] & !less);
        }
        let [a, b, c, d] = parts[0].to_array();
        a.min(b).min(c.min(d))
    }

    /// All lanes ORed: of a row with one lane that is not zero, that lane.
    #[inline(always)]
    pub(crate) fn joined<const W: usize>(&self) -> i32 {
        let mut part = self.0[0];
        for other in &self.0[1..W / LANES] {
            part |= *other;
        }
        let [a, b, c, d] = part.to_array();
        a | b | c | d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_what_they_are_one_by_one() {
        let a: [i32; 8] = [3, -1, i32::MAX, i32::MIN, 7, 0, 2, 5];
        let b: [i32; 8] = [3, 4, 0, 1, -7, 0, 9, 6];
        let (left, right) = (Row::load(&a), Row::load(&b));
        let lanes = |row: Row| {
            let mut out = [0; 8];
            row.store(&mut out);
            out
        };
        let one_by_one =
            |of: fn(i32, i32) -> i32| -> [i32; 8] { core::array::from_fn(|at| of(a[at], b[at])) };
        assert_eq!(lanes(left.least::<8>(&right)), one_by_one(i32::min));
        let less = left.less::<8>(&right);
        assert_eq!(lanes(less), one_by_one(|a, b| -i32::from(a < b)));
        let equal = left.equals::<8>(&right);
        assert_eq!(lanes(equal), one_by_one(|a, b| -i32::from(a == b)));
        let picked = left.replaced::<8>(&equal, &Row::splat(9));
        assert_eq!(lanes(picked), one_by_one(|a, b| if a == b { 9 } else { a }));
        assert_eq!(left.minimum::<8>(), i32::MIN);
        assert_eq!(right.minimum::<8>(), -7);
        assert_eq!(left.only::<8>(&equal).joined::<8>(), 3);
        assert_eq!(
            lanes(right.plus::<8>(&Row::splat(1))),
            b.map(|lane| lane + 1)
        );
        let mut tags = [0u32; 8];
        Row::load_tags(&[u32::MAX; 8]).store_tags(&mut tags);
        assert_eq!(tags, [u32::MAX; 8]);
    }
}
