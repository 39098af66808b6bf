//! Packets that the kernel program shows: as they arrived and as it sent them on.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use aya::maps::{Array, Map, MapData, MapError, RingBuf};
use fairlead_base::Address;

use crate::kernel::{Kernel, LoadError, take};

/// Listening endpoints that a filter can name.
const LISTENS: usize = 1_024;
const BEFORE: u32 = 1;
const AFTER: u32 = 2;
const NO_LINE: u32 = u32::MAX;
/// The largest room in the ring.
const SNAP_BYTES_MAX: u32 = 65_536;
/// Octets of `struct fl_captured`.
const HEAD_BYTES: usize = 32;

/// `struct fl_capture_settings`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawCapture {
    on: u32,
    snap_bytes: u32,
    client: [u8; 16],
    mask: [u8; 16],
    listens: [u64; LISTENS / 64],
    lost: u64,
}

const _: () = assert!(size_of::<RawCapture>() == 176);

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for RawCapture {}

const OFF: RawCapture = RawCapture {
    on: 0,
    snap_bytes: 0,
    client: [0; 16],
    mask: [0; 16],
    listens: [0; LISTENS / 64],
    lost: 0,
};

/// Which packets are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// As they arrived.
    pub before: bool,
    /// As they were sent on.
    pub after: bool,
    /// Bytes of a packet, at most.
    pub snap_bytes: u32,
    /// Clients within a prefix (bits of the 128 of [`Address`]); all if `None`.
    pub client: Option<(Address, u8)>,
    /// Listening endpoints by their index; all if `None`. Those from 1024 on cannot be told apart
    /// and are not shown.
    pub listens: Option<Vec<u16>>,
}

impl CaptureFilter {
    /// The mask of the prefix of clients, octet by octet.
    fn mask(&self) -> [u8; 16] {
        let bits = self.client.map_or(0, |(_, bits)| u32::from(bits.min(128)));
        let ones = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        ones.to_be_bytes()
    }

    /// True for connections of this client at this listening endpoint.
    pub fn wants(&self, client: Address, listen: u16) -> bool {
        let mask = self.mask();
        let within = self.client.is_none_or(|(wanted, _)| {
            (0..16).all(|at| (wanted.0[at] ^ client.0[at]) & mask[at] == 0)
        });
        let listens = self.listens.as_ref();
        within && listens.is_none_or(|listens| listens.contains(&listen))
    }

    fn raw(&self) -> RawCapture {
        let mask = self.mask();
        let mut raw = RawCapture {
            on: if self.before { BEFORE } else { 0 } | if self.after { AFTER } else { 0 },
            snap_bytes: self.snap_bytes.min(SNAP_BYTES_MAX),
            mask,
            ..OFF
        };
        if let Some((address, _)) = self.client {
            raw.client = core::array::from_fn(|at| address.0[at] & mask[at]);
        }
        match &self.listens {
            None => raw.listens = [u64::MAX; LISTENS / 64],
            Some(listens) => {
                for listen in listens.iter().map(|one| usize::from(*one)) {
                    if let Some(word) = raw.listens.get_mut(listen / 64) {
                        *word |= 1 << (listen % 64);
                    }
                }
            }
        }
        raw
    }
}

/// A packet that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// When, nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Line of its connection's record, once it has one.
    pub line: Option<u32>,
    /// Index of the interface it came in or goes out by.
    pub interface: u32,
    /// Its length from the IP header on, bytes.
    pub whole_bytes: u32,
    /// Index of the listening endpoint.
    pub listen: u16,
    /// On the server's leg.
    pub is_server_leg: bool,
    /// As it was sent on, not as it arrived.
    pub is_after: bool,
    /// From the IP header on, as much as was asked for.
    pub bytes: &'a [u8],
}

/// Native byte order.
fn captured(event: &[u8]) -> Option<Captured<'_>> {
    let (head, rest) = event.split_at_checked(HEAD_BYTES)?;
    let word = |at: usize| {
        let four = head.get(at..).and_then(|rest| rest.first_chunk::<4>());
        four.map_or(0, |four| u32::from_ne_bytes(*four))
    };
    let at_ns = head
        .first_chunk::<8>()
        .map_or(0, |eight| u64::from_ne_bytes(*eight));
    Some(Captured {
        at_ns,
        line: (word(8) != NO_LINE).then(|| word(8)),
        interface: word(12),
        whole_bytes: word(16),
        listen: u16::from_ne_bytes([head[24], head[25]]),
        is_server_leg: head[26] == 1,
        is_after: u32::from(head[27]) == AFTER,
        bytes: rest.get(..word(20) as usize)?,
    })
}

