//! Text output: optional colour, columns, readable numbers.

use std::io::{IsTerminal, Write};

/// Bold.
pub(crate) const BOLD: &str = "1";
/// Success.
pub(crate) const GREEN: &str = "32";
/// Failure.
pub(crate) const RED: &str = "31";
/// Warning.
pub(crate) const YELLOW: &str = "33";
/// Less important.
pub(crate) const DIM: &str = "2";

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    /// For standard output: coloured on a terminal without `NO_COLOR`.
    pub(crate) fn stdout() -> Self {
        Self(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    /// For standard error.
    pub(crate) fn stderr() -> Self {
        Self(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    /// `text` in one of this file's colours.
    pub(crate) fn text(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Writes to standard output. A closed pipe (`| head`) is not an error; on any other failure the
/// process reports it and exits with 1.
pub(crate) fn print(text: &str) {
    print_while_read(text);
}

/// Like [`print`], for continuous output. Returns false if the pipe is closed.
pub(crate) fn print_while_read(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
        Err(error) => {
            print_error(&format!("fairlead: standard output: {error}\n"));
            std::process::exit(1);
        }
    }
}

/// Writes to standard error.
pub(crate) fn print_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Formats rows in columns two spaces apart, indented by `indent` spaces. The last column is not
/// padded.
pub(crate) fn columns(indent: usize, sides: &[Side], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..sides.len()).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for ((cell, &width), side) in row.iter().zip(&widths).zip(sides) {
            match side {
                Side::Left => line += &format!("{cell:<width$}  "),
                Side::Right => line += &format!("{cell:>width$}  "),
            }
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes in three digits and a binary unit.
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1_024.0 {
            break;
        }
        value /= 1_024.0;
        unit = larger;
    }
    if unit == "B" || value >= 100.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A duration in its two largest units: `3 d 4 h`, `12 min 5 s`.
pub(crate) fn elapsed(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown: Vec<_> = parts[first..]
        .iter()
        .take(2)
        .enumerate()
        .filter(|(index, (count, _))| *index == 0 || *count > 0)
        .map(|(_, (count, unit))| format!("{count} {unit}"))
        .collect();
    shown.join(" ")
}

/// `1 pool`, `2 pools`.
pub(crate) fn plural(count: usize, what: &str) -> String {
    match what.strip_suffix("ry") {
        _ if count == 1 => format!("1 {what}"),
        Some(stem) => format!("{count} {stem}ries"),
        None => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_made_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_023), "1023 B");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(bytes(500 << 20), "500 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(elapsed(0), "0 s");
        assert_eq!(elapsed(725), "12 min 5 s");
        assert_eq!(elapsed(7_200), "2 h");
        assert_eq!(elapsed(90_000), "1 d 1 h");
        assert_eq!(plural(1, "pool"), "1 pool");
        assert_eq!(plural(0, "pool"), "0 pools");
        assert_eq!(plural(1, "retry"), "1 retry");
        assert_eq!(plural(2, "retry"), "2 retries");
    }

    #[test]
    fn columns_line_up_and_end_without_spaces() {
        let rows = [
            vec!["a".into(), "1".into(), "x".into()],
            vec!["bcd".into(), "20".into(), "".into()],
        ];
        let text = columns(2, &[Side::Left, Side::Right, Side::Left], &rows);
        assert_eq!(text, "  a     1  x\n  bcd  20\n");
    }

    #[test]
    fn colour_is_used_only_if_enabled() {
        assert_eq!(Paint(false).text(RED, "x"), "x");
        assert_eq!(Paint(true).text(RED, "x"), "\x1b[31mx\x1b[0m");
    }
}
