//! Blocks of an HTTP cache in one file that is memory: `sendfile` sends them without a copy.
//!
//! Written by `pwrite`, so that a full file system is an error and no signal; read through a
//! mapping. A block that becomes free is punched out of the file. What `sendfile` queued of it
//! keeps the old pages, and a block that is written again gets new ones: without that, a client
//! would get bytes of another object.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;

use fairlead_http_cache::{BlockSize, Extent, Store};

/// The name that the kernel shows for the file, in `/proc`.
const NAME: &CStr = c"fairlead-cache";

/// A file of blocks, in memory or on a file system that is memory.
#[derive(Debug)]
pub struct BlockFile {
    file: File,
    block: BlockSize,
    mapping: Mapping,
    /// Blocks that have memory. A look at another one through the mapping would make it, or end
    /// the process where the file system is full.
    written: Vec<u64>,
    /// Free blocks that could not be punched: not used again before they are.
    unpunched: BTreeSet<u32>,
}

/// Sends blocks of a file to sockets.
#[derive(Debug)]
pub struct BlockSender {
    file: File,
}

impl BlockSender {
    /// Sends part of the file, without a copy; how many bytes the socket took. They may be
    /// released at once: what is queued keeps its pages.
    ///
    /// # Errors
    /// As of `sendfile`.
    pub fn send(&self, to: BorrowedFd<'_>, part: Extent) -> Result<usize> {
        let (to, from) = (to.as_raw_fd(), self.file.as_raw_fd());
        let mut offset = i64::try_from(part.at.0).unwrap_or(i64::MAX);
        // SAFETY: both descriptors are open, and the offset is a variable of ours.
        let sent = unsafe { libc::sendfile(to, from, &raw mut offset, part.len as usize) };
        match usize::try_from(sent) {
            // The file never ends before its blocks do.
            Ok(0) if part.len > 0 => Err(ErrorKind::UnexpectedEof.into()),
            Ok(sent) => Ok(sent),
            Err(_) => Err(Error::last_os_error()),
        }
    }
}

/// Bytes that are free at a folder, if what is there is memory (tmpfs).
///
/// # Errors
/// As of `statfs`.
pub fn free_memory_at(folder: &Path) -> Result<Option<u64>> {
    let folder = File::open(folder)?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and there is room for what the call writes.
    let done = unsafe { libc::fstatfs(folder.as_raw_fd(), found.as_mut_ptr()) };
    if done != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written all of it.
    let found = unsafe { found.assume_init() };
    let is_memory = found.f_type == libc::TMPFS_MAGIC;
    let block = u64::try_from(found.f_bsize).unwrap_or_default();
    Ok(is_memory.then(|| block.saturating_mul(found.f_bavail)))
}

/// Why reading is sound: nobody shrinks the file.
#[derive(Debug)]
struct Mapping {
    memory: *const u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is read through shared references only.
unsafe impl Send for Mapping {}
// SAFETY: as above; reading from several threads is no race, and writing needs `&mut BlockFile`.
unsafe impl Sync for Mapping {}

impl BlockFile {
    /// In memory, gone with its last descriptor. Its size is sealed.
    ///
    /// # Errors
    /// The kernel has no memory files, or the size is too large.
    pub fn in_memory(block: BlockSize, lines: u32) -> Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string with its end; the descriptor is new, and owned from here.
        let file = unsafe {
            let descriptor = libc::memfd_create(NAME.as_ptr(), flags);
            if descriptor < 0 {
                return Err(Error::last_os_error());
            }
            File::from_raw_fd(descriptor)
        };
        file.set_len(bytes_of(block, lines)?)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the call takes a number, and no memory of ours.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(Error::last_os_error());
        }
        Self::map(file, block, lines)
    }

    /// The file at `path`, which outlives the process; on tmpfs it is memory. It is locked, and
    /// must be where only its owner can write: a file that another process makes shorter ends
    /// this one by a signal. True if it was there in this size.
    ///
    /// # Errors
    /// Another process has it, it is no plain file, or the file system has no holes.
    pub fn open(path: &Path, block: BlockSize, lines: u32) -> Result<(Self, bool)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        let metadata = file.metadata()?;
        // SAFETY: the call takes nothing, and cannot fail.
        let we = unsafe { libc::geteuid() };
        if !metadata.is_file() || metadata.uid() != we || metadata.mode() & 0o077 != 0 {
            let what = "no plain file of this user alone";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        file.try_lock()?;
        let bytes = bytes_of(block, lines)?;
        let was_there = metadata.len() == bytes;
        if !was_there {
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        Ok((Self::map(file, block, lines)?, was_there))
    }

    fn map(file: File, block: BlockSize, lines: u32) -> Result<Self> {
        let bytes = usize::try_from(bytes_of(block, lines)?)
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "too large"))?;
        let bytes = bytes.max(1);
        let descriptor = file.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let memory = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                flags,
                descriptor,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        // SAFETY: advice about the mapping just made. Punching works on small pages.
        unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
        let memory = memory.cast_const().cast();
        let mut this = Self {
            file,
            block,
            mapping: Mapping { memory, bytes },
            written: vec![0; lines.div_ceil(64) as usize],
            unpunched: BTreeSet::new(),
        };
        this.find_written()?;
        Ok(this)
    }

    /// Notes which blocks have memory.
    fn find_written(&mut self) -> Result<()> {
        let size = u64::from(self.block.bytes());
        let mut at = 0;
        while let Some(from) = self.seek(at, libc::SEEK_DATA)? {
            let to = self.seek(from, libc::SEEK_HOLE)?.unwrap_or(from + 1);
            for line in from / size..to.div_ceil(size) {
                self.note_written(line as u32, true);
            }
            at = to;
        }
        Ok(())
    }

    /// Where data, or a hole, is next. `None` behind the last.
    fn seek(&self, from: u64, whence: libc::c_int) -> Result<Option<u64>> {
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        // SAFETY: the call takes numbers, and no memory of ours.
        let at = unsafe { libc::lseek(self.file.as_raw_fd(), from, whence) };
        match u64::try_from(at) {
            Ok(at) => Ok(Some(at)),
            Err(_) => match Error::last_os_error() {
                end if end.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                error => Err(error),
            },
        }
    }

    fn note_written(&mut self, line: u32, is_written: bool) {
        let bit = 1 << (line % 64);
        if let Some(word) = self.written.get_mut(line as usize / 64) {
            match is_written {
                true => *word |= bit,
                false => *word &= !bit,
            }
        }
    }

    fn is_written(&self, line: u32) -> bool {
        let word = self.written.get(line as usize / 64);
        word.is_some_and(|word| word >> (line % 64) & 1 == 1)
    }

    /// Sends its blocks.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn sender(&self) -> Result<BlockSender> {
        let file = self.file.try_clone()?;
        Ok(BlockSender { file })
    }

    /// Memory that the file takes now, in bytes.
    ///
    /// # Errors
    /// As of `fstat`.
    pub fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Punches consecutive blocks out of the file.
    fn punch(&self, first: u32, count: u32) -> bool {
        let size = i64::from(self.block.bytes());
        let (at, len) = (i64::from(first) * size, i64::from(count) * size);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        loop {
            // SAFETY: the call takes numbers, and no memory of ours.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) } == 0 {
                return true;
            }
            if Error::last_os_error().kind() != ErrorKind::Interrupted {
                return false;
            }
        }
    }
}

