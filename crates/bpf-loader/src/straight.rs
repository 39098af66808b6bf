//! Which veths' other ends receive at once what the program at tc sends.

use aya::maps::{Array, MapData};

use crate::kernel::{Kernel, LoadError};

/// `FL_STRAIGHT`
const PLACES: usize = 1_024;

impl Kernel {
    /// Tells the program, by index, out of which veths packets go straight to the other end, past
    /// the queue in between. Before the first call there are none, and under XDP there never are.
    /// Of two whose indexes are the same modulo 1,024, the last one is.
    ///
    /// The kernel drops what is so sent out of anything that is not a veth, or one whose other end
    /// is in this network namespace.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub fn set_straight(&mut self, interfaces: &[u32]) -> Result<(), LoadError> {
        let Some(map) = self.ebpf.map_mut("fl_straight") else {
            return Ok(());
        };
        let mut map: Array<&mut MapData, u32> = map.try_into()?;
        let mut wanted = [0; PLACES];
        for interface in interfaces {
            wanted[*interface as usize % PLACES] = *interface;
        }
        for (place, wanted) in (0..).zip(wanted) {
            if map.get(&place, 0)? != wanted {
                map.set(place, wanted, 0)?;
            }
        }
        Ok(())
    }
}
