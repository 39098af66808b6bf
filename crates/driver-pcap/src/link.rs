//! From the link header to the IP packet.

use core::fmt;

/// What the first byte of a captured packet belongs to: a number of the registry at
/// tcpdump.org/linktypes.html.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: 4 bytes of address family, in the byte order of the machine that captured.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP, either version.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: 4 bytes of address family, in network order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture.
    pub const LINUX_SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

/// Why a captured packet holds no IP packet that could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotIp {
    /// A link type that is not understood.
    Link(u16),
    /// Another protocol than IP, by EtherType.
    Protocol(u16),
    /// An Ethernet packet with a length in the place of the EtherType (IEEE 802.3).
    Ieee8023,
    /// An IP version that does not exist.
    Version(u8),
    /// Shorter than the headers that should be there.
    Short,
}

impl fmt::Display for NotIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(number) => write!(f, "link type {number} is not understood"),
            Self::Protocol(0x0806) => f.write_str("ARP"),
            Self::Ieee8023 => f.write_str("IEEE 802.3"),
            Self::Version(number) => write!(f, "IP version {number}"),
            Self::Protocol(number) => write!(f, "protocol {number:#06x}, not IP"),
            Self::Short => f.write_str("too short for its headers"),
        }
    }
}

/// The captured part of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpBytes<'a> {
    /// From the IP header on; padding and trailers of the link are cut off.
    pub bytes: &'a [u8],
    /// Bytes at its end that were on the wire but not captured.
    pub missing: usize,
}

const ETHERNET_BYTES: usize = 14;
const SLL_BYTES: usize = 16;
const SLL2_BYTES: usize = 20;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// IEEE 802.1Q, 802.1ad, and the older numbers for stacked tags.
const VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
/// Maximum number of stacked tags.
const VLAN_TAGS_MAX: usize = 8;

/// Finds the IP packet in a captured packet.
///
/// # Errors
/// [`NotIp`]: what it holds instead.
pub fn ip_packet(link: LinkType, bytes: &[u8]) -> Result<IpBytes<'_>, NotIp> {
    match link {
        LinkType::ETHERNET => tagged(bytes, ETHERNET_BYTES - 2),
        LinkType::LINUX_SLL => tagged(bytes, SLL_BYTES - 2),
        LinkType::LINUX_SLL2 => {
            let protocol = u16_at(bytes, 0)?;
            let rest = bytes.get(SLL2_BYTES..).ok_or(NotIp::Short)?;
            match protocol {
                IPV4 | IPV6 => trimmed(rest),
                // The tag's own bytes follow, then the protocol within.
                _ if VLAN.contains(&protocol) => tagged(rest, 2),
                other => Err(NotIp::Protocol(other)),
            }
        }
        LinkType::NULL | LinkType::LOOP => {
            let family = bytes.first_chunk::<4>().ok_or(NotIp::Short)?;
            // Families fit one byte; its position shows the byte order.
            match family {
                [0, 0, 0, family] | [family, 0, 0, 0]
                    if matches!(family, 2 | 10 | 24 | 28 | 30) =>
                {
                    trimmed(&bytes[4..])
                }
                _ => Err(NotIp::Protocol(u16_at(bytes, 2)?)),
            }
        }
        // 12 and 14 are what some systems wrote for raw IP.
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 | LinkType(12 | 14) => trimmed(bytes),
        LinkType(other) => Err(NotIp::Link(other)),
    }
}

/// `type_at` is the offset of the EtherType; VLAN tags may precede the packet.
fn tagged(bytes: &[u8], mut type_at: usize) -> Result<IpBytes<'_>, NotIp> {
    for _ in 0..=VLAN_TAGS_MAX {
        let protocol = u16_at(bytes, type_at)?;
        match protocol {
            IPV4 | IPV6 => return trimmed(&bytes[type_at + 2..]),
            _ if VLAN.contains(&protocol) => type_at += 4,
            length if length < 0x0600 => return Err(NotIp::Ieee8023),
            other => return Err(NotIp::Protocol(other)),
        }
    }
    Err(NotIp::Protocol(u16_at(bytes, type_at)?))
}

