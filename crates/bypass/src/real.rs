//! The functions of the C library behind those of this one.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, msghdr, off64_t, sockaddr, socklen_t,
};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec};
use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

/// The address of the next function of this name.
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let address = known.load(Ordering::Relaxed);
    if !address.is_null() {
        return address;
    }
    // SAFETY: a string that ends in zero.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!address.is_null(), "the C library has {name:?}");
    known.store(address, Ordering::Relaxed);
    address
}

/// Declares functions: the name here, the symbol, the arguments and the result.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)+) => {
        $(
            /// The C library's.
            ///
            /// # Safety
            /// As of the function of this name.
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
                static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                let address = next($symbol, &KNOWN);
                // SAFETY: a type; what its functions ask for is said above.
                type Function = unsafe extern "C" fn($($kind),*) -> $result;
                // SAFETY: the symbol is a function of this type in every C library of Linux;
                // variadic ones take these arguments in the same registers.
                let function = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
                // SAFETY: the caller keeps what the function asks for.
                unsafe { function($($argument),*) }
            }
        )+
    };
}

functions! {
    socket = c"socket" (family: c_int, kind: c_int, protocol: c_int) -> c_int;
    accept4 = c"accept4" (fd: c_int, to: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect = c"connect" (fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int;
    read = c"read" (fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    readv = c"readv" (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv = c"recv" (fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom = c"recvfrom" (fd: c_int, to: *mut c_void, len: size_t, flags: c_int,
        name: *mut sockaddr, name_len: *mut socklen_t) -> ssize_t;
    recvmsg = c"recvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    write = c"write" (fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    writev = c"writev" (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send = c"send" (fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto = c"sendto" (fd: c_int, from: *const c_void, len: size_t, flags: c_int,
        name: *const sockaddr, name_len: socklen_t) -> ssize_t;
    sendmsg = c"sendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendfile64 = c"sendfile64" (fd: c_int, file: c_int, offset: *mut off64_t, len: size_t)
        -> ssize_t;
    splice = c"splice" (from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t,
        len: size_t, flags: c_uint) -> ssize_t;
    close = c"close" (fd: c_int) -> c_int;
    shutdown = c"shutdown" (fd: c_int, how: c_int) -> c_int;
    dup = c"dup" (fd: c_int) -> c_int;
    dup2 = c"dup2" (fd: c_int, to: c_int) -> c_int;
    dup3 = c"dup3" (fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl = c"fcntl" (fd: c_int, order: c_int, argument: c_ulong) -> c_int;
    ioctl = c"ioctl" (fd: c_int, order: c_ulong, argument: *mut c_void) -> c_int;
    epoll_ctl = c"epoll_ctl" (epoll: c_int, order: c_int, fd: c_int, event: *mut epoll_event)
        -> c_int;
    ppoll = c"ppoll" (fds: *mut pollfd, count: nfds_t, time: *const timespec,
        mask: *const sigset_t) -> c_int;
    pselect = c"pselect" (count: c_int, reading: *mut fd_set, writing: *mut fd_set,
        failing: *mut fd_set, time: *const timespec, mask: *const sigset_t) -> c_int;
    setsockopt = c"setsockopt" (fd: c_int, level: c_int, name: c_int, value: *const c_void,
        len: socklen_t) -> c_int;
    getsockopt = c"getsockopt" (fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        len: *mut socklen_t) -> c_int;
    getsockname = c"getsockname" (fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername = c"getpeername" (fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fork = c"fork" () -> c_int;
    execve = c"execve" (path: *const c_char, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    execv = c"execv" (path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp = c"execvp" (file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe = c"execvpe" (file: *const c_char, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    fexecve = c"fexecve" (fd: c_int, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    posix_spawn = c"posix_spawn" (process: *mut pid_t, path: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp = c"posix_spawnp" (process: *mut pid_t, file: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    syscall = c"syscall" (number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long,
        f: c_long) -> c_long;
    close_range = c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fdopen = c"fdopen" (fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    recvmmsg = c"recvmmsg" (fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        time: *mut timespec) -> c_int;
    sendmmsg = c"sendmmsg" (fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int)
        -> c_int;
    fclose = c"fclose" (file: *mut libc::FILE) -> c_int;
}
