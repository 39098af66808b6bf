//! Maps by which the program is told something of the host, kept equal to what is so now.

use std::collections::BTreeMap;

use aya::Pod;
use aya::maps::{HashMap, MapData, MapError};

/// Makes a map of at most `most` entries equal to `wanted`, of which the last ones are left out if
/// there are more. What is gone goes first: a full map would take nothing new.
pub(crate) fn make_equal<K: Pod + Ord, V: Pod + PartialEq>(
    map: &mut HashMap<&mut MapData, K, V>,
    most: usize,
    wanted: impl Iterator<Item = (K, V)>,
) -> Result<(), MapError> {
    let wanted: BTreeMap<K, V> = wanted.take(most).collect();
    let held: BTreeMap<K, V> = map.iter().take(most).flatten().collect();
    for gone in held.keys().filter(|key| !wanted.contains_key(key)) {
        map.remove(gone)?;
    }
    for (key, value) in wanted {
        if held.get(&key) != Some(&value) {
            map.insert(key, value, 0)?;
        }
    }
    Ok(())
}
