//! Rows set in columns, as plain text and as CSV.

use std::borrow::Cow;

/// Text for a terminal: control characters are escaped, except line ends.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| letter.escape_default().to_string())
}

/// A name, which is in one line.
pub fn visible_name(name: &str) -> String {
    visible(name).replace('\n', "\\n")
}

/// The same for JSON, which has no unescaped control characters but its line ends.
pub(crate) fn visible_json(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| format!("\\u{:04x}", u32::from(letter)))
}

fn escaped(text: &str, show: impl Fn(char) -> String) -> Cow<'_, str> {
    let is_hidden = |letter: char| letter.is_control() && letter != '\n';
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match is_hidden(letter) {
            true => out += &show(letter),
            false => out.push(letter),
        }
    }
    out.into()
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table of text cells under a heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub heads: Vec<String>,
    /// The rows; a short one is filled with empty cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        Self {
            heads: heads.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// As plain text, with two spaces between columns and indented by `indent`. Columns of numbers
    /// are right-aligned.
    pub fn text(&self, indent: usize) -> String {
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let sides: Vec<Side> = (0..self.heads.len())
            .map(|column| {
                let numbers = self.rows.iter().all(|row| is_number(&cell(row, column)));
                if numbers { Side::Right } else { Side::Left }
            })
            .collect();
        let widths: Vec<usize> = (0..self.heads.len())
            .map(|column| {
                std::iter::once(&self.heads)
                    .chain(&self.rows)
                    .map(|row| cell(row, column).chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for row in std::iter::once(&self.heads).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for (column, &width) in widths.iter().enumerate() {
                let text = cell(row, column);
                match sides[column] {
                    Side::Left => line += &format!("{text:<width$}  "),
                    Side::Right => line += &format!("{text:>width$}  "),
                }
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }

    /// As CSV (RFC 4180, lines end with a line feed).
    pub fn csv(&self) -> String {
        let mut out = csv_line(&self.heads);
        for row in &self.rows {
            let filled: Vec<String> = (0..self.heads.len())
                .map(|column| row.get(column).cloned().unwrap_or_default())
                .collect();
            out += &csv_line(&filled);
        }
        out
    }
}

/// One line of CSV, with its end.
pub fn csv_line(cells: &[String]) -> String {
    let quoted: Vec<String> = cells
        .iter()
        .map(|cell| {
            if cell.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        })
        .collect();
    quoted.join(",") + "\n"
}

/// True for a number, a percentage, a range of digits or nothing.
fn is_number(cell: &str) -> bool {
    cell.chars()
        .all(|letter| letter.is_ascii_digit() || ".,+-−%–×± ".contains(letter))
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
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

/// A share as a percentage with one decimal.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A difference of shares, with its sign.
pub fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_end_without_spaces() {
        let mut table = Table::new(["scheme", "misses"]);
        table.row(["mod", "1,000"]);
        table.row(["2-universal", "9"]);
        table.row(["x"]);
        assert_eq!(
            table.text(1),
            " scheme       misses\n mod           1,000\n 2-universal       9\n x\n"
        );
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let mut table = Table::new(["a", "b"]);
        table.row(["1,5", "say \"x\""]);
        table.row(["1"]);
        assert_eq!(table.csv(), "a,b\n\"1,5\",\"say \"\"x\"\"\"\n1,\n");
    }

    #[test]
    fn numbers_are_made_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(percent(0.2345), "23.4 %");
        assert_eq!(signed_percent(-0.01), "-1.0 %");
    }
}
