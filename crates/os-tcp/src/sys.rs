//! System calls, each with the types that it takes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use fairlead_base::{Address, Endpoint};
use libc::{c_int, socklen_t};

/// The result of a call that returns -1 for an error.
pub(crate) fn checked(result: c_int) -> io::Result<c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        other => Ok(other),
    }
}

/// A new socket, closed on exec.
pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, touches no memory of ours.
    let made = checked(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// A socket option of as many bytes as fit into `room`; their number.
pub(crate) fn option_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    room: &mut [u8],
) -> io::Result<usize> {
    let mut bytes = room.len() as socklen_t;
    let (to, fd) = (room.as_mut_ptr().cast(), socket.as_raw_fd());
    // SAFETY: an open socket, and room of the length given.
    checked(unsafe { libc::getsockopt(fd, level, name, to, &raw mut bytes) })?;
    Ok((bytes as usize).min(room.len()))
}

/// A socket option of four bytes.
pub(crate) fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<u32> {
    let mut room = [0; 4];
    option_bytes(socket, level, name, &mut room)?;
    Ok(u32::from_ne_bytes(room))
}

/// Sets a socket option to these bytes.
pub(crate) fn set_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let (from, fd) = (value.as_ptr().cast(), socket.as_raw_fd());
    // SAFETY: an open socket, and bytes of the length given.
    checked(unsafe { libc::setsockopt(fd, level, name, from, value.len() as socklen_t) })?;
    Ok(())
}

/// Sets a socket option of four bytes.
pub(crate) fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: u32) -> io::Result<()> {
    set_bytes(socket, level, name, &value.to_ne_bytes())
}

/// A number that an ioctl asks for: bytes in a queue.
pub(crate) fn queue_bytes(socket: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<u32> {
    let mut number: c_int = 0;
    // SAFETY: an open socket, and a request that writes one integer.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut number) })?;
    Ok(number.max(0) as u32)
}

/// An address as the system has it.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) bytes: socklen_t,
}

impl Name {
    pub(crate) fn empty() -> Self {
        Self {
            // SAFETY: plain numbers, for which all zeros are a value.
            storage: unsafe { core::mem::zeroed() },
            bytes: size_of::<libc::sockaddr_storage>() as socklen_t,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    /// For a socket of the family `AF_INET` or, mapped or not, `AF_INET6`.
    pub(crate) fn of(endpoint: Endpoint, family: c_int) -> Self {
        let mut name = Self::empty();
        let Endpoint { addr, port } = endpoint;
        if family == libc::AF_INET {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.v4_octets()),
                },
                sin_zero: [0; 8],
            };
            name.bytes = size_of::<libc::sockaddr_in>() as socklen_t;
            // SAFETY: the storage has room and alignment for every address.
            unsafe { name.as_mut_ptr().cast::<libc::sockaddr_in>().write(address) };
        } else {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: addr.0 },
                sin6_scope_id: 0,
            };
            name.bytes = size_of::<libc::sockaddr_in6>() as socklen_t;
            // SAFETY: the storage has room and alignment for every address.
            unsafe {
                name.as_mut_ptr()
                    .cast::<libc::sockaddr_in6>()
                    .write(address)
            };
        }
        name
    }

    /// The endpoint, if it is one of IP.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: of this family, the storage holds this structure.
                let address = unsafe { self.as_ptr().cast::<libc::sockaddr_in>().read() };
                Some(Endpoint {
                    addr: Address::v4(address.sin_addr.s_addr.to_ne_bytes()),
                    port: u16::from_be(address.sin_port),
                })
            }
            libc::AF_INET6 => {
                // SAFETY: of this family, the storage holds this structure.
                let address = unsafe { self.as_ptr().cast::<libc::sockaddr_in6>().read() };
                Some(Endpoint {
                    addr: Address(address.sin6_addr.s6_addr),
                    port: u16::from_be(address.sin6_port),
                })
            }
            _ => None,
        }
    }
}

/// `getsockname`, or `getpeername`.
pub(crate) fn name(socket: BorrowedFd<'_>, of_peer: bool) -> io::Result<Name> {
    let mut name = Name::empty();
    let (fd, to) = (socket.as_raw_fd(), name.as_mut_ptr());
    let bytes = &raw mut name.bytes;
    // SAFETY: an open socket, and room for every address, its length beside it.
    checked(unsafe {
        match of_peer {
            true => libc::getpeername(fd, to, bytes),
            false => libc::getsockname(fd, to, bytes),
        }
    })?;
    Ok(name)
}

/// `bind`. An address of IP may be one that only a route has, as those that the switch listens at.
pub(crate) fn bind(socket: BorrowedFd<'_>, to: &Name) -> io::Result<()> {
    match c_int::from(to.storage.ss_family) {
        libc::AF_INET => set(socket, libc::IPPROTO_IP, libc::IP_FREEBIND, 1)?,
        libc::AF_INET6 => set(socket, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)?,
        _ => {}
    }
    // SAFETY: an open socket, and an address of the length given.
    checked(unsafe { libc::bind(socket.as_raw_fd(), to.as_ptr(), to.bytes) })?;
    Ok(())
}

/// `connect`.
pub(crate) fn connect(socket: BorrowedFd<'_>, to: &Name) -> io::Result<()> {
    // SAFETY: an open socket, and an address of the length given.
    checked(unsafe { libc::connect(socket.as_raw_fd(), to.as_ptr(), to.bytes) })?;
    Ok(())
}

/// Sends bytes. Fewer may be taken than there are.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    let (fd, from) = (socket.as_raw_fd(), bytes.as_ptr().cast());
    // SAFETY: an open socket, and bytes of the length given.
    let sent = unsafe { libc::send(fd, from, bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes; 0 at the end of the stream.
pub(crate) fn receive(socket: BorrowedFd<'_>, room: &mut [u8], flags: c_int) -> io::Result<usize> {
    let (fd, to) = (socket.as_raw_fd(), room.as_mut_ptr().cast());
    // SAFETY: an open socket, and room of the length given.
    let got = unsafe { libc::recv(fd, to, room.len(), flags) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
