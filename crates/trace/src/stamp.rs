//! Times as logs write them, to microseconds since 1970.

const DAY_US: i64 = 86_400_000_000;
const SECOND_US: i64 = 1_000_000;

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: u32, day: u32) -> i64 {
    // March is the first month, so that the leap day is the last of a year.
    let shifted = i64::from((month + 9) % 12);
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The number of a month's three letters.
pub(crate) fn month(letters: &[u8]) -> Option<u32> {
    const NAMES: [[u8; 3]; 12] = [
        *b"jan", *b"feb", *b"mar", *b"apr", *b"may", *b"jun", *b"jul", *b"aug", *b"sep", *b"oct",
        *b"nov", *b"dec",
    ];
    let lower = letters.first_chunk::<3>()?.map(|byte| byte | 0x20);
    let at = NAMES.iter().position(|name| *name == lower)?;
    Some(at as u32 + 1)
}

/// Two digits at `at`.
#[inline]
pub(crate) fn two(bytes: &[u8], at: usize) -> Option<u32> {
    let pair = bytes.get(at..at + 2)?;
    let (tens, ones) = (pair[0].wrapping_sub(b'0'), pair[1].wrapping_sub(b'0'));
    (tens < 10 && ones < 10).then(|| u32::from(tens) * 10 + u32::from(ones))
}

/// Microseconds of `HH:MM:SS` at the beginning of `bytes`; a leap second counts as one more.
#[inline]
pub(crate) fn time_of_day_us(bytes: &[u8]) -> Option<i64> {
    let eight = bytes.get(..8)?;
    let (hour, minute, second) = (two(eight, 0)?, two(eight, 3)?, two(eight, 6)?);
    let fits = hour < 24 && minute < 60 && second < 61 && eight[2] == b':' && eight[5] == b':';
    let seconds = hour * 3_600 + minute * 60 + second;
    fits.then(|| i64::from(seconds) * SECOND_US)
}

/// As [`days`], for a valid date.
pub(crate) fn date(year: u32, month: u32, day: u32) -> Option<i64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is = (1..=12).contains(&month) && (1..=last).contains(&day);
    is.then(|| days(i64::from(year), month, day))
}

/// Reads `dd/Mon/yyyy`, `yyyy-mm-dd` and zones, and remembers the last day: logs change it rarely.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar {
    day: [u8; 11],
    zone: [u8; 5],
    base_us: i64,
    known: bool,
}

impl Calendar {
    /// `dd/Mon/yyyy:HH:MM:SS[.fraction] ±zzzz`, without zone as UTC.
    #[inline]
    pub(crate) fn clf_us(&mut self, stamp: &[u8]) -> Option<i64> {
        let day = stamp.first_chunk::<11>()?;
        let rest = stamp.get(12..)?;
        let mut time = time_of_day_us(rest)?;
        let mut rest = rest.get(8..);
        if let Some([b'.' | b',', digits @ ..]) = rest {
            let (fraction, behind) = leading_fraction_us(digits)?;
            (time, rest) = (time + fraction, Some(behind));
        }
        let zone = match rest {
            Some([]) | None => *b"+0000",
            Some([b' ', zone @ ..]) if zone.len() >= 5 => *zone.first_chunk::<5>()?,
            Some(_) => return None,
        };
        if !(self.known && self.day == *day && self.zone == zone) {
            self.learn(day, zone)?;
        }
        Some(self.base_us + time)
    }

    /// `dd/Mon/yyyy` and `HH:MM:SS` apart, UTC.
    #[inline]
    pub(crate) fn day_and_time_us(&mut self, day: &[u8], time: &[u8]) -> Option<i64> {
        let day: &[u8; 11] = day.try_into().ok()?;
        let time_us = time_of_day_us(time).filter(|_| time.len() == 8)?;
        if !(self.known && self.day == *day) {
            self.learn(day, *b"+0000")?;
        }
        Some(self.base_us + time_us)
    }

    fn learn(&mut self, day: &[u8; 11], zone: [u8; 5]) -> Option<()> {
        if day[2] != b'/' || day[6] != b'/' {
            return None;
        }
        let year = two(day, 7)? * 100 + two(day, 9)?;
        let days = date(year, month(&day[3..6])?, two(day, 0)?)?;
        let east_us = east_us(zone)?;
        self.base_us = days * DAY_US - east_us;
        (self.day, self.zone, self.known) = (*day, zone, true);
        Some(())
    }
}

/// Reads `yyyy-mm-dd`, and remembers the last.
#[derive(Clone, Debug, Default)]
pub(crate) struct IsoCalendar {
    day: [u8; 10],
    base_us: i64,
    known: bool,
}

impl IsoCalendar {
    /// Microseconds at the beginning of a day `yyyy-mm-dd`, UTC.
    #[inline]
    pub(crate) fn day_us(&mut self, day: &[u8]) -> Option<i64> {
        let day: &[u8; 10] = day.try_into().ok()?;
        if !(self.known && self.day == *day) {
            if day[4] != b'-' || day[7] != b'-' {
                return None;
            }
            let year = two(day, 0)? * 100 + two(day, 2)?;
            self.base_us = date(year, two(day, 5)?, two(day, 8)?)? * DAY_US;
            (self.day, self.known) = (*day, true);
        }
        Some(self.base_us)
    }

