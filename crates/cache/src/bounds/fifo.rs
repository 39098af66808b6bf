//! Fully associative FIFO.

use super::{Stream, Table};

/// Misses of `lines` lines under FIFO, fully associative.
pub fn fifo(stream: &Stream<'_>, lines: u32) -> u64 {
    let mut table = Table::new(stream.sessions(), lines);
    let mut oldest = 0;
    stream.misses(|id| {
        if table.line(id).is_some() {
            return false;
        }
        if let Some(line) = table.fresh() {
            table.give(line, id);
        } else if table.lines() > 0 {
            table.give(oldest, id);
            oldest = (oldest + 1) % table.lines() as u32;
        }
        true
    })
}
