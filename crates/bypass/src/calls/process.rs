//! Processes begin and become others: their connections come back from the card first.

use fairlead_offload::Reason;
use libc::{c_char, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::mover::{Still, still};
use crate::real;

/// fork(2).
///
/// # Safety
/// As of fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    let _still = still(Reason::Process);
    // SAFETY: as the program promises.
    unsafe { real::fork() }
}

/// Another program takes the place of this one, or begins beside it, with copies of descriptors.
fn before_exec() -> Option<Still> {
    crate::channel::is_here().then(|| still(Reason::Process))
}

/// Declares functions that begin a program.
macro_rules! programs {
    ($($name:ident($($argument:ident: $kind:ty),*);)+) => {
        $(
            /// As of the function of this name: connections come back first.
            ///
            /// # Safety
            /// As of that function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                let _still = before_exec();
                // SAFETY: as the program promises.
                unsafe { real::$name($($argument),*) }
            }
        )+
    };
}

type Strings = *const *const c_char;

programs! {
    execve(path: *const c_char, arguments: Strings, environment: Strings);
    execv(path: *const c_char, arguments: Strings);
    execvp(file: *const c_char, arguments: Strings);
    execvpe(file: *const c_char, arguments: Strings, environment: Strings);
    fexecve(fd: c_int, arguments: Strings, environment: Strings);
    posix_spawn(process: *mut pid_t, path: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char, environment: *const *mut c_char);
    posix_spawnp(process: *mut pid_t, file: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char, environment: *const *mut c_char);
}
