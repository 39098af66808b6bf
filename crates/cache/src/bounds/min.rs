//! Belady's MIN: evict the line with the furthest next use.

use std::collections::BinaryHeap;

use super::Stream;

/// Misses of `lines` lines under MIN, fully associative, every newcomer taking a line.
pub fn min(stream: &Stream<'_>, lines: u32) -> u64 {
    furthest(stream, lines, false)
}

/// As [`min`], but a newcomer with the furthest next use is not inserted. No policy of this
/// capacity, bypassing or not, misses less.
pub fn min_or_bypass(stream: &Stream<'_>, lines: u32) -> u64 {
    furthest(stream, lines, true)
}

fn furthest(stream: &Stream<'_>, lines: u32, bypass: bool) -> u64 {
    let lines = (lines as usize).min(stream.sessions());
    if lines == 0 {
        return stream.misses(|_| true);
    }
    let mut held = vec![false; stream.sessions()];
    let mut count = 0;
    // Next uses of cached sessions, the furthest on top. Entries of past uses are nearer than all
    // others, so they are never on top; they are purged when there are too many.
    let mut uses: BinaryHeap<(u32, u32)> = BinaryHeap::with_capacity(4 * lines + 2);
    let mut now = 0u32;
    stream.misses_ahead(|id, next| {
        now += 1;
        if uses.len() > 4 * lines {
            uses.retain(|(at, _)| *at >= now);
        }
        if held[id as usize] {
            uses.push((next, id));
            return false;
        }
        if count == lines {
            let top = uses.peek().copied();
            let Some((_, victim)) = top.filter(|(at, _)| !bypass || *at > next) else {
                return true;
            };
            uses.pop();
            held[victim as usize] = false;
        } else {
            count += 1;
        }
        held[id as usize] = true;
        uses.push((next, id));
        true
    })
}
