//! Drivers, queues and offloads: what `ethtool -i`, `-l` and `-k` show.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::netlink::{text, u32_at};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_RX_CHECKSUM: u32 = 0x14;
const GET_TX_CHECKSUM: u32 = 0x16;
const GET_SCATTER_GATHER: u32 = 0x18;
const GET_TSO: u32 = 0x1e;
const GET_GSO: u32 = 0x23;
const GET_FLAGS: u32 = 0x25;
const GET_GRO: u32 = 0x2b;
const GET_CHANNELS: u32 = 0x3c;
const FLAG_LRO: u32 = 1 << 15;
const FLAG_RX_VLAN: u32 = 1 << 8;

/// Octets of `struct ethtool_drvinfo` and `struct ethtool_channels`.
const DRIVER_BYTES: usize = 196;
const CHANNELS_BYTES: usize = 36;

/// An offload that can be switched, by its short name for `ethtool -K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// Checksums of received packets are verified by the device.
    RxChecksum,
    /// Checksums of sent packets are completed by the device.
    TxChecksum,
    /// Scattered buffers are sent.
    ScatterGather,
    /// The device cuts long packets into segments.
    Tso,
    /// The kernel does, as late as it can.
    Gso,
    /// The kernel joins received segments.
    Gro,
    /// The device joins received segments, irreversibly.
    Lro,
    /// The device strips VLAN tags from received packets and reports them separately.
    RxVlan,
}

impl Offload {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::RxChecksum,
        Self::TxChecksum,
        Self::ScatterGather,
        Self::Tso,
        Self::Gso,
        Self::Gro,
        Self::Lro,
        Self::RxVlan,
    ];

    /// Its name in `ethtool -K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RxChecksum => "rx",
            Self::TxChecksum => "tx",
            Self::ScatterGather => "sg",
            Self::Tso => "tso",
            Self::Gso => "gso",
            Self::Gro => "gro",
            Self::Lro => "lro",
            Self::RxVlan => "rxvlan",
        }
    }
}

/// What an interface's driver says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The driver's name; empty when it does not say.
    pub driver: String,
    /// Which are on, of those that it knows.
    pub on: Vec<(Offload, bool)>,
    /// Receive queues in use and possible, if reported.
    pub queues: Option<(u32, u32)>,
}

impl Offloads {
    /// True for an offload that is known to be on.
    pub fn is_on(&self, which: Offload) -> bool {
        self.on.contains(&(which, true))
    }
}

/// Asks an interface's driver.
///
/// # Errors
/// There is no such interface.
pub fn offloads(interface: &str) -> io::Result<Offloads> {
    let port = Port::open(interface)?;
    let mut found = Offloads::default();
    match port.ask(GET_DRIVER, DRIVER_BYTES) {
        Ok(answer) => found.driver = text(&answer[4..36]),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Err(error),
        Err(_) => {}
    }
    let value = |command| port.ask(command, 8).ok().map(|answer| u32_at(&answer, 4));
    let flags = value(GET_FLAGS);
    for which in Offload::ALL {
        let on = match which {
            Offload::RxChecksum => value(GET_RX_CHECKSUM),
            Offload::TxChecksum => value(GET_TX_CHECKSUM),
            Offload::ScatterGather => value(GET_SCATTER_GATHER),
            Offload::Tso => value(GET_TSO),
            Offload::Gso => value(GET_GSO),
            Offload::Gro => value(GET_GRO),
            Offload::Lro => flags.map(|bits| bits & FLAG_LRO),
            Offload::RxVlan => flags.map(|bits| bits & FLAG_RX_VLAN),
        };
        found.on.extend(on.map(|on| (which, on != 0)));
    }
    found.queues = port.ask(GET_CHANNELS, CHANNELS_BYTES).ok().map(|answer| {
        // max_rx, max_tx, max_other, max_combined, then the same in use.
        let at = |number: usize| u32_at(&answer, 4 + 4 * number);
        (at(4) + at(7), at(0).max(at(3)))
    });
    Ok(found)
}

/// A socket and the interface to query.
struct Port {
    socket: OwnedFd,
    name: CString,
}

impl Port {
    fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
        if name.as_bytes_with_nul().len() > libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: makes a descriptor, touches no memory of ours.
        let socket = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Ok(Self { socket, name })
    }

    /// The answer to a command: a structure of `bytes` octets that starts with the command.
    fn ask(&self, command: u32, bytes: usize) -> io::Result<Vec<u8>> {
        // The kernel writes at most the structure of the command; room to spare costs nothing.
        let mut answer = vec![0u64; bytes.div_ceil(8) + 32];
        let start: *mut u32 = answer.as_mut_ptr().cast();
        // SAFETY: the first four octets of a buffer that is larger and aligned.
        unsafe { start.write(command) };
        // SAFETY: a structure of numbers and arrays, for which zeros are values.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        let name = self.name.as_bytes_with_nul();
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = start.cast();
        // SAFETY: an open socket; request and buffer live through the call, and the buffer is
        // longer than what the kernel writes for any of this file's commands.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if asked < 0 {
            return Err(io::Error::last_os_error());
        }
        let octets = answer.iter().flat_map(|eight| eight.to_ne_bytes());
        Ok(octets.take(bytes).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_queried_without_privileges() {
        let found = offloads("lo").unwrap();
        // The loopback always reports GSO or TSO.
        assert!(!found.on.is_empty(), "{found:?}");
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        assert!(offloads("no-such-0").is_err());
        assert!(offloads("a name that is much too long").is_err());
        assert!(offloads("a\0b").is_err());
    }
}
