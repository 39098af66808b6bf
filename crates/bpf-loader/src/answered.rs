//! Connections whose requests the kernel answers, as a restart finds them: the front goes on with
//! those that still have one, and the others are reset.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use aya::Ebpf;
use aya::maps::{HashMap, IterableMap as _, Map, MapData, MapError};
use fairlead_base::{Endpoint, FlowKey};

use crate::hits::{AGAIN, descriptor, frame_of};
use crate::kernel::LoadError;
use crate::layout::{HIT_ENDS, RawFlowKey, RawHit};
use crate::remains::map_fd;
use crate::sys;

/// Their map.
pub(crate) const ANSWERED: &str = "fl_hits";

/// All of them.
#[derive(Debug)]
pub(crate) struct Answered(HashMap<MapData, RawFlowKey, RawHit>);

impl Answered {
    pub(crate) fn of_map(map: MapData) -> Result<Self, MapError> {
        Ok(Self(Map::from_map_data(map)?.try_into()?))
    }

    /// Those of programs that are loaded.
    pub(crate) fn of(ebpf: &Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.map(ANSWERED).and_then(map_fd);
        let map = map.ok_or(LoadError::Missing(ANSWERED))?;
        let fd = map.fd().as_fd().try_clone_to_owned();
        let fd = fd.map_err(MapError::IoError)?;
        Ok(Self::of_map(MapData::from_fd(fd)?)?)
    }

    pub(crate) fn entries(&self) -> Vec<(RawFlowKey, RawHit)> {
        // What is removed meanwhile may make the walk begin again.
        let most = self.0.map().info().map_or(0, |info| info.max_entries());
        self.0.iter().take(2 * most as usize).flatten().collect()
    }

    /// Where they came in.
    pub(crate) fn listens(&self) -> BTreeSet<Endpoint> {
        let all = self.entries().into_iter();
        all.map(|(key, _)| FlowKey::from(key).dst).collect()
    }

    /// Has the programs reset these. How many were.
    pub(crate) fn reset(&mut self, ebpf: &Ebpf, all: &[(RawFlowKey, RawHit)]) -> u64 {
        let Ok(again) = descriptor(ebpf, AGAIN) else {
            return 0;
        };
        let mut count = 0;
        for &(key, mut hit) in all {
            hit.flags |= HIT_ENDS;
            // The program acts on the entry, and removes it. A client whose interface is gone
            // cannot be reached.
            if self.0.insert(key, hit, 0).is_ok() {
                let _ = sys::run_program(again.as_fd(), &frame_of(&key, &hit), hit.ifindex);
                let _ = self.0.remove(&key);
                count += 1;
            }
        }
        count
    }
}
