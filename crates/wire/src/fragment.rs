//! Fragments of IP packets (RFC 791, section 3.2; RFC 8200, section 4.5): what one says, and the
//! headers of the packet that it is a part of.

use fairlead_base::{Address, DropReason, PACKET_BYTES_MAX};

use crate::checksum::{self, PROTOCOL_ICMP, PROTOCOL_TCP};
use crate::packet::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, fragment_header, offset, v6_addresses};

/// Bytes of an IPv6 fragment header.
const FRAGMENT_HEADER_BYTES: usize = 8;
/// More fragments follow this one (IPv4).
const MORE_V4: u16 = 0x2000;
/// The offset of an IPv4 fragment, in units of eight bytes.
const OFFSET_V4: u16 = 0x1fff;
/// Congestion was met: both bits of the ECN field (RFC 3168, section 5).
const CONGESTION: u8 = 3;

/// Which packet a fragment is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// Its source.
    pub src: Address,
    /// Its destination.
    pub dst: Address,
    /// Its identification.
    pub id: u32,
    /// In IPv4 its protocol; in IPv6, where it does not count, 0.
    pub protocol: u8,
}

/// A fragment, in offsets into the bytes that it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The packet that it is a part of.
    pub datagram: Datagram,
    /// Where its payload belongs, bytes from the end of the packet's headers.
    pub offset: u32,
    /// More fragments follow; all but the last have a multiple of eight bytes.
    pub more: bool,
    /// Its ECN field (RFC 3168).
    pub ecn: u8,
    /// Bytes of the headers that the whole packet has, too.
    headers: u16,
    /// In IPv6: where the byte is that names the fragment header, and what follows that header.
    next: Option<(u16, u8)>,
    payload_at: u16,
    end: u16,
}

impl Fragment {
    /// Reads a fragment.
    ///
    /// # Errors
    /// [`DropReason::Fragment`] for a packet that is not a fragment; otherwise the reason to drop
    /// it. [`DropReason::BadIpHeader`] is for one that ends beyond the longest packet, and for one
    /// that is not the last and whose length is not a multiple of eight bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let fragment = match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(bytes)?,
            Some(6) => Self::parse_v6(bytes)?,
            Some(_) => return Err(DropReason::BadIpHeader),
            None => return Err(DropReason::Truncated),
        };
        let len = usize::from(fragment.end - fragment.payload_at);
        let end = usize::from(fragment.headers) + fragment.offset as usize + len;
        if len == 0 || (fragment.more && len % 8 != 0) || end > PACKET_BYTES_MAX {
            return Err(DropReason::BadIpHeader);
        }
        Ok(fragment)
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, DropReason> {
        let header = bytes
            .first_chunk::<IPV4_HEADER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let headers = u16::from(header[0] & 0x0f) * 4;
        if usize::from(headers) < IPV4_HEADER_BYTES {
            return Err(DropReason::BadIpHeader);
        }
        let end = u16::from_be_bytes([header[2], header[3]]);
        if end < headers || usize::from(end) > bytes.len() {
            return Err(DropReason::Truncated);
        }
        if checksum::fold(checksum::sum(&bytes[..usize::from(headers)])) != 0xffff {
            return Err(DropReason::BadIpChecksum);
        }
        let place = u16::from_be_bytes([header[6], header[7]]);
        if place & (MORE_V4 | OFFSET_V4) == 0 {
            return Err(DropReason::Fragment);
        }
        let protocol = header[9];
        if protocol != PROTOCOL_TCP && protocol != PROTOCOL_ICMP {
            return Err(DropReason::NotTcp);
        }
        let address =
            |at: usize| Address::v4([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        Ok(Self {
            datagram: Datagram {
                src: address(offset::IPV4_SRC),
                dst: address(offset::IPV4_DST),
                id: u32::from(u16::from_be_bytes([header[4], header[5]])),
                protocol,
            },
            offset: u32::from(place & OFFSET_V4) * 8,
            more: place & MORE_V4 != 0,
            ecn: header[1] & CONGESTION,
            headers,
            next: None,
            payload_at: headers,
            end,
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, DropReason> {
        let header = bytes
            .first_chunk::<IPV6_HEADER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let end = IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if end > bytes.len() || end > PACKET_BYTES_MAX {
            return Err(DropReason::Truncated);
        }
        let (named_at, at) = fragment_header(&bytes[..end], header[6])?;
        let own = bytes[..end]
            .get(at..)
            .and_then(<[u8]>::first_chunk::<FRAGMENT_HEADER_BYTES>)
            .ok_or(DropReason::Truncated)?;
        let place = u16::from_be_bytes([own[2], own[3]]);
        let (src, dst) = v6_addresses(header);
        // Neither may pass for the IPv4 packet of the same addresses.
        if src.is_v4() {
            return Err(DropReason::BadSource);
        }
        if dst.is_v4() {
            return Err(DropReason::NotOurs);
        }
        Ok(Self {
            datagram: Datagram {
                src,
                dst,
                id: u32::from_be_bytes([own[4], own[5], own[6], own[7]]),
                protocol: 0,
            },
            offset: u32::from(place & !7),
            more: place & 1 != 0,
            ecn: header[1] >> 4 & CONGESTION,
            headers: at as u16,
            next: Some((named_at as u16, own[0])),
            payload_at: (at + FRAGMENT_HEADER_BYTES) as u16,
            end: end as u16,
        })
    }

    /// True for a whole packet with a fragment header (RFC 6946), which has nothing to do with
    /// fragments of the same identification.
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }

    /// Bytes of its payload.
    pub fn len(&self) -> u32 {
        u32::from(self.end - self.payload_at)
    }

    /// Never: [`Self::parse`] refuses such.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its payload within `bytes`.
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes
            .get(usize::from(self.payload_at)..usize::from(self.end))
            .unwrap_or_default()
    }

    /// Writes the headers that the whole packet has, by its first fragment: what lengths and
    /// checksum must be is for [`finish`].
    pub fn write_headers(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let headers = bytes.get(..usize::from(self.headers));
        out.extend_from_slice(headers.unwrap_or_default());
        match self.next {
            Some((named_at, next)) => {
                if let Some(name) = out.get_mut(start + usize::from(named_at)) {
                    *name = next;
                }
            }
            None => {
                if let Some(place) = out.get_mut(start + 6..start + 8) {
                    place.fill(0); // it may be cut again on its way
                }
            }
        }
    }
}

/// Writes lengths and header checksum of a packet that was put together. `congested`: one of its
/// fragments met congestion (RFC 3168, section 5.3).
pub fn finish(packet: &mut [u8], congested: bool) {
    let bytes = packet.len();
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    if is_v4 {
        let headers = usize::from(packet[0] & 0x0f) * 4;
        let Some(header) = packet.get_mut(..headers) else {
            return;
        };
        header[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
        if congested {
            header[1] |= CONGESTION;
        }
        header[offset::IPV4_CHECKSUM..offset::IPV4_CHECKSUM + 2].fill(0);
        let sum = checksum::ipv4_header(header);
        header[offset::IPV4_CHECKSUM..offset::IPV4_CHECKSUM + 2]
            .copy_from_slice(&sum.to_be_bytes());
    } else if let Some(header) = packet.first_chunk_mut::<IPV6_HEADER_BYTES>() {
        let payload = bytes - IPV6_HEADER_BYTES;
        header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        if congested {
            header[1] |= CONGESTION << 4;
        }
    }
}

#[cfg(test)]
mod tests;
