//! A TCP packet as the oracles see it, read by smoltcp's parser: not by the one under test.

use fairlead_base::{Endpoint, SeqNumber};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// Header fields of a TCP packet whose lengths and checksums are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) hop_limit: u8,
    /// Offset of the TCP header.
    pub(crate) tcp_at: usize,
    /// Offset of the payload.
    pub(crate) payload_at: usize,
    /// End of the payload.
    pub(crate) end: usize,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) sack: [Option<(u32, u32)>; 3],
    /// Value and echo.
    pub(crate) timestamps: Option<(u32, u32)>,
}

impl Segment {
    /// Reads a packet; the error says what is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let bounds = ip_pair(bytes)?;
        let (src, dst, tcp_at, end) = (bounds.src, bounds.dst, bounds.payload_at, bounds.end);
        if bounds.protocol != IpProtocol::Tcp {
            return Err("not TCP");
        }
        let tcp = TcpPacket::new_checked(&bytes[tcp_at..end]).map_err(|_| "TCP lengths")?;
        if !tcp.verify_checksum(&src, &dst) {
            return Err("TCP checksum");
        }
        let mut segment = Self::fields(bytes, &bounds)?;
        segment.read_options(tcp.options())?;
        Ok(segment)
    }

    /// As [`Self::read`], without looking at the TCP checksum (a device may still owe it).
    pub(crate) fn read_unsummed(bytes: &[u8]) -> Result<Self, &'static str> {
        let bounds = ip_pair(bytes)?;
        if bounds.protocol != IpProtocol::Tcp {
            return Err("not TCP");
        }
        let tcp = TcpPacket::new_checked(&bytes[bounds.payload_at..bounds.end])
            .map_err(|_| "TCP lengths")?;
        let mut segment = Self::fields(bytes, &bounds)?;
        segment.read_options(tcp.options())?;
        Ok(segment)
    }

    fn fields(bytes: &[u8], bounds: &IpBounds) -> Result<Self, &'static str> {
        let tcp_at = bounds.payload_at;
        let tcp = TcpPacket::new_unchecked(&bytes[tcp_at..bounds.end]);
        Ok(Self {
            src: endpoint(bounds.src, tcp.src_port()),
            dst: endpoint(bounds.dst, tcp.dst_port()),
            seq: SeqNumber(tcp.seq_number().0 as u32),
            ack: SeqNumber(tcp.ack_number().0 as u32),
            flags: bytes[tcp_at + 13],
            window: tcp.window_len(),
            urgent: tcp.urgent_at(),
            hop_limit: bounds.hop_limit,
            tcp_at,
            payload_at: tcp_at + usize::from(tcp.header_len()),
            end: bounds.end,
            mss: None,
            scale: None,
            sack_permitted: false,
            sack: [None; 3],
            timestamps: None,
        })
    }

    fn read_options(&mut self, mut options: &[u8]) -> Result<(), &'static str> {
        while !options.is_empty() {
            let (rest, option) = TcpOption::parse(options).map_err(|_| "TCP options")?;
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => self.mss = Some(mss),
                TcpOption::WindowScale(scale) => self.scale = Some(scale),
                TcpOption::SackPermitted => self.sack_permitted = true,
                TcpOption::SackRange(ranges) => self.sack = ranges,
                TcpOption::TimeStamp { tsval, tsecr } => self.timestamps = Some((tsval, tsecr)),
                TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            }
            options = rest;
        }
        Ok(())
    }

    /// The same with its ends exchanged.
    pub(crate) fn turned(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            ..*self
        }
    }

    /// True when any of these flags is set.
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Sequence numbers used: payload, SYN and FIN.
    pub(crate) fn span(&self) -> u32 {
        (self.end - self.payload_at) as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    /// True for the segment by which the switch asks a host whether it still has a connection,
    /// after a reset of which that is doubtful. It has numbers from before the first byte and, as
    /// the switch knows none, no timestamps; it acknowledges nothing but `isn_out`, the host's SYN.
    pub(crate) fn asks_who_is_there(&self, isn_out: SeqNumber) -> bool {
        self.flags == ACK
            && self.payload_at == self.end
            && self.timestamps.is_none()
            && self.ack == isn_out + 1
    }

    /// The stream bytes it carries.
    pub(crate) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.payload_at..self.end]
    }

    /// `S. 10.0.0.1:80 > …`, as packet listings write it.
    pub(crate) fn describe(&self) -> String {
        let mut flags = String::new();
        for (bit, letter) in [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (ACK, '.')] {
            if self.has(bit) {
                flags.push(letter);
            }
        }
        let mut line = format!("{} > {} [{flags}] seq {}", self.src, self.dst, self.seq);
        if self.has(ACK) {
            line += &format!(" ack {}", self.ack);
        }
        line += &format!(" win {} len {}", self.window, self.end - self.payload_at);
        if let Some(mss) = self.mss {
            line += &format!(" mss {mss}");
        }
        if let Some(scale) = self.scale {
            line += &format!(" wscale {scale}");
        }
        if self.sack_permitted {
            line += " sackOK";
        }
        if let Some((value, echo)) = self.timestamps {
            line += &format!(" ts {value}/{echo}");
        }
        for (left, right) in self.sack.iter().flatten() {
            line += &format!(" sack {left}-{right}");
        }
        line
    }
}

