//! Which VLANs XDP serves on the interfaces that those stand on.

use aya::Pod;
use aya::maps::{HashMap, MapData};

use crate::kernel::{Kernel, LoadError};
use crate::told::make_equal;

/// `FL_VLANS`
const VLANS_MAX: usize = 1_024;

/// What tells the frames of a VLAN from others on the same wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The EtherType: 0x8100 (IEEE 802.1Q) or 0x88a8 (802.1ad).
    pub protocol: u16,
    /// The VLAN's number, 0 to 4,095.
    pub vlan: u16,
}

impl Tag {
    /// As the program compares it and puts it on, with priority 0.
    pub(crate) fn word(self) -> u32 {
        u32::from(self.protocol.to_be()) | u32::from((self.vlan & 0xfff).to_be()) << 16
    }
}

/// A VLAN's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Its index.
    pub interface: u32,
    /// The index of the one that it stands on, where the program is.
    pub device: u32,
    /// The tag of its frames there.
    pub tag: Tag,
}

/// `struct fl_vlan`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RawVlan {
    device: u32,
    tag: u32,
}

// SAFETY: two numbers without a gap.
unsafe impl Pod for RawVlan {}

impl Kernel {
    /// Tells the program in the driver which tagged frames it is to handle, as ones that came in
    /// by a VLAN's own interface; others are the stack's. Before the first call there are none. Of
    /// more than 1,024 the last ones are left out. At tc, which runs on a VLAN's interface, nothing
    /// needs to be told.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub fn set_vlans(&mut self, vlans: &[Vlan]) -> Result<(), LoadError> {
        let Some(map) = self.ebpf.map_mut("fl_vlans") else {
            return Ok(());
        };
        let mut map: HashMap<&mut MapData, RawVlan, u32> = map.try_into()?;
        let key = |vlan: &Vlan| RawVlan {
            device: vlan.device,
            tag: vlan.tag.word(),
        };
        let vlans = vlans.iter().map(|vlan| (key(vlan), vlan.interface));
        Ok(make_equal(&mut map, VLANS_MAX, vlans)?)
    }
}