/// Removes link-layer padding, and records how much was not captured.
fn trimmed(bytes: &[u8]) -> Result<IpBytes<'_>, NotIp> {
    let total = match bytes.first().ok_or(NotIp::Short)? >> 4 {
        4 => match u16_at(bytes, 2)? {
            // Left to the device that was to cut the packet into segments (TSO).
            0 => bytes.len(),
            total => usize::from(total),
        },
        6 => match u16_at(bytes, 4)? {
            0 => bytes.len(),
            payload => 40 + usize::from(payload),
        },
        version => return Err(NotIp::Version(version)),
    };
    Ok(IpBytes {
        bytes: &bytes[..total.min(bytes.len())],
        missing: total.saturating_sub(bytes.len()),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, NotIp> {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    two.map(|two| u16::from_be_bytes(*two)).ok_or(NotIp::Short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(len: u16) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 0];
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes.resize(usize::from(len), 0xaa);
        bytes
    }

    fn framed(header: &[u8], rest: &[u8]) -> Vec<u8> {
        [header, rest].concat()
    }

    #[track_caller]
    fn found(link: LinkType, bytes: &[u8]) -> (usize, usize) {
        let ip = ip_packet(link, bytes).unwrap();
        assert_eq!(ip.bytes[0], 0x45);
        (ip.bytes.len(), ip.missing)
    }

    #[test]
    fn ethernet_with_any_number_of_tags_and_padding() {
        let macs = [0u8; 12];
        let plain = framed(&[&macs[..], &[0x08, 0x00]].concat(), &ipv4(40));
        assert_eq!(found(LinkType::ETHERNET, &plain), (40, 0));
        let padded = framed(&plain, &[0; 6]);
        assert_eq!(found(LinkType::ETHERNET, &padded), (40, 0));
        assert_eq!(found(LinkType::ETHERNET, &plain[..34]), (20, 20));
        let mut header = macs.to_vec();
        for tag in VLAN {
            header.extend(tag.to_be_bytes());
            header.extend([0x20, 0x07]);
        }
        header.extend([0x08, 0x00]);
        assert_eq!(
            found(LinkType::ETHERNET, &framed(&header, &ipv4(52))),
            (52, 0)
        );
        let endless = [&macs[..], &[0x81, 0x00, 0, 1].repeat(20)].concat();
        assert_eq!(
            ip_packet(LinkType::ETHERNET, &endless),
            Err(NotIp::Protocol(0x8100))
        );
        let arp = framed(&[&macs[..], &[0x08, 0x06]].concat(), &[0; 28]);
        assert_eq!(
            ip_packet(LinkType::ETHERNET, &arp),
            Err(NotIp::Protocol(0x0806))
        );
        let llc = framed(&[&macs[..], &[0, 38]].concat(), &[0x42; 38]);
        assert_eq!(ip_packet(LinkType::ETHERNET, &llc), Err(NotIp::Ieee8023));
        assert_eq!(
            ip_packet(LinkType::ETHERNET, &plain[..13]),
            Err(NotIp::Short)
        );
        assert_eq!(
            ip_packet(LinkType::ETHERNET, &plain[..14]),
            Err(NotIp::Short)
        );
    }

    #[test]
    fn cooked_headers_of_both_versions() {
        let mut header = [0u8; 16];
        header[14..].copy_from_slice(&IPV4.to_be_bytes());
        assert_eq!(
            found(LinkType::LINUX_SLL, &framed(&header, &ipv4(40))),
            (40, 0)
        );
        let mut header = [0u8; 20];
        header[..2].copy_from_slice(&IPV4.to_be_bytes());
        assert_eq!(
            found(LinkType::LINUX_SLL2, &framed(&header, &ipv4(40))),
            (40, 0)
        );
        header[..2].copy_from_slice(&[0x81, 0x00]);
        let tagged = framed(&header, &framed(&[0, 7, 0x08, 0x00], &ipv4(40)));
        assert_eq!(found(LinkType::LINUX_SLL2, &tagged), (40, 0));
        assert_eq!(
            ip_packet(LinkType::LINUX_SLL2, &header[..19]),
            Err(NotIp::Short)
        );
    }

    #[test]
    fn loopback_in_either_byte_order() {
        for family in [[2, 0, 0, 0], [0, 0, 0, 2], [30, 0, 0, 0], [0, 0, 0, 10]] {
            for link in [LinkType::NULL, LinkType::LOOP] {
                assert_eq!(found(link, &framed(&family, &ipv4(40))), (40, 0));
            }
        }
        assert!(ip_packet(LinkType::NULL, &framed(&[7, 0, 0, 0], &ipv4(40))).is_err());
        assert_eq!(ip_packet(LinkType::NULL, &[2, 0, 0]), Err(NotIp::Short));
    }

    #[test]
    fn raw_packets_of_both_versions() {
        let mut v6 = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        v6.resize(60, 1);
        for link in [101, 12, 14, 229] {
            let ip = ip_packet(LinkType(link), &v6).unwrap();
            assert_eq!((ip.bytes.len(), ip.missing), (60, 0));
        }
        let snapped = ip_packet(LinkType::RAW, &v6[..45]).unwrap();
        assert_eq!((snapped.bytes.len(), snapped.missing), (45, 15));
        assert_eq!(ip_packet(LinkType(147), &v6), Err(NotIp::Link(147)));
        assert_eq!(ip_packet(LinkType::RAW, &[]), Err(NotIp::Short));
        assert_eq!(
            ip_packet(LinkType::RAW, &[0x70; 60]),
            Err(NotIp::Version(7))
        );
    }

    #[test]
    fn a_packet_that_was_to_be_cut_has_the_length_it_was_captured_with() {
        let mut uncut = ipv4(60);
        uncut[2..4].fill(0);
        assert_eq!(found(LinkType::RAW, &uncut), (60, 0));
    }

    #[test]
    fn reasons_have_words() {
        assert_eq!(NotIp::Protocol(0x0806).to_string(), "ARP");
        assert_eq!(NotIp::Version(7).to_string(), "IP version 7");
        assert_eq!(
            NotIp::Protocol(0x88cc).to_string(),
            "protocol 0x88cc, not IP"
        );
    }
}
