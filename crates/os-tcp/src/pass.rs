//! Messages with descriptors over Unix sockets that keep messages apart (`SOCK_SEQPACKET`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::sys;

/// Descriptors in one message, at most; more are closed.
pub const DESCRIPTORS_MAX: usize = 8;

/// Who is at the other end of a connection, as of when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub process: i32,
    /// Its user.
    pub user: u32,
}

/// Listens at a path, at which there must be no file.
///
/// # Errors
/// What the system says; a path of more than 107 bytes.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0)?;
    sys::bind(socket.as_fd(), &name(path)?)?;
    // SAFETY: an open socket.
    sys::checked(unsafe { libc::listen(socket.as_raw_fd(), 64) })?;
    Ok(socket)
}

/// Two sockets that are connected to each other. Nothing waits for either of them.
///
/// # Errors
/// What the system says.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut both = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, both.as_mut_ptr()) };
    sys::checked(made)?;
    // SAFETY: descriptors that were just made and that nobody else has.
    Ok(both.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into())
}

/// Connects to who listens at a path.
///
/// # Errors
/// What the system says.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
    sys::connect(socket.as_fd(), &name(path)?)?;
    Ok(socket)
}

fn name(path: &Path) -> io::Result<sys::Name> {
    let bytes = path.as_os_str().as_bytes();
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as u16,
        sun_path: [0; 108],
    };
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let mut name = sys::Name::empty();
    name.bytes = size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: the storage has room and alignment for every address.
    unsafe {
        (&raw mut name.storage)
            .cast::<libc::sockaddr_un>()
            .write(address)
    };
    Ok(name)
}

/// The next connection; `None` if none is waiting.
///
/// # Errors
/// What the system says, such as too many open files.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, Peer)>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let no_name = core::ptr::null_mut();
    let fd = listener.as_raw_fd();
    // SAFETY: an open socket; no name is asked for.
    let accepted = unsafe { libc::accept4(fd, no_name, core::ptr::null_mut(), flags) };
    let accepted = match sys::checked(accepted) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        other => other?,
    };
    // SAFETY: a descriptor that was just made and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted) };
    let mut room = [0; 12];
    let credentials = libc::SO_PEERCRED;
    sys::option_bytes(socket.as_fd(), libc::SOL_SOCKET, credentials, &mut room)?;
    let [p0, p1, p2, p3, u0, u1, u2, u3, ..] = room;
    let peer = Peer {
        process: i32::from_ne_bytes([p0, p1, p2, p3]),
        user: u32::from_ne_bytes([u0, u1, u2, u3]),
    };
    Ok(Some((socket, peer)))
}

/// Waits until a message can be received, or the other end has closed. False: neither in this time.
///
/// # Errors
/// What the system says.
pub fn wait_for(socket: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    Ok(wait_for_any(&[socket], patience)?[0])
}

