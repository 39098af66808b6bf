//! The device itself: one packet a read, one packet a write, a header before each.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use fairlead_base::{Instant, Packet};
use fairlead_netio::{Batch, RxQueue, TxQueue};

use crate::counters::DeviceCounters;
use crate::sys;
use crate::vnet::{Unsendable, VNET_HEADER_BYTES, VnetHeader};

const NODE: &str = "/dev/net/tun";

/// Offers to the kernel: packets may come without checksum and uncut, for both families, with
/// CWR or not (`TUN_F_CSUM`, `TSO4`, `TSO6`, `TSO_ECN`).
const OFFLOAD: u32 = 0x01 | 0x02 | 0x04 | 0x08;

/// Reads of packets with contradicting headers that one `receive` steps over before it returns.
const BAD_HEADERS_MAX: usize = 64;

/// Why the device cannot be opened. The message says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum TunError {
    /// There is no `/dev/net/tun`.
    NoNode(io::Error),
    /// No permission to open it or to create interfaces.
    NotPermitted {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// An interface of this name exists.
    NameTaken(String),
    /// No interface can have this name.
    BadName(String),
    /// Any other error.
    Os {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl core::fmt::Display for TunError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoNode(error) => write!(
                f,
                "{NODE} cannot be used ({error}): the kernel's TUN driver is missing; load it with \
                 `modprobe tun`, or give the container the device {NODE}"
            ),
            Self::NotPermitted { step, source } => write!(
                f,
                "{step} is not permitted ({source}): serving needs the capability CAP_NET_ADMIN \
                 and read and write access to {NODE}; run it as root, or with \
                 `AmbientCapabilities=CAP_NET_ADMIN` in its systemd unit"
            ),
            Self::NameTaken(name) => write!(
                f,
                "the network interface {name} already exists: it belongs to another program or \
                 another instance; choose another `device` in [fastpath], or remove it with `ip \
                 link delete {name}`"
            ),
            Self::BadName(name) => write!(
                f,
                "{name:?} is not a valid interface name: 1 to {} letters, digits, `-`, `_` or `.`",
                sys::NAME_BYTES_MAX
            ),
            Self::Os { step, source } => write!(f, "{step} failed: {source}"),
        }
    }
}

impl core::error::Error for TunError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoNode(source) | Self::NotPermitted { source, .. } | Self::Os { source, .. } => {
                Some(source)
            }
            Self::NameTaken(_) | Self::BadName(_) => None,
        }
    }
}

/// Why one packet was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The packet's offload state cannot be described to the device.
    Unsendable(Unsendable),
    /// The device refused it.
    Os(io::Error),
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unsendable(reason) => write!(f, "the packet cannot be described: {reason:?}"),
            Self::Os(error) => write!(f, "the device refused the packet: {error}"),
        }
    }
}

impl core::error::Error for SendError {}

/// A TUN device, created when it is opened and removed when it is dropped.
///
/// Reads and writes never block. One read returns one packet, which may be a super-packet of up to
/// 64 KiB: with offloads, packets pass unsegmented and with partial checksums in both directions.
#[derive(Debug)]
pub struct TunDevice {
    file: File,
    name: String,
    counters: DeviceCounters,
}

impl TunDevice {
    /// Makes a device of this name; fails when an interface has the name already.
    ///
    /// The device is down and without routes: see [`crate::net`].
    pub fn open(name: &str) -> Result<Self, TunError> {
        Self::attach(name, libc::IFF_TUN_EXCL)
    }

    /// Reopens a device that an earlier run left ([`Self::set_persistent`]), with its routes and
    /// queued packets; [`crate::net::owned_by`] finds it.
    ///
    /// # Errors
    /// [`TunError::NameTaken`] when a process has it.
    pub fn resume(name: &str) -> Result<Self, TunError> {
        Self::attach(name, 0)
    }

