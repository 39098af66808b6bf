//! Which interfaces XDP may send packets out of.

use aya::Pod;
use aya::maps::{HashMap, MapData};

use crate::attach::Mode;
use crate::kernel::{Kernel, LoadError};
use crate::told::make_equal;
use crate::vlans::Tag;

/// An interface that takes packets from XDP programs of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its index.
    pub interface: u32,
    /// The index of the one that sends: itself, or what a VLAN's interface stands on.
    pub device: u32,
    /// The tag that is put on for a VLAN.
    pub tag: Option<Tag>,
    /// Also those that lie in several buffers (longer than a page).
    pub buffers: bool,
}

/// `struct fl_exit`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawExit {
    flags: u32,
    device: u32,
    tag: u32,
}

// SAFETY: three numbers without a gap.
unsafe impl Pod for RawExit {}

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
        let mut map: HashMap<&mut MapData, u32, RawExit> = map.try_into()?;
        let raw = |exit: &Exit| RawExit {
            flags: if exit.buffers { BUFFERS } else { 0 },
            device: exit.device,
            tag: exit.tag.map_or(0, Tag::word),
        };
        let exits = exits.iter().map(|exit| (exit.interface, raw(exit)));
        Ok(make_equal(&mut map, EXITS_MAX, exits)?)
    }
}
