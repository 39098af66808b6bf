//! MIN set by set: the optimum of a cache with one index function.

use super::{Stream, StreamError, greedy_furthest};
use crate::place::Places;

/// Misses of a cache of one bank of `ways` ways under MIN in each set: no non-bypassing policy with
/// the same index misses less (with `bypass`: no policy at all).
///
/// `None` when the places are for several banks: see [`greedy_furthest`].
///
/// # Errors
/// When there are fewer places than sessions.
pub fn min_per_set(
    stream: &Stream<'_>,
    places: &Places,
    ways: u32,
    bypass: bool,
) -> Result<Option<u64>, StreamError> {
    if places.banks() != 1 {
        return Ok(None);
    }
    greedy_furthest(stream, places, ways, bypass).map(Some)
}