/// The program's window for captures. Off until [`Self::start`], and again when it goes.
pub struct CaptureTap {
    settings: Array<MapData, RawCapture>,
    map: OwnedFd,
    /// Mapped only while it is read: it is 4 MiB, which the mapping has twice.
    ring: Option<RingBuf<MapData>>,
}

impl core::fmt::Debug for CaptureTap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CaptureTap").finish_non_exhaustive()
    }
}

impl Kernel {
    /// The window for captures; there is one.
    ///
    /// # Errors
    /// When it was taken before, or its maps cannot be used.
    pub fn take_capture(&mut self) -> Result<CaptureTap, LoadError> {
        let settings = take(&mut self.ebpf, "fl_capture")?;
        let name = "fl_capture_ring";
        let map = self.ebpf.map(name).ok_or(LoadError::Missing(name))?;
        let Map::RingBuf(map) = map else {
            return Err(LoadError::Missing(name));
        };
        let map = map
            .fd()
            .as_fd()
            .try_clone_to_owned()
            .map_err(MapError::IoError)?;
        let mut tap = CaptureTap {
            settings,
            map,
            ring: None,
        };
        // An earlier run may have ended in the midst of a capture.
        tap.stop()?;
        Ok(tap)
    }
}

impl CaptureTap {
    /// Has packets shown from now on.
    ///
    /// # Errors
    /// When the kernel does not take the filter.
    pub fn start(&mut self, filter: &CaptureFilter) -> Result<(), MapError> {
        let map = self.map.try_clone().map_err(MapError::IoError)?;
        let map = Map::from_map_data(MapData::from_fd(map)?)?;
        let ring = self.ring.insert(map.try_into()?);
        while ring.next().is_some() {} // of a capture before
        self.settings.set(0, filter.raw(), 0)
    }

    /// The next packet, if one is there.
    pub fn next_with<T>(&mut self, use_it: impl FnOnce(Captured<'_>) -> T) -> Option<T> {
        loop {
            let event = self.ring.as_mut()?.next()?;
            if let Some(captured) = captured(&event) {
                return Some(use_it(captured));
            }
        }
    }

    /// Waits until a packet may be there, or the time is over.
    pub fn wait(&self, patience: Duration) {
        let mut asked = libc::pollfd {
            fd: self.map.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one structure that lives through the call.
        unsafe { libc::poll(&raw mut asked, 1, millis) };
    }

    /// Packets that the ring had no room for since [`Self::start`].
    pub fn lost(&self) -> u64 {
        self.settings.get(&0, 0).map_or(0, |raw| raw.lost)
    }

    /// Has no more packets shown. What was not read is gone.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn stop(&mut self) -> Result<(), MapError> {
        self.ring = None;
        self.settings.set(0, OFF, 0)
    }
}

impl Drop for CaptureTap {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(client: Option<(Address, u8)>, listens: Option<Vec<u16>>) -> CaptureFilter {
        CaptureFilter {
            before: true,
            after: false,
            snap_bytes: 96,
            client,
            listens,
        }
    }

    fn v4(octets: [u8; 4]) -> Address {
        Address::from(std::net::IpAddr::from(octets))
    }

    #[test]
    fn filters_mean_the_same_here_and_in_the_kernel() {
        let all = filter(None, None);
        assert!(all.wants(v4([1, 2, 3, 4]), 7));
        assert_eq!((all.raw().on, all.raw().mask), (BEFORE, [0; 16]));
        let some = filter(Some((v4([10, 1, 2, 3]), 96 + 16)), Some(vec![0, 70, 5_000]));
        assert!(some.wants(v4([10, 1, 99, 99]), 70));
        assert!(!some.wants(v4([10, 2, 2, 3]), 70));
        assert!(!some.wants(v4([10, 1, 2, 3]), 1));
        let raw = some.raw();
        assert_eq!(raw.client[12..], [10, 1, 0, 0]);
        assert_eq!(raw.listens[..2], [1, 1 << 6]);
    }

    #[test]
    fn events_are_read_and_damaged_ones_are_not() {
        let mut event = vec![0; HEAD_BYTES];
        event[..8].copy_from_slice(&77u64.to_ne_bytes());
        event[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        event[16..20].copy_from_slice(&1_500u32.to_ne_bytes());
        event[20..24].copy_from_slice(&3u32.to_ne_bytes());
        event[24..26].copy_from_slice(&9u16.to_ne_bytes());
        event[27] = AFTER as u8;
        event.extend([0x45, 1, 2, 0xff]); // the ring's room is longer
        let read = captured(&event).unwrap();
        assert_eq!((read.at_ns, read.line, read.listen), (77, None, 9));
        assert!(read.is_after && !read.is_server_leg);
        assert_eq!((read.whole_bytes, read.bytes), (1_500, &[0x45, 1, 2][..]));
        assert_eq!(captured(&event[..34]), None);
        assert_eq!(captured(&event[..10]), None);
    }
}
