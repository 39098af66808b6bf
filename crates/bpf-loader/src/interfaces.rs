//! Which interfaces packets may come in on.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Interfaces of this network namespace that are up and carry Ethernet frames, loopback and TUN
/// devices not among them; in the kernel's order.
///
/// # Errors
/// When the kernel does not list them.
pub fn ethernet_interfaces() -> io::Result<Vec<String>> {
    // What follows the thread's namespace: /sys would be that of whoever mounted it.
    let listed = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = listed
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'));
    let socket = any_socket()?;
    let usable = names.filter_map(|(name, _)| {
        let name = name.trim();
        is_usable(&socket, name).then(|| name.to_owned())
    });
    Ok(usable.collect())
}

/// The index of an interface of the calling thread's network namespace.
pub fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a string that ends in zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The name of an interface of the calling thread's network namespace.
pub fn interface_name(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name and its zero byte.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    name.to_str().ok().map(str::to_owned)
}

fn any_socket() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, touches no memory of ours.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn is_usable(socket: &OwnedFd, name: &str) -> bool {
    let Ok(name) = CString::new(name) else {
        return false;
    };
    let bytes = name.as_bytes_with_nul();
    // SAFETY: a structure of numbers and arrays, for which zeros are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if bytes.len() > request.ifr_name.len() {
        return false;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: an open socket and a request that lives through the call.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    // SAFETY: the field that this request fills in.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    if asked != 0 || flags & libc::IFF_UP == 0 || flags & libc::IFF_LOOPBACK != 0 {
        return false;
    }
    // SAFETY: as above.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    // SAFETY: the field that this request fills in.
    let family = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    asked == 0 && family == libc::ARPHRD_ETHER
}
