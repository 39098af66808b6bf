//! Which interfaces XDP may send packets out of.

use std::collections::BTreeMap;

use aya::maps::{HashMap, MapData};

use crate::attach::Mode;
use crate::kernel::{Kernel, LoadError};

/// An interface that takes packets from XDP programs of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its index.
    pub interface: u32,
    /// Also those that lie in several buffers (longer than a page).
    pub buffers: bool,
}

/// `FL_EXIT_BUFFERS`
const BUFFERS: u32 = 1;
/// `FL_EXITS`
const EXITS_MAX: usize = 1_024;

impl Kernel {
    /// How it is attached.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Tells the program which interfaces take what XDP sends; packets for others it leaves to the
    /// engine. Before the first call there are none. Of more than 1,024 the last ones are left out.
    /// At tc, where every interface does, nothing needs to be told.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub fn set_exits(&mut self, exits: &[Exit]) -> Result<(), LoadError> {
        let Some(map) = self.ebpf.map_mut("fl_exits") else {
            return Ok(());
        };
        let mut map: HashMap<&mut MapData, u32, u32> = map.try_into()?;
        let mut left: BTreeMap<u32, u32> = map.iter().take(EXITS_MAX).flatten().collect();
        for exit in exits.iter().take(EXITS_MAX) {
            let flags = if exit.buffers { BUFFERS } else { 0 };
            if left.remove(&exit.interface) != Some(flags) {
                map.insert(exit.interface, flags, 0)?;
            }
        }
        for gone in left.into_keys() {
            map.remove(&gone)?;
        }
        Ok(())
    }
}
