//! Frames of ARP and of neighbour discovery on one interface, through packet sockets. They see what
//! the stack sees, and nothing that this machine sends.

use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sys;

/// Questions wait in so much of the kernel's memory; what comes when that is full is asked again.
const WAITING_BYTES: i32 = 64 << 10;

/// Offsets in a frame (IEEE 802.3, RFC 8200, RFC 4443).
const NEXT_HEADER_AT: u32 = 14 + 6;
const ICMPV6_TYPE_AT: u32 = 14 + 40;
const ICMPV6: u32 = 58;
const SOLICITATION: u32 = 135;
const ADVERTISEMENT: u32 = 136;

/// The longest frame that is read; neighbour discovery with all its options is shorter.
const FRAME_BYTES_MAX: usize = 1_514;

/// Sockets waited for together, at most.
pub const WAIT_MAX: usize = 32;

/// The sockets of an interface.
#[derive(Debug)]
pub struct Neighbours {
    interface: u32,
    arp: OwnedFd,
    discovery: Option<OwnedFd>,
    /// Keeps the groups joined in which questions for IPv6 addresses come.
    _groups: Option<UdpSocket>,
}

impl Neighbours {
    /// Listens on the interface with this index, and to the groups of these IPv6 addresses.
    ///
    /// # Errors
    /// What the kernel says: mostly that `CAP_NET_RAW` is missing.
    pub fn open(interface: u32, addresses: &[Ipv6Addr]) -> io::Result<Self> {
        let arp = sys::open_link_socket(interface, libc::ETH_P_ARP as u16, &[], WAITING_BYTES)?;
        let mut one = Self {
            interface,
            arp,
            discovery: None,
            _groups: None,
        };
        if addresses.is_empty() {
            return Ok(one);
        }
        let groups = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        for address in addresses {
            groups.join_multicast_v6(&solicited_group(*address), interface)?;
        }
        let filter = of_discovery();
        let protocol = libc::ETH_P_IPV6 as u16;
        one.discovery = Some(sys::open_link_socket(
            interface,
            protocol,
            &filter,
            WAITING_BYTES,
        )?);
        one._groups = Some(groups);
        Ok(one)
    }

    /// The interface.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Takes the next frame that has come in; false when no frame waits.
    ///
    /// # Errors
    /// What the kernel says, as when the interface is down.
    pub fn receive(&self, frame: &mut Vec<u8>) -> io::Result<bool> {
        frame.clear();
        frame.reserve(FRAME_BYTES_MAX);
        if sys::receive_packet(&self.arp, frame)? {
            return Ok(true);
        }
        match &self.discovery {
            Some(discovery) => sys::receive_packet(discovery, frame),
            None => Ok(false),
        }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        sys::send_frame(&self.arp, self.interface, frame)
    }

    /// Waits until a frame has come in on one of the interfaces, at most [`WAIT_MAX`] / 2 of them,
    /// or the time is up.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(all: &[Self], timeout: Duration) -> io::Result<()> {
        let mut files: [Option<BorrowedFd<'_>>; WAIT_MAX] = [None; WAIT_MAX];
        let arp = all.iter().map(|one| Some(one.arp.as_fd()));
        let discovery = all
            .iter()
            .map(|one| one.discovery.as_ref().map(AsFd::as_fd));
        for (place, file) in files.iter_mut().zip(arp.chain(discovery)) {
            *place = file;
        }
        sys::wait_readable(files, Some(timeout)).map(drop)
    }
}

/// RFC 4291, section 2.7.1.
fn solicited_group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Takes solicitations and advertisements.
fn of_discovery() -> [libc::sock_filter; 7] {
    let op = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let (load, equal) = (
        libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
    );
    let end = libc::BPF_RET | libc::BPF_K;
    [
        op(load, 0, 0, NEXT_HEADER_AT),
        op(equal, 0, 4, ICMPV6),
        op(load, 0, 0, ICMPV6_TYPE_AT),
        op(equal, 1, 0, SOLICITATION),
        op(equal, 0, 1, ADVERTISEMENT),
        op(end, 0, 0, FRAME_BYTES_MAX as u32),
        op(end, 0, 0, 0),
    ]
}
