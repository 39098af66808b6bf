//! The shared memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_offload::layout::{self, BYTES, COMMAND_BYTES};
use fairlead_offload::ring::Span;

use crate::counted;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The shared memory, mapped. It cannot change its length while it is mapped: it is sealed.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    file: OwnedFd,
}

// SAFETY: the mapping is not tied to a thread; words are atomic, and bytes are only copied.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody has a reference into it that outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
    }
}

impl Shared {
    /// Makes one, all zeros.
    ///
    /// # Errors
    /// What the system says.
    pub fn make() -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a string that ends in zero.
        let made = unsafe { libc::memfd_create(c"fairlead-ring".as_ptr(), flags) };
        counted(made as isize)?;
        // SAFETY: a descriptor that was just made and that nobody else has.
        let file = unsafe { OwnedFd::from_raw_fd(made) };
        // SAFETY: an open descriptor, and a length.
        counted(unsafe { libc::ftruncate(file.as_raw_fd(), BYTES as libc::off_t) } as isize)?;
        // SAFETY: an open descriptor, and a number.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
        counted(sealed as isize)?;
        Self::map(file)
    }

    /// Maps what another process has made.
    ///
    /// # Errors
    /// `InvalidData` if it is shorter, or could become shorter; else what the system says.
    pub fn map(file: OwnedFd) -> io::Result<Self> {
        // SAFETY: an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let bytes = std::fs::File::from(file.try_clone()?).metadata()?.len();
        if seals < 0 || seals & SEALS != SEALS || bytes != BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (at, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping of a file that has this length and keeps it.
        let base = unsafe { libc::mmap(at, BYTES, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, file })
    }

    /// The file, for the other side.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The memory from a place on.
    fn at(&self, place: usize, bytes: usize) -> *mut u8 {
        assert!(
            place <= BYTES && bytes <= BYTES - place,
            "inside the memory"
        );
        // SAFETY: inside the mapping, as was just checked.
        unsafe { self.base.as_ptr().add(place) }
    }

    /// A word.
    ///
    /// # Panics
    /// If the place is outside of the memory, or not a multiple of four. Places are computed, never
    /// received.
    pub fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place.is_multiple_of(4), "aligned");
        let at = self.at(place, 4).cast();
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; both sides access
        // words atomically only.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Writes a message of the command ring.
    pub fn put_command(&self, number: u32, bytes: &[u8; COMMAND_BYTES]) {
        let place = layout::command_at(number);
        for (at, four) in bytes.chunks_exact(4).enumerate() {
            let word = four
                .first_chunk()
                .map_or(0, |four| u32::from_ne_bytes(*four));
            self.word(place + at * 4).store(word, Ordering::Relaxed);
        }
    }

    /// Reads a message of the command ring, once.
    pub fn command(&self, number: u32) -> [u8; COMMAND_BYTES] {
        let place = layout::command_at(number);
        let mut bytes = [0; COMMAND_BYTES];
        for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
            let word = self.word(place + at * 4).load(Ordering::Relaxed);
            four.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Copies bytes of a span out.
    pub fn copy_out(&self, buffer: usize, span: Span, to: &mut Vec<u8>) {
        for (at, len) in [(span.at, span.first), (0, span.second)] {
            let from = self.at(buffer + at as usize, len as usize);
            let had = to.len();
            to.resize(had + len as usize, 0);
            // SAFETY: inside the mapping and inside the vector. The program may change the bytes
            // meanwhile; then some mixture is copied, which harms its own stream.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr().add(had), len as usize) };
        }
    }

    /// Copies bytes of a program's memory into a span.
    ///
    /// # Safety
    /// From `from` on as many bytes as the span has can be read.
    pub unsafe fn copy_in(&self, buffer: usize, span: Span, from: *const u8) {
        let to = self.at(buffer + span.at as usize, span.first as usize);
        // SAFETY: readable as the caller promises, writable as part of the mapping.
        unsafe { to.copy_from_nonoverlapping(from, span.first as usize) };
        let to = self.at(buffer, span.second as usize);
        // SAFETY: as above.
        unsafe {
            to.copy_from_nonoverlapping(from.add(span.first as usize), span.second as usize);
        };
    }

    /// Copies bytes of a span into a program's memory.
    ///
    /// # Safety
    /// From `to` on as many bytes as the span has can be written.
    pub unsafe fn copy_to(&self, buffer: usize, span: Span, to: *mut u8) {
        let from = self.at(buffer + span.at as usize, span.first as usize);
        // SAFETY: readable as part of the mapping, writable as the caller promises.
        unsafe { from.copy_to_nonoverlapping(to, span.first as usize) };
        let from = self.at(buffer, span.second as usize);
        // SAFETY: as above.
        unsafe {
            from.copy_to_nonoverlapping(to.add(span.first as usize), span.second as usize);
        };
    }

    fn parts(&self, buffer: usize, span: Span) -> [libc::iovec; 2] {
        [(span.at, span.first), (0, span.second)].map(|(at, len)| libc::iovec {
            iov_base: self.at(buffer + at as usize, len as usize).cast(),
            iov_len: len as usize,
        })
    }

    /// Receives from a socket into a span; 0 at the end of the stream.
    ///
    /// # Errors
    /// What the system says.
    pub fn receive(&self, socket: BorrowedFd<'_>, buffer: usize, span: Span) -> io::Result<usize> {
        let parts = self.parts(buffer, span);
        // SAFETY: two parts inside the mapping.
        counted(unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) })
    }

    /// Sends a span to a socket; `more`: more follows at once.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        buffer: usize,
        span: Span,
        more: bool,
    ) -> io::Result<usize> {
        let mut parts = self.parts(buffer, span);
        // SAFETY: plain numbers and pointers, for which all zeros are a value.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = 2;
        let more = if more { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
        let fd = socket.as_raw_fd();
        // SAFETY: two parts inside the mapping.
        counted(unsafe { libc::sendmsg(fd, &raw const header, flags) })
    }

    /// Reads a file into a span.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        buffer: usize,
        span: Span,
    ) -> io::Result<usize> {
        let parts = self.parts(buffer, span);
        let (fd, offset) = (file.as_raw_fd(), offset as libc::off64_t);
        // SAFETY: two parts inside the mapping.
        counted(unsafe { libc::preadv64(fd, parts.as_ptr(), 2, offset) })
    }
}

