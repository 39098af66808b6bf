//! TCP sequence numbers: 32 bits that wrap (RFC 9293, section 3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number. All arithmetic is modulo 2³²; order is meaningful only between numbers
/// within 2³¹ of each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Signed distance from `other` to `self` (positive when `self` is later).
    #[inline]
    pub fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// True when `self` is strictly before `other`.
    #[inline]
    pub fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// True when `self` is strictly after `other`.
    #[inline]
    pub fn after(self, other: Self) -> bool {
        self.since(other) > 0
    }

    /// The later of the two.
    #[inline]
    pub fn max(self, other: Self) -> Self {
        if self.after(other) { self } else { other }
    }

    /// The earlier of the two.
    #[inline]
    pub fn min(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;
    #[inline]
    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for SeqNumber {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        self.0 = self.0.wrapping_add(count);
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;
    #[inline]
    fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let late = SeqNumber(u32::MAX);
        let wrapped = late + 5;
        assert_eq!(wrapped, SeqNumber(4));
        assert!(wrapped.after(late));
        assert!(late.before(wrapped));
        assert_eq!(wrapped.since(late), 5);
        assert_eq!(late.since(wrapped), -5);
        assert_eq!(late.max(wrapped), wrapped);
        assert_eq!(late.min(wrapped), late);
        assert_eq!(wrapped - 5, late);
    }
}