    /// Sets whether the device outlives this process, however it ends. Without a reader, packets to
    /// it are dropped instead of being misrouted.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        sys::tun_set_persistent(&self.file, persistent)
    }

    /// Keeps the device open for the next program executed by this process, under the returned file
    /// descriptor ([`Self::left_open`]). Packets queue in it meanwhile.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn leave_open(&self) -> io::Result<RawFd> {
        sys::duplicate_for_exec(&self.file)
    }

    /// Takes over the device of this name that the previous program left open under a file
    /// descriptor. Call it once, while nothing else can own that descriptor. `None` if there is no
    /// such device.
    pub fn left_open(name: &str, number: RawFd) -> Option<Self> {
        let file = sys::tun_left_open(number, name)?;
        Self::agreed(file, name.to_owned()).ok()
    }

    fn attach(name: &str, exclusive: libc::c_int) -> Result<Self, TunError> {
        if !is_valid_name(name) {
            return Err(TunError::BadName(name.to_owned()));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(NODE)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunError::NoNode(error),
                Some(libc::EACCES | libc::EPERM) => TunError::NotPermitted {
                    step: "opening /dev/net/tun",
                    source: error,
                },
                _ => TunError::Os {
                    step: "opening /dev/net/tun",
                    source: error,
                },
            })?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | exclusive;
        let name = sys::tun_create(&file, name, flags).map_err(|source| {
            let step = "making a TUN device";
            match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => TunError::NotPermitted { step, source },
                Some(libc::EBUSY | libc::EEXIST) => TunError::NameTaken(name.to_owned()),
                _ => TunError::Os { step, source },
            }
        })?;
        Self::agreed(file, name)
    }

    /// Sets the offloads of reads and writes.
    fn agreed(file: File, name: String) -> Result<Self, TunError> {
        let agree =
            |step, outcome: io::Result<()>| outcome.map_err(|source| TunError::Os { step, source });
        agree(
            "agreeing on the packet header's size",
            sys::tun_set_header_bytes(&file, VNET_HEADER_BYTES as i32),
        )?;
        agree(
            "agreeing on the header's byte order",
            sys::tun_set_little_endian(&file),
        )?;
        agree(
            "switching on segmentation offload",
            sys::tun_set_offload(&file, OFFLOAD),
        )?;
        Ok(Self {
            file,
            name,
            counters: DeviceCounters::default(),
        })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device has carried.
    pub fn counters(&self) -> &DeviceCounters {
        &self.counters
    }

    /// Reads one packet; `false` if there is none.
    fn read_one(&mut self, packet: &mut Packet) -> io::Result<bool> {
        let mut header = [0; VNET_HEADER_BYTES];
        for _ in 0..BAD_HEADERS_MAX {
            match sys::read_packet(&self.file, &mut header, &mut packet.bytes) {
                Ok(VNET_HEADER_BYTES) => {}
                Ok(_) => {
                    self.counters.rx_bad_header += 1;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.counters.rx_empty_reads += 1;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            if VnetHeader::from_bytes(&header).describe(packet).is_ok() {
                self.counters
                    .rx
                    .add(packet.bytes.len(), packet.gso.is_some());
                return Ok(true);
            }
            self.counters.rx_bad_header += 1;
        }
        Ok(false)
    }

    fn count_failure(&mut self, error: &io::Error) {
        let counter = match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => &mut self.counters.tx_no_room,
            Some(libc::EIO | libc::ENETDOWN | libc::EBADFD) => &mut self.counters.tx_down,
            _ => &mut self.counters.tx_refused,
        };
        *counter += 1;
    }
}

fn is_valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=sys::NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && !matches!(name, "." | ".." | "all" | "default")
}

impl RxQueue for TunDevice {
    type Error = io::Error;

    fn receive(&mut self, _now: Instant, batch: &mut Batch) -> io::Result<usize> {
        let mut received = 0;
        while batch.push_with(|packet| self.read_one(packet))? {
            received += 1;
        }
        Ok(received)
    }
}

impl TxQueue for TunDevice {
    type Error = SendError;

    fn transmit(&mut self, _now: Instant, packet: &Packet) -> Result<(), SendError> {
        let header = VnetHeader::of(packet).map_err(|reason| {
            self.counters.tx_unsendable += 1;
            SendError::Unsendable(reason)
        })?;
        match sys::write_packet(&self.file, &header.to_bytes(), &packet.bytes) {
            Ok(_) => {
                self.counters
                    .tx
                    .add(packet.bytes.len(), packet.gso.is_some());
                Ok(())
            }
            Err(error) => {
                self.count_failure(&error);
                Err(SendError::Os(error))
            }
        }
    }

    fn flush(&mut self, _now: Instant) -> Result<(), SendError> {
        Ok(()) // every write goes at once
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_or_proc_would_misread_are_refused() {
        for good in ["fairlead0", "a", "fl-edge.1", "123456789012345"] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in [
            "",
            "1234567890123456",
            "a b",
            "../x",
            "a/b",
            "..",
            "all",
            "default",
            "fl%d",
        ] {
            assert!(!is_valid_name(bad), "{bad}");
            assert!(
                matches!(TunDevice::open(bad), Err(TunError::BadName(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn refusals_say_what_is_needed() {
        let source = || io::Error::from_raw_os_error(libc::EPERM);
        let text = TunError::NotPermitted {
            step: "making a TUN device",
            source: source(),
        };
        assert!(text.to_string().contains("CAP_NET_ADMIN"));
        assert!(text.to_string().contains("/dev/net/tun"));
        assert!(
            TunError::NoNode(source())
                .to_string()
                .contains("modprobe tun")
        );
        assert!(
            TunError::NameTaken("x0".into())
                .to_string()
                .contains("ip link delete x0")
        );
    }
}
