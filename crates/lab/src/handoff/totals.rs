//! What a client has read so far, told to the measuring process whenever that asks.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts of a client.
#[derive(Debug, Default)]
pub struct Totals {
    answers: AtomicU64,
    bytes: AtomicU64,
}

impl Totals {
    /// Another answer, or message, with this number of bytes.
    pub fn add(&self, bytes: u64) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Answers and bytes.
    pub fn get(&self) -> [u64; 2] {
        [&self.answers, &self.bytes].map(|count| count.load(Ordering::Relaxed))
    }

    /// Writes a line with both for each byte of `input`. Sets `stop` when that ends.
    pub fn report(&self, mut input: impl Read, mut output: impl Write, stop: &AtomicBool) {
        while let Ok(1) = input.read(&mut [0]) {
            let [answers, bytes] = self.get();
            let written: io::Result<()> =
                writeln!(output, "{answers} {bytes}").and_then(|()| output.flush());
            if written.is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Release);
    }
}

/// Counts of such a line.
pub(super) fn parse(line: &str) -> Option<[u64; 2]> {
    let (answers, bytes) = line.trim().split_once(' ')?;
    Some([answers.parse().ok()?, bytes.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_answered_with_the_totals() {
        let (totals, stop) = (Totals::default(), AtomicBool::new(false));
        totals.add(5);
        totals.add(7);
        let mut output = Vec::new();
        totals.report(&[1, 1][..], &mut output, &stop);
        let lines = String::from_utf8(output).unwrap();
        let read: Vec<_> = lines.lines().map(parse).collect();
        assert_eq!(read, [Some([2, 12]); 2]);
        assert!(stop.load(Ordering::Acquire));
        assert_eq!(parse("2"), None);
    }
}
