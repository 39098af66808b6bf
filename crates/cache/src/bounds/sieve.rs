//! SIEVE (Zhang et al., NSDI 2024): one bit per line, one hand, and lines stay in place.

use super::{NONE, Queue, Stream, Table};

/// Misses of `lines` lines under SIEVE, fully associative.
pub fn sieve(stream: &Stream<'_>, lines: u32) -> u64 {
    let mut table = Table::new(stream.sessions(), lines);
    let mut queue = Queue::new(table.lines());
    let mut touched = vec![false; table.lines()];
    let mut hand = NONE;
    stream.misses(|id| {
        if let Some(line) = table.line(id) {
            touched[line as usize] = true;
            return false;
        }
        if let Some(line) = table.fresh() {
            table.give(line, id);
            queue.push(line);
        } else if table.lines() > 0 {
            let mut line = if hand == NONE { queue.tail } else { hand };
            while core::mem::replace(&mut touched[line as usize], false) {
                line = queue.ahead(line).unwrap_or(queue.tail);
            }
            hand = queue.ahead(line).unwrap_or(NONE);
            queue.remove(line);
            table.give(line, id);
            queue.push(line);
        }
        true
    })
}
