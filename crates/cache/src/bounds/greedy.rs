//! `greedy-furthest`: the value of knowing the future if a session can be in several sets.

use super::{NONE, Stream, StreamError};
use crate::place::Places;

/// Misses of a cache of several banks that always gives up, among the lines that the newcomer may
/// have by the first functions, the one that is used furthest in the future.
///
/// With one bank this is the optimum. With several it is *not*: finding that is NP-hard (Brehob,
/// Wagner, Torng and Enbody, 2004). It is an upper bound on the optimum's misses, and a realistic
/// goal for such policies.
///
/// # Errors
/// When there are fewer places than sessions.
pub fn greedy_furthest(
    stream: &Stream<'_>,
    places: &Places,
    ways: u32,
    bypass: bool,
) -> Result<u64, StreamError> {
    if places.len() < stream.sessions() {
        return Err(StreamError::NoSession {
            id: places.len() as u32,
            at: 0,
            sessions: places.len(),
        });
    }
    let (banks, sets) = (places.banks() as usize, places.sets() as usize);
    let ways = ways as usize;
    // By line: the session and its next use; an empty line is one that is never used.
    let mut lines = vec![(NONE, NONE); banks * sets * ways];
    Ok(stream.misses_ahead(|id, next| {
        let place = places.at(id as usize).unwrap_or_default();
        let mut furthest: Option<(usize, u32, bool)> = None;
        for (bank, set) in place.first.iter().enumerate().take(banks) {
            let begin = (bank * sets + *set as usize) * ways;
            for (at, line) in lines.iter_mut().enumerate().skip(begin).take(ways) {
                if line.0 == id {
                    line.1 = next;
                    return false;
                }
                let (empty, used) = (line.0 == NONE, line.1);
                if furthest.is_none_or(|(_, most, free)| !free && (empty || used > most)) {
                    furthest = Some((at, used, empty));
                }
            }
        }
        if let Some((at, used, empty)) = furthest
            && (empty || !bypass || used > next)
        {
            lines[at] = (id, next);
        }
        true
    }))
}
