//! System calls that neither `std` nor `aya` has.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS: libc::__fsword_t = 0xcafe_4a11;

fn path_of(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// True when a BPF file system is mounted there.
pub(crate) fn is_bpffs(path: &Path) -> io::Result<bool> {
    let path = path_of(path)?;
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends in zero, and a structure that lives through the call.
    match unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } {
        0 => Ok(stat.f_type & 0xffff_ffff == BPF_FS),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts a BPF file system that only its owner may look into.
pub(crate) fn mount_bpffs(path: &Path) -> io::Result<()> {
    let path = path_of(path)?;
    let (kind, options) = (c"bpf", c"mode=0700");
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RELATIME;
    // SAFETY: four strings that end in zero.
    let mounted = unsafe {
        libc::mount(
            kind.as_ptr(),
            path.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    match mounted {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks an open folder for as long as it is open. False: somebody else has it.
pub(crate) fn try_lock(folder: &std::fs::File) -> io::Result<bool> {
    // SAFETY: a descriptor that is open.
    match unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
    }
}

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// `union bpf_attr` as far as these two commands read it.
#[repr(C)]
struct Attributes {
    first: u64,
    second: u64,
}

/// `struct bpf_link_info` as far as it is the same for tc and XDP, with room for the rest.
#[repr(C, align(8))]
struct RawLink {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    interface: u32,
    rest: [u32; 27],
}

/// A pinned link: the program's id, and the interface's index (0 once that is gone).
pub(crate) fn link_at(path: &Path) -> io::Result<(u32, u32)> {
    let path = path_of(path)?;
    let ask = Attributes {
        first: path.as_ptr() as u64,
        second: 0,
    };
    // SAFETY: the kernel reads the attributes, and the string that they point to.
    let link = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET,
            &raw const ask,
            size_of_val(&ask),
        )
    };
    if link < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    let link = unsafe { OwnedFd::from_raw_fd(link as i32) };
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut raw: RawLink = unsafe { std::mem::zeroed() };
    let ask = Attributes {
        first: link.as_raw_fd() as u64 | (size_of::<RawLink>() as u64) << 32,
        second: &raw mut raw as u64,
    };
    // SAFETY: the kernel fills in at most the length that it is told, which is the structure's.
    let told = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD,
            &raw const ask,
            size_of_val(&ask),
        )
    };
    match told {
        0 => Ok((raw.program, raw.interface)),
        _ => Err(io::Error::last_os_error()),
    }
}