/// A file in memory, without a name, for bytes that are passed to another process.
///
/// # Errors
/// What the system says.
pub fn scratch() -> io::Result<OwnedFd> {
    // SAFETY: a string that ends in zero.
    let made = unsafe { libc::memfd_create(c"fairlead-bytes".as_ptr(), libc::MFD_CLOEXEC) };
    counted(made as isize)?;
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Sends a range of a file to a socket; 0: the file is shorter.
///
/// # Errors
/// What the system says.
pub fn send_range(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: u32,
) -> io::Result<usize> {
    let mut offset = offset as libc::off64_t;
    let (to, from) = (socket.as_raw_fd(), file.as_raw_fd());
    // SAFETY: open descriptors, and an offset to be moved on.
    counted(unsafe { libc::sendfile64(to, from, &raw mut offset, len as usize) })
}

/// Makes a descriptor's calls return at once.
///
/// # Errors
/// What the system says.
pub fn never_wait(file: BorrowedFd<'_>) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: an open descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    counted(flags as isize)?;
    // SAFETY: as above, and numbers.
    counted(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } as isize)?;
    Ok(())
}

/// Sets an option of TCP, or of sockets, by a number.
///
/// # Errors
/// What the system says.
pub fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, bytes) = (
        socket.as_raw_fd(),
        size_of::<libc::c_int>() as libc::socklen_t,
    );
    let from = (&raw const value).cast();
    // SAFETY: an open socket, and a number of this length.
    counted(unsafe { libc::setsockopt(fd, level, name, from, bytes) } as isize)?;
    Ok(())
}

/// The socket's next close sends a RST.
///
/// # Errors
/// What the system says.
pub fn abort_on_close(socket: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let (fd, from) = (socket.as_raw_fd(), (&raw const linger).cast());
    let bytes = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: an open socket, and a structure of this length.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, bytes) };
    counted(set as isize)?;
    Ok(())
}

/// Ends one direction (`SHUT_WR`), or both (`SHUT_RDWR`).
pub fn shut(socket: BorrowedFd<'_>, both: bool) {
    let how = if both { libc::SHUT_RDWR } else { libc::SHUT_WR };
    // The peer may have ended it already.
    // SAFETY: an open socket, and a number.
    let _ = unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_words_messages_and_bytes() {
        let ours = Shared::make().unwrap();
        let theirs = Shared::map(ours.file().try_clone_to_owned().unwrap()).unwrap();
        ours.word(64).store(7, Ordering::Relaxed);
        assert_eq!(theirs.word(64).load(Ordering::Relaxed), 7);
        let message = *b"sixteen byte msg";
        ours.put_command(8_191, &message);
        assert_eq!(theirs.command(8_191 + layout::COMMANDS), message);
        let span = Span::of(layout::SEND_BYTES - 3, 5, layout::SEND_BYTES);
        // SAFETY: five bytes.
        unsafe { ours.copy_in(layout::send_at(5), span, b"abcde".as_ptr()) };
        let mut out = Vec::new();
        theirs.copy_out(layout::send_at(5), span, &mut out);
        assert_eq!(out, b"abcde");
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let file = std::env::temp_dir().join(format!("fairlead-ring-{}", std::process::id()));
        let open = std::fs::File::create(&file).unwrap();
        open.set_len(BYTES as u64).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(Shared::map(open.into()).is_err());
    }
}
