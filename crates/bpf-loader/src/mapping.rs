//! A map's array, mapped into this process: no system call to read or write it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

/// Entries of type `T` that the kernel program may read and write at any moment: they are reached
/// by pointers, never by references.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    start: NonNull<T>,
    count: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and nothing in it is tied to one:
// entries are plain numbers.
unsafe impl<T: Copy + Send> Send for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps the array behind `map`, which has `count` entries of the size of `T`.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn of(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        // SAFETY: asks for a value, touches no memory of ours.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (count * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new shared mapping of a descriptor that is open; the kernel picks the address.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            start,
            count,
            bytes,
        })
    }

    /// Entries.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// An entry, aligned, and inside the mapping for as long as `self`.
    pub(crate) fn at(&self, index: usize) -> Option<*mut T> {
        // SAFETY: `index` is below `count`, so that the result stays inside the mapping.
        (index < self.count).then(|| unsafe { self.start.as_ptr().add(index) })
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
