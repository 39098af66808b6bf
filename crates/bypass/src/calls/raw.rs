//! syscall(2): system calls by their numbers. Some C programs close and accept that way (libuv).

use libc::{c_int, c_long, c_uint, c_ulong};

use super::{descriptors as d, process, receive as r, send as s, sockets as so, wait};
use crate::moves::never_again;
use crate::real;

/// syscall(2). What has a function here is that function; the first `io_uring` ends offload: what
/// a program asks of it nobody else sees.
///
/// # Safety
/// As of the system call of this number.
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
    let all = [a, b, c, d, e, f];
    // SAFETY: as the program promises; arguments that it has not passed are not looked at.
    unsafe {
        if let Some(outcome) = known(number, all) {
            return outcome;
        }
        let outcome = real::syscall(number, a, b, c, d, e, f);
        if number == libc::SYS_io_uring_setup && outcome >= 0 {
            never_again();
        }
        outcome
    }
}

/// A number as the kernel takes it: of a register's lower half.
fn int(register: c_long) -> c_int {
    register as c_int
}

/// The call by its function; `None`: it has nothing to do with sockets.
///
/// # Safety
/// As of [`syscall`].
unsafe fn known(number: c_long, [a, b, c, e, f, g]: [c_long; 6]) -> Option<c_long> {
    let fd = int(a);
    // SAFETY: the kernel's calls have the arguments of their functions, in this order.
    let outcome = unsafe {
        match number {
            libc::SYS_read => r::read(fd, b as _, c as _) as c_long,
            libc::SYS_write => s::write(fd, b as _, c as _) as c_long,
            libc::SYS_readv => r::readv(fd, b as _, int(c)) as c_long,
            libc::SYS_writev => s::writev(fd, b as _, int(c)) as c_long,
            libc::SYS_recvfrom => r::recvfrom(fd, b as _, c as _, int(e), f as _, g as _) as c_long,
            libc::SYS_sendto => s::sendto(fd, b as _, c as _, int(e), f as _, g as _) as c_long,
            libc::SYS_recvmsg => r::recvmsg(fd, b as _, int(c)) as c_long,
            libc::SYS_sendmsg => s::sendmsg(fd, b as _, int(c)) as c_long,
            libc::SYS_sendfile => s::sendfile64(fd, int(b), c as _, e as _) as c_long,
            libc::SYS_splice => {
                s::splice(fd, b as _, int(c), e as _, f as _, g as c_uint) as c_long
            }
            libc::SYS_close => d::close(fd).into(),
            libc::SYS_close_range => d::close_range(a as c_uint, b as c_uint, int(c)).into(),
            libc::SYS_dup => d::dup(fd).into(),
            libc::SYS_dup3 => d::dup3(fd, int(b), int(c)).into(),
            libc::SYS_fcntl => d::fcntl(fd, int(b), c as c_ulong).into(),
            libc::SYS_epoll_ctl => d::epoll_ctl(fd, int(b), int(c), e as _).into(),
            libc::SYS_socket => so::socket(fd, int(b), int(c)).into(),
            libc::SYS_accept => so::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => so::accept4(fd, b as _, c as _, int(e)).into(),
            libc::SYS_connect => so::connect(fd, b as _, c as _).into(),
            libc::SYS_shutdown => so::shutdown(fd, int(b)).into(),
            libc::SYS_setsockopt => so::setsockopt(fd, int(b), int(c), e as _, f as _).into(),
            libc::SYS_getsockopt => so::getsockopt(fd, int(b), int(c), e as _, f as _).into(),
            libc::SYS_getsockname => so::getsockname(fd, b as _, c as _).into(),
            libc::SYS_getpeername => so::getpeername(fd, b as _, c as _).into(),
            libc::SYS_ioctl => so::ioctl(fd, b as c_ulong, c as _).into(),
            libc::SYS_ppoll => wait::ppoll(a as _, b as _, c as _, e as _).into(),
            libc::SYS_execve => process::execve(a as _, b as _, c as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => d::dup2(fd, int(b)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => wait::poll(a as _, b as _, int(c)).into(),
            _ => return None,
        }
    };
    Some(outcome)
}
