//! Which key leads to which line.
//!
//! Keys are in the index (see `index.rs`), or, where its bucket is full or the kind of flow table
//! has none, in a map of the kernel's. A system call costs the engine as much as reading the head
//! of a request: so the keys of connections that are over stay in the map for a while, and are
//! removed many at a time. The program compares every record with the packet that a key has led to
//! it, so that a key that stays does no harm.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::maps::{IterableMap as _, MapData, MapError};

use crate::index::KeyIndex;
use crate::layout::RawFlowKey;
use crate::sys;

type Map = aya::maps::HashMap<MapData, RawFlowKey, u32>;
/// Not 0: the map holds nothing, and the program need not ask it.
type Empty = aya::maps::Array<MapData, u32>;

/// Keys that wait to be removed, at most.
const LEAVING_MAX: usize = 256;

/// See the module's text.
pub(crate) struct Keys {
    index: Option<KeyIndex>,
    map: Map,
    /// Where there is an index; and what it says.
    empty: Option<Empty>,
    is_empty: bool,
    /// What they lead to still.
    leaving: HashMap<RawFlowKey, u32>,
    /// The kernel may have evicted what it was told.
    evicts: bool,
    /// A key found no room.
    had_no_room: bool,
    /// Where keys are gathered for a system call.
    gathered: Vec<RawFlowKey>,
}

impl Keys {
    pub(crate) fn new(
        index: Option<KeyIndex>,
        map: Map,
        empty: Option<Empty>,
        evicts: bool,
    ) -> Self {
        let mut keys = Self {
            index,
            map,
            empty,
            is_empty: false,
            leaving: HashMap::with_capacity(LEAVING_MAX),
            evicts,
            had_no_room: false,
            gathered: Vec::with_capacity(LEAVING_MAX),
        };
        keys.say_if_empty();
        keys
    }

    /// Tells the program that the map holds nothing, should that be so.
    fn say_if_empty(&mut self) {
        if self.empty.is_some() && !self.is_empty && self.map.keys().next().is_none() {
            self.say(true);
        }
    }

    fn say(&mut self, is_empty: bool) {
        if let Some(empty) = &mut self.empty {
            self.is_empty = empty.set(0, u32::from(is_empty), 0).is_ok() && is_empty;
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.map.map().fd().as_fd()
    }

    /// Bytes that the kernel has set aside.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let index = self.index.as_ref().map_or(0, KeyIndex::bytes);
        sys::map_bytes(self.fd()) + index
    }

    /// Has a key lead to a line and leg (`line << 1 | leg`). False when the map is full.
    pub(crate) fn tell(&mut self, key: RawFlowKey, flow: u32) -> bool {
        if self.is_in_index(&key, flow) || self.leads_already(&key, flow) {
            return true;
        }
        let mut told = self.insert(key, flow);
        if told.is_err() && !self.leaving.is_empty() {
            self.remove_leaving();
            told = self.insert(key, flow);
        }
        self.had_no_room |= told.is_err();
        told.inspect_err(no_room).is_ok()
    }

    /// True when the kernel may not have every key that it was told.
    pub(crate) fn may_lack_some(&self) -> bool {
        self.evicts || self.had_no_room
    }

    /// Puts a key into the map, which is not empty from then on: also when it has just become so.
    fn insert(&mut self, key: RawFlowKey, flow: u32) -> Result<(), MapError> {
        if self.is_empty {
            self.say(false);
        }
        self.map.insert(key, flow, 0)
    }

    /// True when the index has taken the key.
    fn is_in_index(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        self.index
            .as_mut()
            .is_some_and(|index| index.tell(key, flow))
    }

    /// True for a key that was left and leads there still. In any case it is no longer leaving.
    fn leads_already(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        self.leaving.remove(key) == Some(flow) && !self.evicts
    }

    /// A key's connection is over.
    pub(crate) fn leave(&mut self, key: RawFlowKey, flow: u32) {
        let index = self.index.as_mut();
        if index.is_some_and(|index| index.leave(&key, flow)) {
            return;
        }
        self.leaving.insert(key, flow);
        if self.leaving.len() >= LEAVING_MAX {
            self.remove_leaving();
        }
    }

    /// True for a key of the map that leads to a flow. It is no longer leaving then.
    pub(crate) fn leads_to(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        let leads = self.map.get(key, 0).ok() == Some(flow);
        if leads {
            self.leaving.remove(key);
        }
        leads
    }

    /// Forgets all keys but those that `is_key` gives for the flows to which they lead; tells
    /// `kept` of these. The map is believed to have `limit` entries at most.
    pub(crate) fn retain(
        &mut self,
        limit: usize,
        is_key: impl Fn(u32) -> Option<RawFlowKey>,
        mut kept: impl FnMut(u32),
    ) {
        if let Some(index) = &mut self.index {
            index.retain(&is_key, &mut kept);
        }
        let entries: Vec<_> = self.map.iter().take(limit).flatten().collect();
        for (key, flow) in entries {
            if is_key(flow) == Some(key) {
                kept(flow);
            } else {
                self.leaving.insert(key, flow);
            }
        }
        self.remove_leaving();
    }

    /// Removes the keys of connections that are over.
    pub(crate) fn remove_leaving(&mut self) {
        self.gathered.clear();
        self.gathered
            .extend(self.leaving.drain().map(|(key, _)| key));
        let mut rest = &self.gathered[..];
        while !rest.is_empty() {
            let (done, result) = sys::delete_batch(self.fd(), rest);
            // It stops at a key that is not there, because the kernel has evicted it.
            let gone = result.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            let next = done + usize::from(gone);
            if next == 0 {
                break; // a map that does not let go: nothing believes those keys
            }
            rest = rest.get(next..).unwrap_or_default();
        }
        self.say_if_empty();
    }
}

fn no_room(error: &MapError) {
    tracing::debug!(%error, "the kernel has no room for a connection");
}