/// As [`wait_for`], for several sockets: which of them are ready.
///
/// # Errors
/// What the system says.
pub fn wait_for_any<const N: usize>(
    sockets: &[BorrowedFd<'_>; N],
    patience: Duration,
) -> io::Result<[bool; N]> {
    let mut all = sockets.map(|socket| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let millis = patience.as_millis().min(60_000) as libc::c_int;
    // SAFETY: as many structures as the count says.
    match sys::checked(unsafe { libc::poll(all.as_mut_ptr(), N as libc::nfds_t, millis) }) {
        Ok(_) => Ok(all.map(|one| one.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// Room for the descriptors of one message, aligned like the header before them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);
// SAFETY: computes a length.
const CONTROL_BYTES: usize =
    unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) } as usize;

/// A message of `bytes`, with room for descriptors in `control`.
fn header(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain numbers and pointers, for which all zeros are a value.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    header
}

/// Sends a message with descriptors, of which the sender keeps its own.
///
/// # Errors
/// What the system says; `InvalidInput` for too many descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut header = header(&mut part, &mut control);
    let of_descriptors = size_of_val(descriptors.first().unwrap_or(&socket)) * descriptors.len();
    if descriptors.is_empty() {
        header.msg_control = core::ptr::null_mut();
        header.msg_controllen = 0;
    } else {
        // SAFETY: the header has a control area with room for one entry of this length, into which
        // as many descriptors are written.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(of_descriptors as u32) as _;
            let entry = libc::CMSG_FIRSTHDR(&raw const header);
            (*entry).cmsg_level = libc::SOL_SOCKET;
            (*entry).cmsg_type = libc::SCM_RIGHTS;
            (*entry).cmsg_len = libc::CMSG_LEN(of_descriptors as u32) as _;
            let to = libc::CMSG_DATA(entry).cast::<RawFd>();
            for (at, descriptor) in descriptors.iter().enumerate() {
                to.add(at).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    let fd = socket.as_raw_fd();
    // SAFETY: an open socket, and a header that points to live memory of the lengths in it. The
    // kernel only reads the bytes.
    let sent = unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a message: its length, which is that of `room` if it was longer, and the descriptors.
/// Length 0: the other end has closed. `None`: nothing has come.
///
/// # Errors
/// What the system says.
pub fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut header = header(&mut part, &mut control);
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
    // SAFETY: an open socket, and a header that points to live memory of the lengths in it.
    let got = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
    let Ok(got) = usize::try_from(got) else {
        let error = io::Error::last_os_error();
        let nothing = error.kind() == io::ErrorKind::WouldBlock;
        return if nothing { Ok(None) } else { Err(error) };
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has written the control area; its macros walk it within its length. Each
    // descriptor in it is new and nobody else's.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            let is_rights =
                (*entry).cmsg_level == libc::SOL_SOCKET && (*entry).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let bytes = (*entry).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let from = libc::CMSG_DATA(entry).cast::<RawFd>();
                for at in 0..bytes / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(from.add(at).read_unaligned()));
                }
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
    }
    Ok(Some((got, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_apart_and_descriptors_arrive() {
        let (a, b) = pair().unwrap();
        let (x, y) = pair().unwrap();
        send(a.as_fd(), b"one", &[x.as_fd(), x.as_fd()]).unwrap();
        send(a.as_fd(), b"three", &[]).unwrap();
        let mut room = [0; 4];
        let (got, mut descriptors) = receive(b.as_fd(), &mut room).unwrap().unwrap();
        assert_eq!((&room[..got], descriptors.len()), (&b"one"[..], 2));
        // They are x: what is sent there arrives at y.
        drop(x);
        let copy = descriptors.pop().unwrap();
        send(copy.as_fd(), b"!", &[]).unwrap();
        assert_eq!(receive(y.as_fd(), &mut room).unwrap().unwrap().0, 1);
        let (got, descriptors) = receive(b.as_fd(), &mut room).unwrap().unwrap();
        assert_eq!((&room[..got], descriptors.len()), (&b"thre"[..], 0));
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut room).unwrap().unwrap().0, 0);
    }

    #[test]
    fn descriptors_beyond_the_room_are_closed() {
        let (a, b) = pair().unwrap();
        let (x, y) = pair().unwrap();
        let many = [x.as_fd(); DESCRIPTORS_MAX];
        send(a.as_fd(), b"8", &many).unwrap();
        let over = send(a.as_fd(), b"9", &[x.as_fd(); DESCRIPTORS_MAX + 1]);
        assert_eq!(over.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (_, descriptors) = receive(b.as_fd(), &mut [0]).unwrap().unwrap();
        assert_eq!(descriptors.len(), DESCRIPTORS_MAX);
        drop((descriptors, x));
        // All copies are closed: the other end sees it.
        assert_eq!(receive(y.as_fd(), &mut [0]).unwrap().unwrap().0, 0);
    }

    #[test]
    fn who_connects_is_known_and_a_long_path_is_refused() {
        let path = std::env::temp_dir().join(format!("fairlead-pass-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = listen(&path).unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_none());
        let ours = connect(&path).unwrap();
        let (theirs, peer) = accept(listener.as_fd()).unwrap().unwrap();
        assert_eq!(peer.process, std::process::id() as i32);
        assert!(receive(theirs.as_fd(), &mut [0; 4]).unwrap().is_none());
        drop(ours);
        std::fs::remove_file(&path).unwrap();
        let long = std::path::PathBuf::from("/tmp/".to_owned() + &"x".repeat(120));
        assert!(listen(&long).is_err());
        drop(theirs);
    }
}
