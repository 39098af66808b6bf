//! Which descriptors are watched.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Not 0: this thread's calls are the library's own.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A locked socket. As long as it is locked, this thread's calls reach the C library as they are.
pub(crate) struct Held<'a> {
    inner: MutexGuard<'a, Inner>,
    _own: Own,
}

impl Deref for Held<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

/// As long as this is there, this thread's calls reach the C library as they are.
pub(crate) struct Own(());

impl Own {
    pub(crate) fn calls() -> Self {
        HELD.set(HELD.get() + 1);
        Self(())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// How often a socket that moves is looked at.
const PAUSE: Duration = Duration::from_micros(20);

/// Locks a socket, once it does not move any more.
pub(crate) fn hold(entry: &Entry) -> Held<'_> {
    loop {
        let held = hold_moving(entry);
        if !held.is_moving {
            return held;
        }
        drop(held);
        std::thread::sleep(PAUSE);
    }
}

/// Locks a socket that may be moving.
pub(crate) fn hold_moving(entry: &Entry) -> Held<'_> {
    Held {
        inner: lock(entry),
        _own: Own::calls(),
    }
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
