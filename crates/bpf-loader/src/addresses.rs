//! The Ethernet addresses of the host's interfaces, which XDP has to be told.

use aya::maps::{HashMap, Map, MapData};

use crate::kernel::{Kernel, LoadError};
use crate::pins::Pins;
use crate::remains::pinned;
use crate::told::make_equal;

/// `FL_ADDRESSES`
const ADDRESSES_MAX: usize = 1_024;

/// An address as the program compares it: six bytes as they lie in memory, and two of zero.
fn word(address: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

/// The interfaces, by index, that XDP serves by what an earlier run pinned.
pub(crate) fn told(pins: &Pins) -> Vec<u32> {
    let map = pinned(pins, "fl_addresses").and_then(Map::from_map_data);
    let Ok(map) = map.and_then(HashMap::<MapData, u32, u64>::try_from) else {
        return Vec::new();
    };
    map.keys().take(ADDRESSES_MAX).flatten().collect()
}

impl Kernel {
    /// Tells the program which frames are this host's: those to the address of the interface (by
    /// its index) that they came in by. All others are left to the stack, which drops them; before
    /// the first call, those are all. Of more than 1,024 the last ones are left out. At tc, where
    /// the stack has compared by then, nothing needs to be told.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub fn set_addresses(&mut self, addresses: &[(u32, [u8; 6])]) -> Result<(), LoadError> {
        let Some(map) = self.ebpf.map_mut("fl_addresses") else {
            return Ok(());
        };
        let mut map: HashMap<&mut MapData, u32, u64> = map.try_into()?;
        let addresses = addresses.iter();
        let addresses = addresses.map(|(interface, address)| (*interface, word(*address)));
        Ok(make_equal(&mut map, ADDRESSES_MAX, addresses)?)
    }
}
