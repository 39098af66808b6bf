//! The maps of `bpf/fairlead_host.bpf.c` that outlive the process, so that what sleeps does, too.
//!
//! Each is pinned as `MAP-LAYOUT`. What an earlier run left is used as it is if its shape is that
//! of this build. If only its size differs, its entries are moved to a new map
//! ([`crate::Gives::take_over`]). Maps of another layout or shape are discarded, and what slept in
//! them is counted.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use aya::maps::{MapData, MapInfo};
use aya::{Ebpf, EbpfLoader};

use crate::answered::{ANSWERED, Answered};
use crate::kernel::LoadError;
use crate::layout::HOST_LAYOUT;
use crate::pins::Pins;
use crate::remains::{Shape, map_fd};
use crate::sleep::Lives;
use crate::sys;

const LIVES: &str = "fl_lives";
const RESPONSES: &str = "fl_responses";
const UNREADS: &str = "fl_unreads";
/// Entries of the latter where nothing sleeps.
const UNREADS_MIN: u32 = 64;
/// What is pinned.
const MAPS: [&str; 6] = [LIVES, RESPONSES, "fl_shown", "fl_gives", UNREADS, ANSWERED];
/// Entries of maps of other layouts that are counted, at most.
const COUNTED_MAX: u64 = 1 << 24;

/// What an earlier run left that cannot be used as it is.
#[derive(Debug, Default)]
pub(crate) struct Former {
    /// Connections in a map of another size.
    pub(crate) lives: Option<MapData>,
    /// Where their responses end.
    pub(crate) responses: Option<MapData>,
    /// Connections in maps of another layout, which are gone.
    pub(crate) other_layout: u64,
}

fn pin(pins: &Pins, map: &str) -> PathBuf {
    pins.map(&format!("{map}-{HOST_LAYOUT}"))
}

/// Has the loader open what is pinned, or pin what it makes. `sleepers` is how many connections
/// there may be.
pub(crate) fn prepare<'a>(
    pins: &Pins,
    object: &aya_obj::Object,
    sleepers: u32,
    loader: &mut EbpfLoader<'a>,
) -> Result<Former, LoadError> {
    let mut former = Former {
        other_layout: discard_other_layouts(pins)?,
        ..Former::default()
    };
    for name in MAPS {
        let path = pin(pins, name);
        loader.map_pin_path(name, path.clone());
        let map = object.maps.get(name).ok_or(LoadError::Missing(name))?;
        let mut shape = Shape::of_object(map);
        if let Some(entries) = entries_of(name, sleepers) {
            shape.entries = entries;
        }
        let Some(there) = Shape::at(&path).filter(|there| *there != shape) else {
            continue;
        };
        let moved = match name {
            LIVES => Some(&mut former.lives),
            RESPONSES => Some(&mut former.responses),
            _ => None,
        };
        match moved {
            Some(moved) if there.suits(&shape) => *moved = MapData::from_pin(&path).ok(),
            _ if name == LIVES => former.other_layout += entries(&path),
            _ => {}
        }
        remove(&path)?;
    }
    Ok(former)
}

/// The entries of a map for this number of sleepers, if not what the object says.
pub(crate) fn entries_of(map: &str, sleepers: u32) -> Option<u32> {
    match map {
        LIVES | RESPONSES => Some(sleepers),
        UNREADS if sleepers <= 1 => Some(UNREADS_MIN),
        _ => None,
    }
}

/// The maps once more, for their sizes.
pub(crate) fn descriptors(ebpf: &Ebpf) -> Vec<(&'static str, OwnedFd)> {
    let descriptor = |name: &'static str| {
        let map = map_fd(ebpf.map(name)?)?;
        let fd = map.fd().as_fd().try_clone_to_owned().ok()?;
        Some((name, fd))
    };
    MAPS.into_iter().filter_map(descriptor).collect()
}

/// Removes all of it: no such connections are served any more. How many slept.
pub(crate) fn forget(pins: &Pins) -> Result<u64, LoadError> {
    let asleep = asleep(&pin(pins, LIVES));
    let discarded = discard_other_layouts(pins)?;
    for path in MAPS.map(|name| pin(pins, name)) {
        if path.exists() {
            remove(&path)?;
        }
    }
    Ok(asleep + discarded)
}

/// Connections of an earlier run whose requests the kernel answered.
pub(crate) fn answered(pins: &Pins) -> Option<Answered> {
    let map = MapData::from_pin(pin(pins, ANSWERED)).ok()?;
    Answered::of_map(map).ok()
}

fn discard_other_layouts(pins: &Pins) -> Result<u64, LoadError> {
    let mut discarded = 0;
    for path in pins.files() {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some((map, layout)) = name.and_then(|name| name.rsplit_once('-')) else {
            continue;
        };
        if MAPS.contains(&map) && layout != HOST_LAYOUT.to_string() {
            if map == LIVES {
                discarded += entries(&path);
            }
            remove(&path)?;
        }
    }
    Ok(discarded)
}

fn remove(path: &PathBuf) -> Result<(), LoadError> {
    let removed = std::fs::remove_file(path);
    removed.map_err(|error| LoadError::Pins(format!("{}: {error}", path.display())))
}

/// How many entries a map has, whatever they hold.
fn entries(path: &PathBuf) -> u64 {
    let count = || {
        let info = MapInfo::from_pin(path).ok()?;
        let map = MapData::from_pin(path).ok()?;
        let most = COUNTED_MAX.min(info.max_entries().into());
        let bytes = info.key_size() as usize;
        // SAFETY: the length of the keys is the map's own.
        Some(unsafe { sys::count_keys(map.fd().as_fd(), bytes, most) })
    };
    count().unwrap_or(0)
}

/// How many connections sleep in a map of this layout.
fn asleep(path: &PathBuf) -> u64 {
    let map = MapData::from_pin(path).ok();
    let lives = map.and_then(|map| Lives::of_map(map).ok());
    lives.map_or(0, |lives| lives.asleep().count() as u64)
}
