//! "Fragmentation needed" (RFC 792, RFC 1191) and "packet too big" (RFC 4443): built by the
//! simulated routers, read by the simulated hosts.

use core::net::{Ipv4Addr, Ipv6Addr};

use fairlead_base::{Endpoint, SeqNumber};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, checksum};

use super::segment::ip_pair;

/// The routers' addresses (documentation ranges: RFC 5737, RFC 3849).
pub(crate) const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);

/// The message that a router sends back about `original`, quoting its header and `quote_bytes` of
/// its payload. `None` when `original` is not IP.
pub(crate) fn too_big(original: &[u8], mtu: usize, quote_bytes: usize) -> Option<Vec<u8>> {
    let bounds = ip_pair(original).ok()?;
    let quote = &original[..(bounds.payload_at + quote_bytes.max(8)).min(bounds.end)];
    match bounds.src {
        IpAddress::Ipv4(to) => {
            let mut icmp = vec![3, 4, 0, 0, 0, 0];
            icmp.extend_from_slice(&(mtu as u16).to_be_bytes());
            icmp.extend_from_slice(quote);
            let sum = !checksum::data(&icmp);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut bytes = vec![0; 20];
            bytes.extend_from_slice(&icmp);
            bytes[0] = 0x45;
            let len = bytes.len() as u16;
            let mut ip = Ipv4Packet::new_unchecked(&mut bytes);
            ip.set_total_len(len);
            ip.set_hop_limit(64);
            ip.set_next_header(IpProtocol::Icmp);
            ip.set_src_addr(ROUTER_V4);
            ip.set_dst_addr(to);
            ip.fill_checksum();
            Some(bytes)
        }
        IpAddress::Ipv6(to) => {
            let mut icmp = vec![2, 0, 0, 0];
            icmp.extend_from_slice(&(mtu as u32).to_be_bytes());
            icmp.extend_from_slice(quote);
            let sum = icmp_v6_sum(&ROUTER_V6, &to, &icmp);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut bytes = vec![0; 40];
            bytes.extend_from_slice(&icmp);
            bytes[0] = 0x60;
            let mut ip = Ipv6Packet::new_unchecked(&mut bytes);
            ip.set_payload_len(icmp.len() as u16);
            ip.set_next_header(IpProtocol::Icmpv6);
            ip.set_hop_limit(64);
            ip.set_src_addr(ROUTER_V6);
            ip.set_dst_addr(to);
            Some(bytes)
        }
    }
}

fn icmp_v6_sum(src: &Ipv6Addr, dst: &Ipv6Addr, icmp: &[u8]) -> u16 {
    let (src, dst) = (IpAddress::Ipv6(*src), IpAddress::Ipv6(*dst));
    let pseudo = checksum::pseudo_header(&src, &dst, IpProtocol::Icmpv6, icmp.len() as u32);
    !checksum::combine(&[pseudo, checksum::data(icmp)])
}

/// What a "too big" message says of the packet it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    pub(crate) mtu: usize,
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
    pub(crate) seq: SeqNumber,
}

impl TooBig {
    /// `Ok(None)` when it is something else than ICMP "too big"; an error when it is that, and
    /// wrong.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let bounds = ip_pair(bytes)?;
        let icmp = &bytes[bounds.payload_at..bounds.end];
        let (mtu, quote) = match (bounds.src, bounds.dst, bounds.protocol) {
            (IpAddress::Ipv4(_), IpAddress::Ipv4(_), IpProtocol::Icmp) => {
                if icmp.len() < 8 || icmp[..2] != [3, 4] {
                    return Ok(None);
                }
                if checksum::data(icmp) != u16::MAX {
                    return Err("ICMP checksum");
                }
                (
                    usize::from(u16::from_be_bytes([icmp[6], icmp[7]])),
                    &icmp[8..],
                )
            }
            (IpAddress::Ipv6(src), IpAddress::Ipv6(dst), IpProtocol::Icmpv6) => {
                if icmp.len() < 8 || icmp[..2] != [2, 0] {
                    return Ok(None);
                }
                if icmp_v6_sum(&src, &dst, icmp) != 0 {
                    return Err("ICMPv6 checksum");
                }
                let mtu = u32::from_be_bytes([icmp[4], icmp[5], icmp[6], icmp[7]]);
                (mtu as usize, &icmp[8..])
            }
            _ => return Ok(None),
        };
        Self::read_quote(mtu, quote)
            .map(Some)
            .ok_or("quoted packet")
    }

    fn read_quote(mtu: usize, quote: &[u8]) -> Option<Self> {
        let (src, dst, tcp_at): (core::net::IpAddr, core::net::IpAddr, usize) =
            match quote.first()? >> 4 {
                4 => {
                    let header = quote.get(..20)?;
                    let len = usize::from(header[0] & 15) * 4;
                    // The quotation of a translated packet must be of one piece: the checksum of
                    // the quoted header is still right (RFC 5508, section 4.2).
                    if checksum::data(quote.get(..len)?) != u16::MAX || header[9] != 6 {
                        return None;
                    }
                    let ip = Ipv4Packet::new_unchecked(header);
                    (ip.src_addr().into(), ip.dst_addr().into(), len)
                }
                6 => {
                    let ip = Ipv6Packet::new_unchecked(quote.get(..40)?);
                    if ip.next_header() != IpProtocol::Tcp {
                        return None;
                    }
                    (ip.src_addr().into(), ip.dst_addr().into(), 40)
                }
                _ => return None,
            };
        let tcp = quote.get(tcp_at..tcp_at + 8)?;
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some(Self {
            mtu,
            src: Endpoint {
                addr: src.into(),
                port: word(0),
            },
            dst: Endpoint {
                addr: dst.into(),
                port: word(2),
            },
            seq: SeqNumber(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])),
        })
    }
}
