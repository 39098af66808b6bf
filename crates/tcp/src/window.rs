//! Windows whose two ends scale differently (RFC 7323, section 2).

/// A window field as the other leg must see it: shifted left for a positive `shift`, right for a
/// negative one. Saturates at 65,535; a window that is open is never closed by rounding.
#[inline]
pub fn rescale(window: u16, shift: i8) -> u16 {
    if shift >= 0 {
        let wide = u64::from(window) << shift.min(30);
        wide.min(u64::from(u16::MAX)) as u16
    } else {
        let narrow = u32::from(window) >> shift.unsigned_abs().min(31);
        if narrow == 0 && window != 0 {
            1
        } else {
            narrow as u16
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_upwards_and_keeps_an_open_window_open() {
        assert_eq!(rescale(100, 0), 100);
        assert_eq!(rescale(100, 3), 800);
        assert_eq!(rescale(60_000, 3), u16::MAX);
        assert_eq!(rescale(800, -3), 100);
        assert_eq!(rescale(7, -3), 1);
        assert_eq!(rescale(0, -3), 0);
        assert_eq!(rescale(0, 14), 0);
    }
}
