//! The system calls that this driver needs, behind safe signatures. The only file of the crate
//! that uses `unsafe`.
#![expect(unsafe_code, reason = "a device driver talks to the kernel")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Longest interface name, without the closing zero byte.
pub(crate) const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// `TUNSETIFF`: creates the interface and ties it to the open file. Returns the name it got.
pub(crate) fn tun_create(file: &File, name: &str, flags: i32) -> io::Result<String> {
    // SAFETY: `ifreq` is plain old data of integers and byte arrays; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() > NAME_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the descriptor is open for the length of the call and `request` is a live `ifreq`,
    // which is what TUNSETIFF reads and writes.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request
        .ifr_name
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| *byte as u8);
    String::from_utf8(name.collect()).map_err(io::Error::other)
}

/// A second descriptor of the same open file, which the next program of this process will have.
pub(crate) fn duplicate_for_exec(file: &File) -> io::Result<RawFd> {
    // SAFETY: an open descriptor; the call touches no memory of ours.
    let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 3) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(number)
}

/// The TUN device of this name that the program before this one left open as `number`. `None` when
/// that is no descriptor of it: then it is left alone.
pub(crate) fn tun_left_open(number: RawFd, name: &str) -> Option<File> {
    // SAFETY: `ifreq` is plain old data of integers and byte arrays; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes an `ifreq` to where the pointer leads; of a number that is no
    // descriptor, or none of a TUN device, the kernel says so.
    let answer = unsafe { libc::ioctl(number, libc::TUNGETIFF, &raw mut request) };
    let told = request.ifr_name.iter().take_while(|byte| **byte != 0);
    if answer < 0 || !told.map(|byte| *byte as u8).eq(name.bytes()) {
        return None;
    }
    // SAFETY: an open descriptor; the call touches no memory of ours.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: an open descriptor of our device, which the caller says nobody else has taken.
    Some(unsafe { File::from_raw_fd(number) })
}

/// `TUNSETVNETHDRSZ`: how many bytes of header precede every packet.
pub(crate) fn tun_set_header_bytes(file: &File, bytes: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open and TUNSETVNETHDRSZ reads one `int` through the pointer.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `TUNSETVNETLE`: makes the header's fields little-endian on every machine.
pub(crate) fn tun_set_little_endian(file: &File) -> io::Result<()> {
    let yes: i32 = 1;
    // SAFETY: the descriptor is open and TUNSETVNETLE reads one `int` through the pointer.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETLE, &raw const yes) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `TUNSETOFFLOAD`: what the reader of the device is ready to take over from the kernel.
pub(crate) fn tun_set_offload(file: &File, offload: u32) -> io::Result<()> {
    let offload = libc::c_ulong::from(offload);
    // SAFETY: the descriptor is open; TUNSETOFFLOAD takes its argument by value.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offload) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `TUNSETPERSIST`: whether the interface outlives its last open file.
pub(crate) fn tun_set_persistent(file: &File, persistent: bool) -> io::Result<()> {
    let value = libc::c_ulong::from(persistent);
    // SAFETY: the descriptor is open; TUNSETPERSIST takes its argument by value.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST, value) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Reads one packet: its first bytes into `header`, the rest into `bytes` from its start, as far
/// as its capacity goes, but never more than the longest packet. Returns how many bytes of the
/// header came, and leaves `bytes` as long as the packet.
pub(crate) fn read_packet(
    file: &File,
    header: &mut [u8],
    bytes: &mut Vec<u8>,
) -> io::Result<usize> {
    bytes.clear();
    let room = bytes.spare_capacity_mut();
    let parts = [
        libc::iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: header.len(),
        },
        libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len().min(fairlead_base::PACKET_BYTES_MAX),
        },
    ];
    let read = loop {
        // SAFETY: both parts point to memory that is valid for writes of their lengths and that
        // nothing else refers to during the call.
        let read = unsafe { libc::readv(file.as_raw_fd(), parts.as_ptr(), 2) };
        match usize::try_from(read) {
            Ok(read) => break read,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    };
    let of_packet = read.saturating_sub(header.len()).min(parts[1].iov_len);
    // SAFETY: the kernel filled the parts in order, so the first `read − header` bytes of the
    // spare capacity are initialised, and the length stays within the capacity.
    unsafe { bytes.set_len(of_packet) };
    Ok(read.min(header.len()))
}

/// Writes one packet, header first, in one call. Returns how many bytes the device took.
pub(crate) fn write_packet(file: &File, header: &[u8], bytes: &[u8]) -> io::Result<usize> {
    let parts = [
        libc::iovec {
            iov_base: header.as_ptr().cast_mut().cast(),
            iov_len: header.len(),
        },
        libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        },
    ];
    loop {
        // SAFETY: both parts point to memory that is valid for reads of their lengths; writev
        // does not write through them.
        let written = unsafe { libc::writev(file.as_raw_fd(), parts.as_ptr(), 2) };
        if let Ok(written) = usize::try_from(written) {
            return Ok(written);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The number of the interface with this name.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a string that ends in zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// A socket with copies of packets of one Ethernet type from all interfaces, from the IP header on,
/// as far as `filter` takes them. They wait in about `waiting_bytes`.
pub(crate) fn open_packet_socket(
    protocol: u16,
    filter: &[libc::sock_filter],
    waiting_bytes: i32,
) -> io::Result<OwnedFd> {
    open_filtered(libc::SOCK_DGRAM, 0, protocol, filter, waiting_bytes)
}

/// The same with packets of all Ethernet types, which it gets before programs at tc do; none that
/// leave.
pub(crate) fn open_early_packet_socket(
    filter: &[libc::sock_filter],
    waiting_bytes: i32,
) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM;
    let all = libc::ETH_P_ALL as u16;
    // Bound to no protocol, it gets nothing before it is to get nothing that leaves.
    let socket = open_filtered(kind, 0, 0, filter, waiting_bytes)?;
    set_option_of(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
    bind_link(&socket, 0, all)?;
    Ok(socket)
}

/// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h` (Linux 4.20).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket with copies of the frames of one Ethernet type that come in on one interface, from the
/// Ethernet header on, as far as `filter` takes them (all without one).
pub(crate) fn open_link_socket(
    interface: u32,
    protocol: u16,
    filter: &[libc::sock_filter],
    waiting_bytes: i32,
) -> io::Result<OwnedFd> {
    open_filtered(libc::SOCK_RAW, interface, protocol, filter, waiting_bytes)
}

/// Sends a frame out of an interface.
pub(crate) fn send_frame(socket: &OwnedFd, interface: u32, frame: &[u8]) -> io::Result<()> {
    // SAFETY: plain old data of integers and a byte array; all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface as i32;
    address.sll_halen = 6;
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an open socket, readable memory of that length, and an address of the length given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT,
            (&raw const address).cast(),
            bytes,
        )
    };
    match sent {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A packet socket of one kind on an interface, or on all if that is 0.
fn open_filtered(
    kind: libc::c_int,
    interface: u32,
    protocol: u16,
    filter: &[libc::sock_filter],
    waiting_bytes: i32,
) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, touches no memory of ours. Of no protocol: it receives nothing
    // before it has its filter.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    if !filter.is_empty() {
        set_option(&socket, libc::SO_ATTACH_FILTER, &program)?;
    }
    set_option(&socket, libc::SO_RCVBUF, &waiting_bytes)?;
    if protocol != 0 {
        bind_link(&socket, interface, protocol)?;
    }
    Ok(socket)
}

/// Has a packet socket receive packets of this Ethernet type from an interface, or from all.
fn bind_link(socket: &OwnedFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: plain old data of integers and a byte array; all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an open socket and an address of the length given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    match bound {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option of sockets. What `value` points to must live only as long as the call.
fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    set_option_of(socket, libc::SOL_SOCKET, option, value)
}

fn set_option_of<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: an open socket and a value of the length given; a filter's steps, which its program
    // points to, are alive in the caller and copied by the kernel.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads one packet into `bytes`, as far as its capacity goes; `false` when there is none.
pub(crate) fn receive_packet(socket: &OwnedFd, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.clear();
    let room = bytes.spare_capacity_mut();
    let len = room.len().min(fairlead_base::PACKET_BYTES_MAX);
    // SAFETY: an open socket, and memory that is valid for writes of that length and that nothing
    // else refers to.
    let got = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), len, 0) };
    let Ok(got) = usize::try_from(got) else {
        return match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        };
    };
    // SAFETY: the kernel has filled this many bytes, which is at most the capacity.
    unsafe { bytes.set_len(got.min(len)) };
    Ok(true)
}