    /// `yyyy-mm-ddTHH:MM:SS[.fraction][Z|±hh:mm]`; a blank may replace the `T` and precede the
    /// zone, and a comma may replace the point (ISO 8601).
    #[inline]
    pub(crate) fn stamp_us(&mut self, stamp: &[u8]) -> Option<i64> {
        let base = self.day_us(stamp.get(..10)?)?;
        if !matches!(stamp.get(10)?, b'T' | b't' | b' ') {
            return None;
        }
        let rest = stamp.get(11..)?;
        let mut at = base + time_of_day_us(rest)?;
        let mut rest = &rest[8..];
        if let [b'.' | b',', digits @ ..] = rest {
            let (fraction, behind) = leading_fraction_us(digits)?;
            (at, rest) = (at + fraction, behind);
        }
        match rest.strip_prefix(b" ").unwrap_or(rest) {
            [] | b"Z" | b"z" => Some(at),
            [sign, h, hh, m, mm] | [sign, h, hh, b':', m, mm] => {
                Some(at - east_us([*sign, *h, *hh, *m, *mm])?)
            }
            _ => None,
        }
    }
}

/// How far a zone `±hhmm` is east of Greenwich; less than a day (RFC 3339, section 5.6).
fn east_us(zone: [u8; 5]) -> Option<i64> {
    let (hours, minutes) = (two(&zone, 1)?, two(&zone, 3)?);
    let us = i64::from(hours * 60 + minutes) * 60 * SECOND_US;
    match zone[0] {
        _ if hours > 23 || minutes > 59 => None,
        b'+' => Some(us),
        b'-' => Some(-us),
        _ => None,
    }
}

/// As [`fraction_us`], of the digits at the beginning of `text`, and the text behind them.
#[inline]
fn leading_fraction_us(text: &[u8]) -> Option<(i64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let (digits, behind) = text.split_at(digits.count());
    Some((fraction_us(digits)?, behind))
}

/// The digits after a decimal point, to microseconds; further digits are truncated.
#[inline]
pub(crate) fn fraction_us(digits: &[u8]) -> Option<i64> {
    let mut value = 0;
    let mut unit = SECOND_US / 10;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value += i64::from(digit) * unit;
        unit /= 10;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 2, 29), 11_016);
        assert_eq!(days(2000, 3, 1), 11_017);
        assert_eq!(days(1969, 12, 31), -1);
        let mut walked = days(1990, 1, 1);
        for year in 1990..2030i64 {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for month in 1..=12u32 {
                let last = match month {
                    2 if leap => 29,
                    2 => 28,
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                for day in 1..=last {
                    assert_eq!(days(year, month, day), walked);
                    walked += 1;
                }
            }
        }
    }

    #[test]
    fn zones_count_east_of_greenwich() {
        let mut calendar = Calendar::default();
        let at = |calendar: &mut Calendar, text: &str| calendar.clf_us(text.as_bytes());
        let utc = at(&mut calendar, "09/Jul/1995:04:00:00 +0000");
        assert_eq!(utc, Some(805_262_400 * SECOND_US));
        assert_eq!(at(&mut calendar, "09/Jul/1995:00:00:00 -0400"), utc);
        assert_eq!(at(&mut calendar, "09/jul/1995:05:30:00 +0130"), utc);
        assert_eq!(at(&mut calendar, "09/Jul/1995:04:00:00"), utc);
        let half = utc.map(|utc| utc + 500_000);
        assert_eq!(at(&mut calendar, "09/Jul/1995:04:00:00.500 +0000"), half);
        assert_eq!(at(&mut calendar, "09/Jul/1995:04:00:00,5"), half);
        for wrong in [
            "",
            "09/Jul/1995:04:00",
            "09/Jux/1995:04:00:00 +0000",
            "39/Jul/1995:04:00:00 +0000",
            "31/Jun/1995:04:00:00 +0000",
            "29/Feb/1995:04:00:00 +0000",
            "09/Jul/1995:24:00:00 +0000",
            "09/Jul/1995:04:00:00.x +0000",
            "09/Jul/1995:04:00:00 +00",
            "09/Jul/1995:04:00:00 +9900",
            "09/Jul/1995:04:00:00 +0060",
            "09-Jul-1995:04:00:00 +0000",
        ] {
            assert_eq!(at(&mut calendar, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn iso_stamps_have_fractions_and_zones() {
        let mut calendar = IsoCalendar::default();
        let mut at = |text: &str| calendar.stamp_us(text.as_bytes());
        let whole = at("2015-07-22T09:00:28Z").unwrap();
        assert_eq!(whole, 1_437_555_628 * SECOND_US);
        assert_eq!(at("2015-07-22T09:00:28.019143Z"), Some(whole + 19_143));
        assert_eq!(at("2015-07-22 09:00:28.5"), Some(whole + 500_000));
        assert_eq!(
            at("2015-07-22T11:00:28.0191439+02:00"),
            Some(whole + 19_143)
        );
        assert_eq!(at("2015-07-22T08:30:28-0030"), Some(whole));
        assert_eq!(at("2015-07-22 09:00:28,500"), Some(whole + 500_000));
        assert_eq!(at("2015-07-22 11:00:28,000 +0200"), Some(whole));
        assert_eq!(at("2015-07-22 11:00:28  +0200"), None);
        assert_eq!(at("2015-07-22T09:00:28x"), None);
        assert_eq!(at("2015-07-22T09:00:28+24:00"), None);
        assert_eq!(at("2015-07-22T09:00:28+02:00x"), None);
        assert_eq!(at("2015-13-22T09:00:28Z"), None);
        assert_eq!(at("2015-07-22"), None);
    }
}
