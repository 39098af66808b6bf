//! System calls that neither `std` nor `aya` has.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::Pod;

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

/// What the kernel has set aside for a map, bytes; 0 when it does not say.
pub(crate) fn map_bytes(map: BorrowedFd<'_>) -> u64 {
    let path = format!("/proc/thread-self/fdinfo/{}", map.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines();
    let bytes = lines.find_map(|line| line.strip_prefix("memlock:"));
    bytes
        .and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or(0)
}

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_MAP_DELETE_BATCH: libc::c_long = 27;
const BPF_LINK_DETACH: libc::c_long = 34;

/// `union bpf_attr` as far as the commands about links read it.
#[repr(C)]
struct Attributes {
    first: u64,
    second: u64,
}

/// `union bpf_attr` as far as the commands about one entry of a map read it.
#[repr(C)]
struct EntryAttributes {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` as far as the commands about many entries of a map read and write it.
#[repr(C)]
struct BatchAttributes {
    before: u64,
    after: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    entry_flags: u64,
    flags: u64,
}

/// `union bpf_attr` as far as `BPF_PROG_TEST_RUN` reads and writes it.
#[repr(C)]
#[derive(Default)]
struct RunAttributes {
    program: u32,
    result: u32,
    in_bytes: u32,
    out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

/// `struct __sk_buff`: how long it is, and where it names the interface.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_INTERFACE: usize = 40;

/// Runs a program of tc once on an Ethernet frame that came in on the interface with this index;
/// 0: on none of importance.
pub(crate) fn run_program(program: BorrowedFd<'_>, frame: &[u8], interface: u32) -> io::Result<()> {
    let mut context = [0_u8; SK_BUFF_BYTES];
    context[SK_BUFF_INTERFACE..SK_BUFF_INTERFACE + 4].copy_from_slice(&interface.to_ne_bytes());
    let mut ask = RunAttributes {
        program: program.as_raw_fd() as u32,
        in_bytes: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        context_in_bytes: if interface == 0 {
            0
        } else {
            SK_BUFF_BYTES as u32
        },
        context_in: if interface == 0 {
            0
        } else {
            context.as_ptr() as u64
        },
        ..RunAttributes::default()
    };
    // SAFETY: the attributes of this command, with a frame and a context of the lengths that it
    // names, which the kernel only reads.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut ask) }?;
    Ok(())
}

/// The system call `bpf`.
///
/// # Safety
/// `ask` must be what `command` reads and writes, and what it points to must be what it reads or
/// writes there, until the call returns.
unsafe fn bpf<T>(command: libc::c_long, ask: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes as many bytes of the attributes as it is told; the rest
    // is the caller's promise.
    let told = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *ask, size_of::<T>()) };
    match told {
        0.. => Ok(told as i32),
        _ => Err(io::Error::last_os_error()),
    }
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

/// Opens a pinned link.
fn open_link(path: &Path) -> io::Result<OwnedFd> {
    let path = path_of(path)?;
    let mut ask = Attributes {
        first: path.as_ptr() as u64,
        second: 0,
    };
    // SAFETY: a string that ends in a zero byte and lives through the call.
    let link = unsafe { bpf(BPF_OBJ_GET, &mut ask) }?;
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Takes the program of a pinned link off its interface and removes the file. By the removal alone
/// the program would go a moment later, and be in the way of the next one until then.
pub(crate) fn remove_link(path: &Path) -> io::Result<()> {
    if let Ok(link) = open_link(path) {
        let mut ask = Attributes {
            first: link.as_raw_fd() as u64,
            second: 0,
        };
        // SAFETY: it has no pointers. Where the kernel cannot do it (the interface is gone), the
        // removal of the file is enough.
        let _ = unsafe { bpf(BPF_LINK_DETACH, &mut ask) };
    }
    std::fs::remove_file(path)
}

/// A pinned link: the program's id, and the interface's index (0 once that is gone).
pub(crate) fn link_at(path: &Path) -> io::Result<(u32, u32)> {
    let link = open_link(path)?;
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut raw: RawLink = unsafe { std::mem::zeroed() };
    let mut ask = Attributes {
        first: link.as_raw_fd() as u64 | (size_of::<RawLink>() as u64) << 32,
        second: &raw mut raw as u64,
    };
    // SAFETY: the kernel fills in at most the length that it is told, which is the structure's.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut ask) }?;
    Ok((raw.program, raw.interface))
}

/// The first value of a plain array, whose values have `bytes` bytes.
///
/// # Safety
/// `map` must be of type `BPF_MAP_TYPE_ARRAY`, and its values no longer than `bytes`.
pub(crate) unsafe fn first_value(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Vec<u8>> {
    let key = 0_u32;
    let mut value = vec![0; bytes];
    let mut ask = EntryAttributes {
        map: map.as_raw_fd() as u32,
        pad: 0,
        key: &raw const key as u64,
        value: value.as_mut_ptr() as u64,
        flags: 0,
    };
    // SAFETY: the attributes of this command, a key as arrays have it, and, as the caller promises,
    // room for a value.
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut ask) }?;
    Ok(value)
}

/// How many entries a map has whose keys have `bytes` bytes, `most` at most.
///
/// # Safety
/// The keys of `map` must be no longer than `bytes`.
pub(crate) unsafe fn count_keys(map: BorrowedFd<'_>, bytes: usize, most: u64) -> u64 {
    let mut keys = [vec![0_u8; bytes], vec![0_u8; bytes]];
    let mut count = 0;
    while count < most {
        let [last, next] = &mut keys;
        let mut ask = EntryAttributes {
            map: map.as_raw_fd() as u32,
            pad: 0,
            key: if count == 0 { 0 } else { last.as_ptr() as u64 },
            value: next.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the attributes of this command; both keys live through the call and are, as the
        // caller promises, long enough.
        if unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut ask) }.is_err() {
            break;
        }
        keys.swap(0, 1);
        count += 1;
    }
    count
}

/// Removes entries of a map, one after the other; how many were removed, and why no more.
pub(crate) fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> (usize, io::Result<()>) {
    let mut ask = BatchAttributes {
        before: 0,
        after: 0,
        keys: keys.as_ptr() as u64,
        values: 0,
        count: keys.len() as u32,
        map: map.as_raw_fd() as u32,
        entry_flags: 0,
        flags: 0,
    };
    // SAFETY: the attributes of this command, with as many keys as are counted, which the kernel
    // only reads.
    let done = unsafe { bpf(BPF_MAP_DELETE_BATCH, &mut ask) };
    match done {
        Ok(_) => (keys.len(), Ok(())),
        // Where it failed before it began, it has not written the count.
        Err(error) if ask.count as usize >= keys.len() => (0, Err(error)),
        Err(error) => (ask.count as usize, Err(error)),
    }
}
