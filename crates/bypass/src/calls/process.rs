//! Processes begin and become others: their connections come back from the card first.

use libc::{c_char, c_int};

use crate::moves::all_come_back;
use crate::real;

/// fork(2).
///
/// # Safety
/// As of fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    all_come_back();
    // SAFETY: as the program promises.
    unsafe { real::fork() }
}

/// execve(2).
///
/// # Safety
/// As of execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    if crate::channel::is_here() {
        all_come_back();
    }
    // SAFETY: as the program promises.
    unsafe { real::execve(path, arguments, environment) }
}