impl Store for BlockFile {
    fn write(&mut self, at: Extent, bytes: &[u8]) -> bool {
        let line = self.block.index_of(at.at.0) as u32;
        if self.unpunched.contains(&line) {
            if !self.punch(line, 1) {
                return false;
            }
            self.unpunched.remove(&line);
        }
        let fits = at.end() <= self.mapping.bytes as u64 && bytes.len() == at.len as usize;
        let is_written = fits && self.file.write_all_at(bytes, at.at.0).is_ok();
        if is_written {
            self.note_written(line, true);
        }
        is_written
    }

    fn slice(&self, at: Extent) -> Option<&[u8]> {
        let line = self.block.index_of(at.at.0) as u32;
        if at.end() > self.mapping.bytes as u64 || !self.is_written(line) {
            return None;
        }
        // SAFETY: the range lies in the mapping, which lives as long as `self`. Its pages were
        // written before, and change only through `&mut self`; the file is sealed or locked.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.mapping.memory.add(at.at.0 as usize), at.len as usize)
        };
        Some(bytes)
    }

    fn release(&mut self, lines: &[u32]) {
        let mut runs = lines.chunk_by(|one, next| one.checked_add(1) == Some(*next));
        runs.by_ref().for_each(|run| {
            if !self.punch(run[0], run.len() as u32) {
                self.unpunched.extend(run);
            }
            for line in run {
                self.note_written(*line, false);
            }
        });
    }
}

impl AsFd for BlockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.cast_mut().cast(), self.bytes) };
    }
}

fn bytes_of(block: BlockSize, lines: u32) -> Result<u64> {
    let bytes = u64::from(block.bytes()) * u64::from(lines);
    i64::try_from(bytes).map_err(|_| Error::new(ErrorKind::InvalidInput, "too large"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use fairlead_http_cache::CacheOffset;

    use super::*;

    fn extent(line: u32, len: u32) -> Extent {
        Extent {
            at: BlockSize::PAGE.offset_of(line),
            len,
        }
    }

    #[test]
    fn what_is_written_is_read_and_released_memory_is_free() {
        let mut file = BlockFile::in_memory(BlockSize::PAGE, 64).expect("memory files");
        for line in 0..64 {
            assert!(file.write(extent(line, 4_096), &[line as u8; 4_096]));
        }
        assert_eq!(file.slice(extent(7, 3)), Some(&[7; 3][..]));
        let full = file.allocated_bytes().expect("fstat");
        assert!(full >= 64 * 4_096, "{full}");
        file.release(&[1, 2, 3, 10, 9, 8]);
        assert_eq!(file.allocated_bytes().expect("fstat"), full - 6 * 4_096);
        assert_eq!(file.slice(extent(4, 1)), Some(&[4][..]));
        assert!(file.write(extent(2, 1), b"x"));
        assert_eq!(file.slice(extent(2, 2)), Some(&b"x\0"[..]));
        assert!(!file.write(extent(64, 1), b"x"));
        assert_eq!(file.slice(extent(64, 1)), None);
        let far = Extent {
            at: CacheOffset(u64::MAX - 1),
            len: 9,
        };
        assert_eq!(file.slice(far), None);
    }

    #[test]
    fn a_file_outlives_its_process_and_has_one_owner() {
        let path = std::env::temp_dir().join(format!("fairlead-blocks-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let open = |lines| BlockFile::open(&path, BlockSize::PAGE, lines);
        let (mut file, was_there) = open(8).expect("a new file");
        assert!(!was_there);
        assert!(file.write(extent(3, 4), b"body"));
        assert!(open(8).is_err(), "two owners");
        drop(file);
        let (file, was_there) = open(8).expect("the same file");
        assert!(was_there);
        assert_eq!(file.slice(extent(3, 4)), Some(&b"body"[..]));
        drop(file);
        let (file, was_there) = open(9).expect("a file of another size");
        assert!(!was_there);
        assert_eq!(file.slice(extent(3, 4)), None);
        drop(file);
        std::fs::remove_file(&path).expect("it is there");
    }
}
