//! Fully associative LRU.

use super::{Queue, Stream, Table};

/// Misses of `lines` lines under LRU, fully associative.
pub fn lru(stream: &Stream<'_>, lines: u32) -> u64 {
    let mut table = Table::new(stream.sessions(), lines);
    let mut queue = Queue::new(table.lines());
    stream.misses(|id| {
        if let Some(line) = table.line(id) {
            queue.renew(line);
            return false;
        }
        if let Some(line) = table.fresh() {
            table.give(line, id);
            queue.push(line);
        } else if table.lines() > 0 {
            let line = queue.tail;
            queue.remove(line);
            table.give(line, id);
            queue.push(line);
        }
        true
    })
}
