//! The way in for packets to listening addresses that this host has itself, under XDP: past the
//! stack to the engine's device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aya::maps::{HashMap, MapData};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use fairlead_base::Address;

use crate::filter::has_links;
use crate::interfaces::interface_index;
use crate::kernel::LoadError;
use crate::layout::RawAddress;

static IN: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_in.o"));
const PROGRAM: &str = "fairlead_in";
/// `FL_LOCALS`
const LOCALS_MAX: usize = 1_024;

/// Brings packets to local listening addresses to the engine: the program `bpf/fairlead_in.bpf.c`
/// on the interfaces of the fast path, for as long as this is there.
#[derive(Debug)]
pub struct WayIn {
    ebpf: Ebpf,
    /// The engine's device.
    device: u32,
    links: BTreeMap<u32, SchedClassifierLink>,
    told: BTreeSet<IpAddr>,
}

impl WayIn {
    /// Loads the program for the engine's device with this index. It does nothing until
    /// [`Self::set`].
    ///
    /// # Errors
    /// [`LoadError::TooOld`] before Linux 6.6, where a program could stay behind; what the kernel
    /// refuses elsewhere.
    pub fn load(device: u32) -> Result<Self, LoadError> {
        if IN.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        if !has_links() {
            return Err(LoadError::TooOld("6.6"));
        }
        let mut ebpf = EbpfLoader::new().load(IN)?;
        let program = ebpf.program_mut(PROGRAM);
        let program: &mut SchedClassifier =
            program.ok_or(LoadError::Missing(PROGRAM))?.try_into()?;
        program.load()?;
        Ok(Self {
            ebpf,
            device,
            links: BTreeMap::new(),
            told: BTreeSet::new(),
        })
    }

    /// Brings packets to these addresses that come in on these interfaces to the engine, and those
    /// to no others. Of more than 1,024 addresses the last ones are left out.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set(
        &mut self,
        interfaces: &[String],
        local: &BTreeSet<IpAddr>,
    ) -> Result<(), LoadError> {
        let map = self.ebpf.map_mut("fl_locals");
        let map = map.ok_or(LoadError::Missing("fl_locals"))?;
        let mut map: HashMap<&mut MapData, RawAddress, u32> = map.try_into()?;
        for gone in self.told.difference(local) {
            let _ = map.remove(&RawAddress::from(Address::from(*gone)));
        }
        for address in local.iter().take(LOCALS_MAX) {
            map.insert(RawAddress::from(Address::from(*address)), self.device, 0)?;
        }
        self.told.clone_from(local);
        let indices: Vec<u32> = interfaces
            .iter()
            .filter_map(|name| interface_index(name))
            .collect();
        self.links.retain(|index, _| indices.contains(index));
        let program = self.ebpf.program_mut(PROGRAM);
        let program: &mut SchedClassifier =
            program.ok_or(LoadError::Missing(PROGRAM))?.try_into()?;
        for name in interfaces {
            let Some(index) = interface_index(name) else {
                continue;
            };
            if self.links.contains_key(&index) {
                continue;
            }
            let by_link = TcAttachOptions::TcxOrder(LinkOrder::default());
            let link = program.attach_with_options(name, TcAttachType::Ingress, by_link)?;
            self.links.insert(index, program.take_link(link)?);
        }
        Ok(())
    }
}