/// Waits until one of the descriptors can be read or is in error, or the time is up (`None`: for
/// ever). `ready[i]` tells about `files[i]`; one that is not there is never ready. A signal
/// handler's interruption counts as nothing being ready.
pub(crate) fn wait_readable<const N: usize>(
    files: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    wait_for(libc::POLLIN, files, timeout)
}

/// Waits until a descriptor can be written or is in error, or the time is up.
pub(crate) fn wait_writable(file: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    wait_for(libc::POLLOUT, [Some(file)], Some(timeout)).map(|[ready]| ready)
}

fn wait_for<const N: usize>(
    events: libc::c_short,
    files: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = files.map(|file| libc::pollfd {
        // The kernel passes over negative ones.
        fd: file.map_or(-1, |file| file.as_raw_fd()),
        events,
        revents: 0,
    });
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as _,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` holds N live entries, `limit` is null or points to a timespec that outlives
    // the call, and a null signal mask leaves the mask alone.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            N as libc::nfds_t,
            limit,
            std::ptr::null(),
        )
    };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok([false; N]);
    }
    Ok(polled.map(|entry| entry.revents != 0))
}

/// Whether a signal is ignored, as nohup(1) has it for the program that it starts. Once it is
/// blocked it waits all the same.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: plain old data, of which zeros are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only writes the old one, to a live structure.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    told == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Blocks these signals in the calling thread, and in those it starts later, and opens a
/// descriptor from which they are read instead.
pub(crate) fn open_signals(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: `sigset_t` is plain old data; sigemptyset and sigaddset initialise and fill it, and
    // pthread_sigmask and signalfd only read it. A null old set is allowed.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd returned a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one pending signal from [`open_signals`]' descriptor: its number and its `si_code`.
pub(crate) fn read_signal(file: impl AsFd) -> io::Result<Option<(i32, i32)>> {
    let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: `record` is valid for writes of its whole length.
    let read = unsafe { libc::read(fd, record.as_mut_ptr().cast(), record.len()) };
    if read == record.len() as isize {
        let word = |at: usize| {
            let bytes = record[at..at + 4].try_into();
            i32::from_ne_bytes(bytes.expect("four bytes"))
        };
        let code_at = std::mem::offset_of!(libc::signalfd_siginfo, ssi_code);
        return Ok(Some((word(0), word(code_at))));
    }
    match io::Error::last_os_error() {
        error if read >= 0 || error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        error => Err(error),
    }
}
