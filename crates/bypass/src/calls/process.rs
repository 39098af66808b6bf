//! Processes begin and become others: their connections come back from the card first.

use libc::{c_char, c_int, c_long};

use crate::moves::{all_come_back, never_again};
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

/// syscall(2), of which one call ends offload: what a program asks of `io_uring` nobody else sees.
///
/// # Safety
/// As of syscall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: as the program promises; arguments that it has not passed are not looked at.
    let outcome = unsafe { real::syscall(number, a, b, c, d, e, f) };
    if number == libc::SYS_io_uring_setup && outcome >= 0 {
        never_again();
    }
    outcome
}
