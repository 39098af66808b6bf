//! A counter of the kernel's (eventfd) that wakes a card.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::counted;

/// The doorbell of one program.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one.
    ///
    /// # Errors
    /// What the system says.
    pub fn make() -> io::Result<Self> {
        // SAFETY: numbers only.
        let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        counted(made as isize)?;
        // SAFETY: a descriptor that was just made and that nobody else has.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// One that another process has made.
    pub fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Rings it.
    pub fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        // It fails only if it rings already.
        // SAFETY: an open descriptor, and eight bytes.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Silences it.
    pub fn silence(&self) {
        let mut count = [0; 8];
        // SAFETY: an open descriptor, and room for eight bytes.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
