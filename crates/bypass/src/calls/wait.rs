//! `poll`, `select` and the like. A socket is not handed off while a thread waits for it: the
//! thread would wait at a socket that has no connection any more.

use std::time::{Duration, Instant};

use libc::{c_int, c_long, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::entry::{InKernel, Place};
use crate::mover;
use crate::real;
use crate::table::{self, Entry, hold};

/// What one call waits for.
#[derive(Default)]
struct Waits {
    /// Sockets in the kernel, which stay there.
    _here: Vec<InKernel>,
    /// Sockets on the card, whose tokens end when they come back.
    carried: Vec<Entry>,
}

impl Waits {
    fn begin(fds: impl Iterator<Item = c_int>) -> Self {
        let mut all = Self::default();
        for entry in fds.filter_map(table::get) {
            let mut inner = hold(&entry);
            mover::now(&mut inner);
            let is_here = matches!(inner.place, Place::Kernel);
            if is_here {
                all._here.push(InKernel::with(&inner));
            }
            drop(inner);
            if !is_here {
                all.carried.push(entry);
            }
        }
        all
    }

    /// A socket came back meanwhile: what was seen is the end of its token.
    fn is_stale(&self) -> bool {
        let is_here = |entry: &Entry| matches!(hold(entry).place, Place::Kernel);
        self.carried.iter().any(is_here)
    }
}

/// Waits until `call` has something to say about these descriptors.
///
/// # Safety
/// `time` is null or the program's structure.
unsafe fn wait(
    fds: impl Iterator<Item = c_int> + Clone,
    time: *const timespec,
    mut call: impl FnMut(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let until = unsafe { time.as_ref() }.and_then(|time| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = time.tv_nsec.clamp(0, 999_999_999) as u32;
        Instant::now().checked_add(Duration::new(seconds, nanos))
    });
    let mut left;
    let mut time = time;
    loop {
        let waits = Waits::begin(fds.clone());
        let outcome = call(time);
        if outcome <= 0 || !waits.is_stale() {
            return outcome;
        }
        if let Some(until) = until {
            let rest = until.saturating_duration_since(Instant::now());
            left = timespec {
                tv_sec: rest.as_secs().min(i32::MAX as u64) as c_long,
                tv_nsec: rest.subsec_nanos().into(),
            };
            time = &raw const left;
        }
    }
}

/// ppoll(2).
///
/// # Safety
/// As of ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let known = if fds.is_null() { 0 } else { count as usize };
    // SAFETY: as many structures as the program says.
    let all = (0..known).map(|at| unsafe { (*fds.add(at)).fd });
    // SAFETY: as the program promises.
    unsafe { wait(all, time, |time| real::ppoll(fds, count, time, mask)) }
}

/// The form that the compiler calls where it knows the array's size.
///
/// # Safety
/// As of ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    let room = (bytes / size_of::<pollfd>()) as nfds_t;
    // SAFETY: as the program promises, and not beyond the array.
    unsafe { ppoll(fds, count.min(room), time, mask) }
}

/// poll(2).
///
/// # Safety
/// As of poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    let time = timespec {
        tv_sec: c_long::from(millis) / 1_000,
        tv_nsec: c_long::from(millis) % 1_000 * 1_000_000,
    };
    let time = match millis {
        ..0 => core::ptr::null(),
        _ => &raw const time,
    };
    // SAFETY: as the program promises.
    unsafe { ppoll(fds, count, time, core::ptr::null()) }
}

/// The form that the compiler calls where it knows the array's size.
///
/// # Safety
/// As of poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    millis: c_int,
    bytes: size_t,
) -> c_int {
    let room = (bytes / size_of::<pollfd>()) as nfds_t;
    // SAFETY: as the program promises, and not beyond the array.
    unsafe { poll(fds, count.min(room), millis) }
}

/// pselect(2).
///
/// # Safety
/// As of pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    reading: *mut fd_set,
    writing: *mut fd_set,
    failing: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [reading, writing, failing];
    // SAFETY: null or the program's sets, which the call overwrites.
    let asked = sets.map(|set| unsafe { set.as_ref() }.copied());
    let has = |fd: &c_int| {
        let mut sets = asked.iter().flatten();
        // SAFETY: a set, and a number below its size.
        sets.any(|set| unsafe { libc::FD_ISSET(*fd, set) })
    };
    let all = (0..count.clamp(0, libc::FD_SETSIZE as c_int)).filter(has);
    let call = |time| {
        for (set, asked) in sets.into_iter().zip(&asked) {
            if let Some(asked) = asked {
                // SAFETY: the program's set.
                unsafe { *set = *asked };
            }
        }
        // SAFETY: as the program promises.
        unsafe { real::pselect(count, reading, writing, failing, time, mask) }
    };
    // SAFETY: as the program promises.
    unsafe { wait(all, time, call) }
}

/// select(2). The time that is left is not written back, which POSIX allows.
///
/// # Safety
/// As of select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    reading: *mut fd_set,
    writing: *mut fd_set,
    failing: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: null or the program's structure.
    let limit = unsafe { time.as_ref() }.map(|time| timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec * 1_000,
    });
    let limit = limit.as_ref().map_or(core::ptr::null(), |limit| limit);
    // SAFETY: as the program promises.
    unsafe { pselect(count, reading, writing, failing, limit, core::ptr::null()) }
}
