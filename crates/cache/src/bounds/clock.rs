//! CLOCK: first in, first out, with a second chance for accessed lines.

use super::{Stream, Table};

/// Misses of `lines` lines under CLOCK with one bit, fully associative.
pub fn clock(stream: &Stream<'_>, lines: u32) -> u64 {
    let mut table = Table::new(stream.sessions(), lines);
    let mut touched = vec![false; table.lines()];
    let mut hand = 0usize;
    stream.misses(|id| {
        if let Some(line) = table.line(id) {
            touched[line as usize] = true;
            return false;
        }
        if let Some(line) = table.fresh() {
            table.give(line, id);
        } else if !touched.is_empty() {
            while core::mem::replace(&mut touched[hand], false) {
                hand = (hand + 1) % touched.len();
            }
            table.give(hand as u32, id);
            hand = (hand + 1) % touched.len();
        }
        true
    })
}
