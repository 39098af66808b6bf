//! Which descriptors are watched.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::c_int;

use crate::entry::Inner;

/// Descriptors beyond this number stay with the kernel.
pub(crate) const DESCRIPTORS: usize = 65_536;

/// A watched socket, whatever its descriptors are.
pub(crate) type Entry = Arc<Mutex<Inner>>;

struct Place {
    is_watched: AtomicBool,
    entry: Mutex<Option<Entry>>,
}

static TABLE: [Place; DESCRIPTORS] = [const {
    Place {
        is_watched: AtomicBool::new(false),
        entry: Mutex::new(None),
    }
}; DESCRIPTORS];

/// The lock; whoever panicked with it has ended the process.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Sockets that this thread has locked. What it calls then is the library's own call.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A locked socket.
pub(crate) struct Held<'a>(MutexGuard<'a, Inner>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl Deref for Held<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.0
    }
}

/// Locks a socket. As long as it is locked, this thread's calls reach the C library as they are.
pub(crate) fn hold(entry: &Entry) -> Held<'_> {
    let held = Held(lock(entry));
    HELD.set(HELD.get() + 1);
    held
}

fn place(fd: c_int) -> Option<&'static Place> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The socket behind a descriptor, if it is watched.
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    let place = place(fd)?;
    if !place.is_watched.load(Ordering::Acquire) || HELD.get() > 0 {
        return None;
    }
    lock(&place.entry).clone()
}

/// From now on this descriptor is this socket's. False: its number is too high.
pub(crate) fn put(fd: c_int, entry: Entry) -> bool {
    let Some(place) = place(fd) else {
        return false;
    };
    *lock(&place.entry) = Some(entry);
    place.is_watched.store(true, Ordering::Release);
    true
}

/// The descriptor is closed, or becomes another's.
pub(crate) fn remove(fd: c_int) -> Option<Entry> {
    let place = place(fd)?;
    if !place.is_watched.swap(false, Ordering::AcqRel) {
        return None;
    }
    let entry = lock(&place.entry).take()?;
    let mut inner = hold(&entry);
    inner.fds.retain(|one| *one != fd);
    inner.watches.retain(|one| one.fd != fd);
    drop(inner);
    Some(entry)
}

/// All that are watched.
pub(crate) fn all() -> Vec<(c_int, Entry)> {
    let watched = TABLE.iter().enumerate();
    let watched = watched.filter(|(_, place)| place.is_watched.load(Ordering::Acquire));
    watched
        .filter_map(|(fd, place)| Some((fd as c_int, lock(&place.entry).clone()?)))
        .collect()
}
