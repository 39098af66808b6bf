//! Dates of HTTP (RFC 9110, section 5.6.7): three forms are read, the first is written.
//!
//! Names may be in any case; everything else is exact, so that a date which another cache would
//! not accept is not accepted here either.

/// Seconds since 1970; what a date before it is read as.
const EPOCH: u64 = 0;
const DAY_SECONDS: u64 = 86_400;
/// A year of two digits that would lie further ahead is in the century before.
const AHEAD_YEARS: u64 = 50;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const LONG_DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Reads a date as seconds since 1970; `now` (the same unit) decides the century of a year of two
/// digits. `None` for everything that is no date.
pub fn parse_date(text: &[u8], now: u64) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    match text.find(',') {
        Some(3) => fixed(text),
        Some(_) => rfc850(text, now),
        None => asctime(text),
    }
}

/// Writes a date in the form of `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn write_date(out: &mut Vec<u8>, seconds: u64) {
    let days = seconds / DAY_SECONDS;
    let (year, month, day) = civil(days);
    let rest = seconds % DAY_SECONDS;
    // 1970-01-01 was a Thursday.
    let weekday = DAYS[((days + 3) % 7) as usize];
    let month = MONTHS[month as usize - 1];
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    let text =
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT");
    out.extend_from_slice(text.as_bytes());
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn fixed(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 29 || !is_name(&text[..3], &DAYS) || &bytes[3..5] != b", " {
        return None;
    }
    let spaced = bytes[7] == b' ' && bytes[11] == b' ' && bytes[16] == b' ';
    if !spaced || !is_gmt(text.get(25..)?) {
        return None;
    }
    let month = month(text.get(8..11)?)?;
    moment(
        digits(text.get(12..16)?)?,
        month,
        digits(text.get(5..7)?)?,
        text.get(17..25)?,
    )
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`
fn rfc850(text: &str, now: u64) -> Option<u64> {
    let (day_name, rest) = text.split_once(", ")?;
    let bytes = rest.as_bytes();
    if bytes.len() != 22 || !rest.is_ascii() || !is_name(day_name, &LONG_DAYS) {
        return None;
    }
    if bytes[2] != b'-' || bytes[6] != b'-' || bytes[9] != b' ' || !is_gmt(&rest[18..]) {
        return None;
    }
    let month = month(&rest[3..6])?;
    let short = digits(&rest[7..9])?;
    let (this_year, ..) = civil(now / DAY_SECONDS);
    let mut year = this_year - this_year % 100 + short;
    if year > this_year + AHEAD_YEARS {
        year -= 100;
    } else if year + AHEAD_YEARS < this_year {
        year += 100;
    }
    moment(year, month, digits(&rest[..2])?, &rest[10..18])
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 24 || !text.is_ascii() || !is_name(&text[..3], &DAYS) {
        return None;
    }
    if [3, 7, 10, 19].iter().any(|at| bytes[*at] != b' ') {
        return None;
    }
    let day = text[8..10].strip_prefix(' ').unwrap_or(&text[8..10]);
    let month = month(&text[4..7])?;
    moment(digits(&text[20..])?, month, digits(day)?, &text[11..19])
}

fn is_gmt(rest: &str) -> bool {
    rest.eq_ignore_ascii_case(" GMT")
}

fn is_name(text: &str, names: &[&str]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(text))
}

fn month(text: &str) -> Option<u64> {
    let at = MONTHS
        .iter()
        .position(|name| name.eq_ignore_ascii_case(text))?;
    Some(at as u64 + 1)
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Seconds since 1970 of a date and a time of the form `08:49:37`. A leap second is the last one.
fn moment(year: u64, month: u64, day: u64, time: &str) -> Option<u64> {
    let bytes = time.as_bytes();
    if bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let hour = digits(time.get(..2)?)?;
    let minute = digits(time.get(3..5)?)?;
    let second = digits(time.get(6..)?)?;
    if hour > 23 || minute > 59 || second > 60 || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    if year < 1970 {
        return Some(EPOCH);
    }
    let time = hour * 3_600 + minute * 60 + second.min(59);
    Some(days_before(year, month, day) * DAY_SECONDS + time)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a later date.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400 - 477;
    let months: u64 = (1..month).map(|month| days_of(year, month)).sum();
    (year - 1970) * 365 + leaps + months + day - 1
}

/// Year, month and day of a day since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Days of a year on average, as a first guess that is never too late by more than one year.
    let mut year = 1970 + days * 400 / 146_097;
    while days_before(year, 1, 1) > days {
        year -= 1;
    }
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before(year, 1, 1);
    let mut month = 1;
    while rest >= days_of(year, month) {
        rest -= days_of(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_790_000_000;

    #[test]
    fn three_forms_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "sUN, 06 nOV 1994 08:49:37 gmt",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(
                parse_date(text.as_bytes(), NOW),
                Some(784_111_777),
                "{text}"
            );
        }
        let ahead = parse_date(b"Thursday, 18-Aug-50 02:01:18 GMT", NOW);
        assert_eq!(ahead, parse_date(b"Thu, 18 Aug 2050 02:01:18 GMT", NOW));
        assert!(ahead.is_some());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "foo",
            "Thu, 18 Aug 2050 02:01:18 UTC",
            "Thu, 18 Aug 2050 02:01:18 AEST",
            "Thu, 18 Aug 50 02:01:18 GMT",
            "Thu 18 Aug 2050 02:01:18 GMT",
            "Thu, 18  Aug  2050 02:01:18 GMT",
            "Thu, 18-Aug-2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02.01.18 GMT",
            "Thu, 18 Aug 2050 2:01:18 GMT",
            "Thu, 31 Feb 2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 24:01:18 GMT",
            "Thu, 1\u{e4} Aug 2050 02:01:18 GMT",
        ] {
            assert_eq!(parse_date(text.as_bytes(), NOW), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0u64..16_725_225_600) {
            let mut text = Vec::new();
            write_date(&mut text, seconds);
            prop_assert_eq!(parse_date(&text, NOW), Some(seconds));
        }

        #[test]
        fn arbitrary_bytes_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            text in "[A-Za-z]{3,9},? ?[0-9 -]{2}[ -][A-Za-z]{3}[ -][0-9]{2,4} [0-9:]{8} (GMT)?",
        ) {
            let _ = (parse_date(&bytes, NOW), parse_date(text.as_bytes(), NOW));
        }
    }
}
