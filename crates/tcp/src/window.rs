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

/// As [`rescale`], but never more than the receiver offered: what is less than a unit of the other
/// leg's scale is no window. For pairs, whose scales nobody chose to go together; a sender at a
/// closed window probes it (RFC 9293, section 3.8.6.1).
#[inline]
pub fn rescale_within(window: u16, shift: i8) -> u16 {
    if shift >= 0 {
        rescale(window, shift)
    } else {
        (u32::from(window) >> shift.unsigned_abs().min(31)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both scales of 0 to 14, and fields around every power of two.
    #[test]
    fn within_never_promises_beyond_what_was_offered() {
        let fields = (0..=16).flat_map(|bit| [-1, 0, 1].map(|near| (1 << bit) + near));
        for window in fields.filter_map(|field: i32| u16::try_from(field).ok()) {
            for (own, other) in (0..15).flat_map(|own| (0..15).map(move |other| (own, other))) {
                let shown = rescale_within(window, own - other);
                let (offered, promised) = (u64::from(window) << own, u64::from(shown) << other);
                assert!(promised <= offered, "{window} {own} {other}");
                // And no less than it must be: the field is full, or one more would be too much.
                let more = (u64::from(shown) + 1) << other;
                assert!(
                    shown == u16::MAX || more > offered,
                    "{window} {own} {other}"
                );
            }
        }
    }

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
