//! What becomes of connected sockets when their process executes another program: some are left
//! open for that program, and the others are served to their end by a child.

use std::io;
use std::mem::forget;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sys::{self, checked};

/// A copy of the descriptor that stays open when this process executes another program. Nobody
/// closes it before.
///
/// # Errors
/// No descriptor is left.
pub fn leave_open(socket: BorrowedFd<'_>) -> io::Result<RawFd> {
    // SAFETY: an open descriptor; makes another one, touches no memory of ours.
    checked(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, 3) })
}

/// Takes over the Unix socket that the program before left open under this number. Call it once,
/// before anything else can own it. `None` if it is something else.
pub fn take_over(number: RawFd) -> Option<OwnedFd> {
    if number < 3 || !is(number, libc::SO_DOMAIN, libc::AF_UNIX) {
        return None;
    }
    // SAFETY: an open descriptor, which the caller says nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: an open descriptor. If it fails, the next program has it, too.
    unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    Some(socket)
}

/// True for a TCP socket that does not listen.
pub fn is_connection(socket: BorrowedFd<'_>) -> bool {
    let number = socket.as_raw_fd();
    is(number, libc::SO_PROTOCOL, libc::IPPROTO_TCP) && is(number, libc::SO_ACCEPTCONN, 0)
}

/// True for a socket with this value of an option.
fn is(number: RawFd, option: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: for the time of the call; a number that is not open makes it fail.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    sys::option(socket, libc::SOL_SOCKET, option).is_ok_and(|found| found == value as u32)
}

/// Begins a process of its own that does `work` and ends. It has the memory of this one as it is
/// now, one thread, and of its descriptors those in `kept`. It is detached: init collects its exit
/// status. Signals end it as they end any process.
///
/// Locks that other threads hold now stay held there for ever: `work` must not need them. It may
/// allocate memory.
///
/// # Errors
/// No further process can be made.
pub fn divide(kept: &[RawFd], work: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the child ends by `_exit`, without destructors of this process's values. The C
    // library keeps its allocator usable in it.
    match checked(unsafe { libc::fork() })? {
        0 => {
            // SAFETY: as above. The process in between ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let work = AssertUnwindSafe(|| {
                    settle(kept);
                    work();
                });
                forget(catch_unwind(work));
            }
            // SAFETY: ends the process, and runs nothing of ours.
            unsafe { libc::_exit(c_int_of(child < 0)) }
        }
        between => {
            let mut status = 0;
            // SAFETY: a child of ours, and room for its status.
            while unsafe { libc::waitpid(between, &raw mut status, 0) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            match status {
                0 => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            }
        }
    }
}

/// From now on signals of the terminal do not reach this process.
pub fn leave_terminal() {
    // SAFETY: changes what the kernel knows of this process, and no memory.
    unsafe { libc::setsid() };
}

fn c_int_of(failed: bool) -> libc::c_int {
    libc::c_int::from(failed)
}

/// Signals as at the start of a process, and no descriptors but these.
fn settle(kept: &[RawFd]) {
    // The log's thread is not here.
    std::panic::set_hook(Box::new(|_| {}));
    // SAFETY: a set of our own that is emptied before it is used.
    unsafe {
        let mut none: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, core::ptr::null_mut());
    }
    // Whoever reads our standard output must not wait for this process's end.
    // SAFETY: a path that ends with NUL.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    for standard in 0..3 {
        // SAFETY: replaces a descriptor by another one of this process.
        unsafe { libc::dup2(nothing, standard) };
    }
    let mut kept: Vec<RawFd> = kept.iter().copied().filter(|&one| one > 2).collect();
    kept.sort_unstable();
    let mut from = 3;
    for one in kept.into_iter().chain([RawFd::MAX]) {
        if from < one {
            // SAFETY: nothing here uses descriptors other than those that are kept.
            unsafe { libc::syscall(libc::SYS_close_range, from, one - 1, 0) };
        }
        from = one.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::pass;

    fn connected() -> (TcpStream, TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        (client, server, listener)
    }

    #[test]
    fn a_way_to_the_next_program_is_left_and_taken_over() {
        let (mut client, server, listener) = connected();
        let (ours, theirs) = pass::pair().unwrap();
        let left = leave_open(ours.as_fd()).unwrap();
        drop(ours);
        pass::send(theirs.as_fd(), b"c", &[server.as_fd(), listener.as_fd()]).unwrap();
        drop((server, theirs));
        let file = std::fs::File::open("/dev/null").unwrap();
        for number in [0, file.as_raw_fd(), client.as_raw_fd(), 1_000_000, -1] {
            assert!(take_over(number).is_none(), "{number}");
        }
        let taken = take_over(left).unwrap();
        let (_, sockets) = pass::receive(taken.as_fd(), &mut [0]).unwrap().unwrap();
        let kinds: Vec<_> = sockets
            .iter()
            .map(|one| is_connection(one.as_fd()))
            .collect();
        assert_eq!(kinds, [true, false]);
        let mut server = TcpStream::from(sockets.into_iter().next().unwrap());
        client.write_all(b"still here").unwrap();
        let mut heard = [0; 10];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"still here");
    }

    #[test]
    fn a_process_of_its_own_serves_to_the_end() {
        let (mut client, mut server, listener) = connected();
        let (mut other, elsewhere, _) = connected();
        let kept = [server.as_raw_fd()];
        divide(&kept, || {
            let mut heard = [0; 4];
            server.read_exact(&mut heard).unwrap();
            server.write_all(&heard).unwrap();
            panic!("it ends all the same");
        })
        .unwrap();
        drop((server, listener));
        // It is not kept there, so that this is its end.
        drop(elsewhere);
        assert_eq!(other.read(&mut [0; 1]).unwrap(), 0);
        client.write_all(b"ping").unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"ping");
    }
}
