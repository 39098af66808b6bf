//! Which network namespace this is.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `SO_NETNS_COOKIE` (asm-generic/socket.h), Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of the calling thread's network namespace. The kernel gives no other namespace the
/// same one until the machine restarts; inode numbers, in contrast, are used again.
///
/// # Errors
/// Before Linux 5.14, and when a socket cannot be opened.
pub fn namespace_cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"))?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: an open socket, and room for the number of bytes given.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match got {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::namespace_cookie;

    #[test]
    fn a_namespace_has_one_cookie() {
        match namespace_cookie() {
            Ok(cookie) => {
                assert_ne!(cookie, 0);
                assert_eq!(namespace_cookie().unwrap(), cookie);
            }
            Err(error) => eprintln!("SKIPPED: no cookies of namespaces: {error}"),
        }
    }
}
