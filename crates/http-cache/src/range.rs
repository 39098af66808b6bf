//! Ranges (RFC 9110, section 14): one range of bytes. Several are answered with the whole.

use core::ops::Range;

/// What a `Range` field asks for, given the length of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// These bytes; not empty.
    Part(Range<u64>),
    /// Nothing of the body: 416.
    Unsatisfiable,
    /// No single range of bytes: the field is ignored.
    Whole,
}

/// Reads a `Range` field. `length` is that of the whole body.
pub fn parse_range(value: &[u8], length: u64) -> Asked {
    let Some((unit, set)) = split(value.trim_ascii(), b'=') else {
        return Asked::Whole;
    };
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return Asked::Whole;
    }
    let Some((first, last)) = split(set.trim_ascii(), b'-') else {
        return Asked::Whole;
    };
    if first.is_empty() {
        let Some(count) = number(last) else {
            return Asked::Whole;
        };
        return within(length.saturating_sub(count)..length);
    }
    let Some(first) = number(first) else {
        return Asked::Whole;
    };
    if last.is_empty() {
        return within(first..length);
    }
    match number(last) {
        Some(last) if last >= first => within(first..last.saturating_add(1).min(length)),
        _ => Asked::Whole,
    }
}

fn within(range: Range<u64>) -> Asked {
    if range.is_empty() {
        Asked::Unsatisfiable
    } else {
        Asked::Part(range)
    }
}

fn split(value: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = value.iter().position(|byte| *byte == mark)?;
    Some((&value[..at], &value[at + 1..]))
}

/// Digits and nothing else; what is larger is the largest.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_range_is_read() {
        for (value, wanted) in [
            ("bytes=0-1", Asked::Part(0..2)),
            ("BYTES=9-", Asked::Part(9..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=5-99999999999999999999999", Asked::Part(5..10)),
            ("bytes=10-", Asked::Unsatisfiable),
            ("bytes=99999999999999999999999-", Asked::Unsatisfiable),
            ("bytes=-0", Asked::Unsatisfiable),
            ("bytes=0-,0-", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("bytes=3-2", Asked::Whole),
            ("bytes=-", Asked::Whole),
            ("bytes=", Asked::Whole),
            ("bytes=+1-2", Asked::Whole),
            ("bytes=1-2x", Asked::Whole),
            ("bytes", Asked::Whole),
            ("lines=1-2", Asked::Whole),
            ("", Asked::Whole),
        ] {
            assert_eq!(parse_range(value.as_bytes(), 10), wanted, "{value}");
        }
        assert_eq!(parse_range(b"bytes=0-", 0), Asked::Unsatisfiable);
    }

    proptest! {
        #[test]
        fn a_part_is_within_the_body(
            value in "(bytes=)?[0-9,-]{0,24}",
            length in prop_oneof![0u64..20, any::<u64>()],
        ) {
            if let Asked::Part(range) = parse_range(value.as_bytes(), length) {
                prop_assert!(range.start < range.end && range.end <= length);
            }
        }
    }
}
