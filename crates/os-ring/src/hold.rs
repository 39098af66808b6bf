//! Packets of a connection on its way: the steering program leads them to a TUN device, from which
//! they are played again to whoever has the connection then.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::counted;

/// A packet of the largest length that there is.
const PACKET_MAX: usize = 65_536;

/// The TUN device, and the way to the host.
#[derive(Debug)]
pub struct Hold {
    tun: File,
    packets: OwnedFd,
    host: libc::c_int,
    host_mac: [u8; 6],
}

impl Hold {
    /// Opens both, in this thread's network namespace: the TUN device `hold`, and the device
    /// `to_host`, behind which the host has this hardware address.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(hold: &str, to_host: &str, host_mac: [u8; 6]) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let tun = options.open("/dev/net/tun")?;
        // SAFETY: plain numbers, for which all zeros are a value.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        if hold.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(hold.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: an open device, and the structure that the request reads.
        let set = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
        counted(set as isize)?;
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing is received.
        // SAFETY: numbers only.
        let packets = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        counted(packets as isize)?;
        // SAFETY: a descriptor that was just made and that nobody else has.
        let packets = unsafe { OwnedFd::from_raw_fd(packets) };
        let name = CString::new(to_host).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a string that ends in zero.
        let host = unsafe { libc::if_nametoindex(name.as_ptr()) } as libc::c_int;
        if host == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            tun,
            packets,
            host,
            host_mac,
        })
    }

    /// Plays the packets that are held: to the card's own stack where `to_card` says so of the
    /// packet, else to the host. Returns their number.
    pub fn replay(&mut self, to_card: impl Fn(&[u8]) -> bool) -> u64 {
        let mut packet = vec![0; PACKET_MAX];
        let mut played = 0;
        // What cannot be written is lost, as a packet on the way can be; its end repeats it.
        while let Ok(bytes) = self.tun.read(&mut packet) {
            if bytes == 0 {
                break;
            }
            played += 1;
            if to_card(&packet[..bytes]) {
                let _ = self.tun.write(&packet[..bytes]);
            } else {
                self.to_host(&packet[..bytes]);
            }
        }
        played
    }

    fn to_host(&self, packet: &[u8]) {
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let protocol = if is_v6 {
            libc::ETH_P_IPV6
        } else {
            libc::ETH_P_IP
        };
        // SAFETY: plain numbers, for which all zeros are a value.
        let mut to: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = (protocol as u16).to_be();
        to.sll_ifindex = self.host;
        to.sll_halen = 6;
        to.sll_addr[..6].copy_from_slice(&self.host_mac);
        let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let (fd, from) = (self.packets.as_raw_fd(), packet.as_ptr().cast());
        // SAFETY: an open socket, bytes and an address of the lengths given.
        let _ = unsafe { libc::sendto(fd, from, packet.len(), 0, (&raw const to).cast(), bytes) };
    }
}