/// What the IP header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpBounds {
    pub(crate) src: IpAddress,
    pub(crate) dst: IpAddress,
    pub(crate) protocol: IpProtocol,
    pub(crate) hop_limit: u8,
    pub(crate) payload_at: usize,
    pub(crate) end: usize,
}

/// Reads an IP header whose lengths and checksum are right.
pub(crate) fn ip_pair(bytes: &[u8]) -> Result<IpBounds, &'static str> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => {
            let ip = Ipv4Packet::new_checked(bytes).map_err(|_| "IPv4 lengths")?;
            if !ip.verify_checksum() {
                return Err("IPv4 header checksum");
            }
            if ip.more_frags() || ip.frag_offset() != 0 {
                return Err("IPv4 fragment");
            }
            Ok(IpBounds {
                src: IpAddress::Ipv4(ip.src_addr()),
                dst: IpAddress::Ipv4(ip.dst_addr()),
                protocol: ip.next_header(),
                hop_limit: ip.hop_limit(),
                payload_at: usize::from(ip.header_len()),
                end: usize::from(ip.total_len()),
            })
        }
        Some(6) => {
            let ip = Ipv6Packet::new_checked(bytes).map_err(|_| "IPv6 lengths")?;
            Ok(IpBounds {
                src: IpAddress::Ipv6(ip.src_addr()),
                dst: IpAddress::Ipv6(ip.dst_addr()),
                protocol: ip.next_header(),
                hop_limit: ip.hop_limit(),
                payload_at: 40,
                end: 40 + usize::from(ip.payload_len()),
            })
        }
        _ => Err("IP version"),
    }
}

fn endpoint(addr: IpAddress, port: u16) -> Endpoint {
    let addr = match addr {
        IpAddress::Ipv4(v4) => core::net::IpAddr::V4(v4),
        IpAddress::Ipv6(v6) => core::net::IpAddr::V6(v6),
    };
    Endpoint {
        addr: addr.into(),
        port,
    }
}

/// Makes both checksums of a TCP packet right again after a change.
pub(crate) fn seal(bytes: &mut [u8]) {
    if bytes.first().is_some_and(|first| first >> 4 == 4) {
        Ipv4Packet::new_unchecked(&mut *bytes).fill_checksum();
    }
    if let Ok(bounds) = ip_pair(bytes)
        && bounds.protocol == IpProtocol::Tcp
    {
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[bounds.payload_at..bounds.end]);
        tcp.fill_checksum(&bounds.src, &bounds.dst);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A packet from .1:1000 to .2:80, by hand.
    pub(crate) fn packet(v6: bool, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = if v6 {
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
            ip.extend([0x20; 16]);
            ip.extend([0x21; 16]);
            ip[4..6].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            ip
        } else {
            let mut ip = vec![
                0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ];
            ip[2..4].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
            ip
        };
        bytes.extend([0x03, 0xe8, 0, 80]);
        bytes.extend(seq.to_be_bytes());
        bytes.extend([0, 0, 0, 9, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(payload);
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn a_packet_reads_as_written_and_any_flipped_bit_of_it_is_noticed() {
        let bytes = packet(false, 77, ACK | PSH, b"hello");
        let segment = Segment::read(&bytes).unwrap();
        assert_eq!((segment.seq, segment.ack), (SeqNumber(77), SeqNumber(9)));
        assert_eq!(segment.payload(&bytes), b"hello");
        assert_eq!(segment.span(), 5);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::read(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn too_big_messages_read_back_in_both_families() {
        use crate::net::{TooBig, too_big};
        for v6 in [false, true] {
            let original = packet(v6, 123_456, ACK, &[7; 900]);
            let message = too_big(&original, 1_300, 8).unwrap();
            let quoted = TooBig::read(&message).unwrap().unwrap();
            let segment = Segment::read(&original).unwrap();
            assert_eq!((quoted.mtu, quoted.seq), (1_300, SeqNumber(123_456)));
            assert_eq!((quoted.src, quoted.dst), (segment.src, segment.dst));
            assert_eq!(TooBig::read(&original), Ok(None));
        }
    }
}
