//! pcap and pcapng: TCP packets, real ports, real times.
//!
//! The session of a packet is its client's address and port; `roles` says who is the client.
//! Packets that were captured twice are one access.

mod copies;
mod roles;

use fairlead_base::DropReason;
use fairlead_driver_pcap::{
    CaptureError, CaptureReader, Captured, Fault as CaptureFault, NotIp, ip_packet,
};
use fairlead_wire::checksum::PROTOCOL_TCP;
use fairlead_wire::packet::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, TCP_HEADER_BYTES, protocol};
use fairlead_wire::{Classified, TcpFlags, TcpPacket, classify};
use serde::{Deserialize, Serialize};

use crate::accesses::{HINT_CLOSING, HINT_NONE, HINT_OPENING};
use crate::builder::Access;
use crate::error::{Fault, Place, TraceError};
use crate::read::{AccessBuilder, Watch};
use crate::reason::{Passed, Reason, Step};
use crate::source::Source;

use copies::{Copies, fingerprint};
use roles::Roles;

/// Which packets of a capture are accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packets {
    /// Packets from clients: what a server's interface receives, and what the paper's miss ratios
    /// count.
    #[default]
    FromClients,
    /// Both directions: the state is also looked up for sending.
    Both,
}

/// Magic numbers of pcap (either byte order, micro- and nanoseconds, modified) and pcapng.
const MAGIC: [[u8; 4]; 7] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xcd, 0x34],
    [0x34, 0xcd, 0xb2, 0xa1],
    [0x0a, 0x0d, 0x0d, 0x0a],
];

pub(crate) fn begins(head: &[u8]) -> bool {
    MAGIC.iter().any(|magic| head.starts_with(magic))
}

/// Between two calls of the progress.
const TURN_PACKETS: u64 = 4_096;

/// IPv6's header of a fragment, by its number and bytes.
const V6_FRAGMENT: u8 = 44;
const V6_FRAGMENT_BYTES: usize = 8;

/// The longest IP packet, bytes.
const PACKET_MAX: usize = 65_536;

pub(crate) fn read(
    source: Source,
    packets: Packets,
    out: &mut AccessBuilder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let name = source.name().to_owned();
    let mut reader =
        CaptureReader::from_source(name, source).map_err(|error| failed(watch, error))?;
    let mut segments = Segments::default();
    let mut copies = Copies::default();
    let mut roles = Roles::default();
    loop {
        let captured = match reader.next_packet() {
            Ok(Some(captured)) => captured,
            Ok(None) => break,
            Err(error) => return Err(failed(watch, error)),
        };
        let number = captured.number;
        watch.add_bytes(captured.bytes.len() as u64);
        let mut is_due = false;
        let step = segments.read(&captured).map(|found| match found {
            Found::Segment(packet, fingerprint, stamp_ns) => {
                if fingerprint.is_some_and(|fingerprint| copies.is_copy(fingerprint, stamp_ns)) {
                    return Step::Passed(Passed::Copy);
                }
                let time_us = i64::try_from(stamp_ns / 1_000).unwrap_or(i64::MAX);
                is_due = roles.push(number, time_us, &packet, hint_of(packet.flags));
                Step::Row
            }
            Found::Passed(why) => Step::Passed(why),
        });
        if step != Ok(Step::Row) {
            watch.other(Place::Packet(number), step, roles.waiting() + out.rows())?;
        }
        if is_due {
            take(&mut roles, packets, out, watch)?;
        }
        if number % TURN_PACKETS == 0 {
            watch.turn(out.rows())?;
        }
    }
    take(&mut roles, packets, out, watch)?;
    watch.guessed(roles.guessed());
    Ok(())
}

/// Makes accesses of the packets that waited.
fn take(
    roles: &mut Roles,
    packets: Packets,
    out: &mut AccessBuilder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    roles.decide(|pending, decided| {
        let step = if decided.from_client || packets == Packets::Both {
            out.push(Access {
                time_us: pending.time_us,
                key: decided.client,
                hint: pending.hint,
            })
        } else {
            Ok(Step::Passed(Passed::FromServer))
        };
        match step {
            Ok(Step::Row) => Ok(()),
            step => watch.other(Place::Packet(pending.number), step, out.rows()),
        }
    })
}

fn hint_of(flags: TcpFlags) -> u8 {
    if flags.intersects(TcpFlags::FIN | TcpFlags::RST) {
        HINT_CLOSING
    } else if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
        HINT_OPENING
    } else {
        HINT_NONE
    }
}

fn failed(watch: &Watch<'_>, error: CaptureError) -> TraceError {
    let place = error.place.offset.map_or(Place::File, Place::Byte);
    let packet = error.place.packets_before + 1;
    let fault = match error.fault {
        CaptureFault::Cut => Fault::Cut(format!("packet {packet}")),
        CaptureFault::Read(error) | CaptureFault::Open(error) => Fault::of_io(error),
        CaptureFault::Unknown(what) => {
            Fault::Unknown(format!("neither pcap nor pcapng: it starts with {what}"))
        }
        CaptureFault::Damaged(what) => Fault::Damaged(what),
        other => Fault::Damaged(other.to_string()),
    };
    watch.error(place, fault)
}

/// True if the headers name a protocol other than TCP, even if they are otherwise invalid. Such
/// packets are not validated: neighbour solicitations come from `::`, DHCP from 0.0.0.0.
fn is_of_another_protocol(bytes: &[u8]) -> bool {
    protocol(bytes).is_some_and(|protocol| protocol != PROTOCOL_TCP)
}

/// The checksum of an IPv4 header whose own field is zero (RFC 791).
fn header_sum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let mut sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Minimum size of a packet's headers, bytes.
fn headers_len(bytes: &[u8]) -> usize {
    let first = bytes.first().copied().unwrap_or(0);
    let ip = match first >> 4 {
        4 => usize::from(first & 0x0f) * 4,
        _ => IPV6_HEADER_BYTES,
    };
    ip + TCP_HEADER_BYTES
}

/// The first fragment of a packet as a separate packet, and how many bytes shorter it is; `None`
/// for later fragments, which have no ports. The reassembled segment is one access, counted at the
/// fragment with the headers.
fn first_fragment(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut whole = bytes.to_vec();
    if bytes.first()? >> 4 == 4 {
        let header_len = usize::from(bytes[0] & 0x0f) * 4;
        let header = whole.get_mut(..header_len.max(IPV4_HEADER_BYTES))?;
        // Except for the flags, one of which says that more follow.
        if u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0 {
            return None;
        }
        header[6..8].fill(0);
        header[10..12].fill(0);
        let sum = header_sum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        return Some((whole, 0));
    }
    // Where the header before says which is next.
    let (mut next_at, mut at) = (6, IPV6_HEADER_BYTES);
    while *bytes.get(next_at)? != V6_FRAGMENT {
        (next_at, at) = (at, at + (usize::from(*bytes.get(at + 1)?) + 1) * 8);
    }
    let &[next, _, high, low, ..] = bytes.get(at..at + V6_FRAGMENT_BYTES)? else {
        return None;
    };
    if u16::from_be_bytes([high, low]) >> 3 != 0 {
        return None;
    }
    whole.drain(at..at + V6_FRAGMENT_BYTES);
    whole[next_at] = next;
    let len = u16::from_be_bytes([bytes[4], bytes[5]]).checked_sub(V6_FRAGMENT_BYTES as u16)?;
    whole[4..6].copy_from_slice(&len.to_be_bytes());
    Some((whole, V6_FRAGMENT_BYTES))
}

enum Found {
    /// A segment, the fingerprint of its copies if they have one, and its time in nanoseconds.
    Segment(TcpPacket, Option<u64>, u64),
    Passed(Passed),
}

/// Reads the TCP segments of captured packets.
#[derive(Debug, Default)]
struct Segments {
    whole: Vec<u8>,
}

impl Segments {
    fn read(&mut self, captured: &Captured<'_>) -> Result<Found, Reason> {
        let (packet, fingerprint) = match self.segment(captured) {
            Ok(Some(found)) => found,
            // Whatever bytes there are: of such a link none is understood.
            Ok(None) if matches!(ip_packet(captured.link, &[]), Err(NotIp::Link(_))) => {
                return Ok(Found::Passed(Passed::Link));
            }
            Ok(None) => return Ok(Found::Passed(Passed::NotTcp)),
            Err(DropReason::Fragment) => return Ok(Found::Passed(Passed::Fragment)),
            Err(DropReason::NotTcp) => return Ok(Found::Passed(Passed::NotTcp)),
            Err(DropReason::Truncated) => return Err(Reason::Snapped),
            Err(_) => return Err(Reason::Headers),
        };
        // A file that has said no time yet means none, not 1970.
        let stamp_ns = captured.stamp_ns.ok_or(Reason::Time)?;
        Ok(Found::Segment(packet, fingerprint, stamp_ns))
    }

    /// The TCP segment of a packet (headers suffice), and its fingerprint; `None` for a packet
    /// without one.
    fn segment(
        &mut self,
        captured: &Captured<'_>,
    ) -> Result<Option<(TcpPacket, Option<u64>)>, DropReason> {
        let Ok(ip) = ip_packet(captured.link, captured.bytes) else {
            return Ok(None);
        };
        if is_of_another_protocol(ip.bytes) {
            return Ok(None);
        }
        let (mut bytes, mut shorter) = (ip.bytes, 0);
        let mut classified = classify(bytes);
        if let Err(DropReason::Truncated | DropReason::BadIpChecksum) = classified {
            bytes = self.mended(ip.bytes, ip.bytes.len() + ip.missing)?;
            classified = classify(bytes);
        }
        if classified == Err(DropReason::Fragment)
            && let Some((whole, by)) = first_fragment(bytes)
        {
            // A fragment that ends within the TCP header is skipped like later ones.
            classified = classify(&whole).map_err(|_| DropReason::Fragment);
            shorter = by;
        }
        let classified = classified.map_err(|reason| match reason {
            // What was not captured cannot be wrong.
            DropReason::Fragment => reason,
            _ if ip.missing > 0 && ip.bytes.len() < headers_len(ip.bytes) => DropReason::Truncated,
            _ => reason,
        })?;
        let Classified::Tcp(packet) = classified else {
            return Ok(None);
        };
        let header = ip.bytes.get(usize::from(packet.tcp_at) + shorter..);
        let header = header.filter(|header| header.len() >= TCP_HEADER_BYTES);
        let header = header.ok_or(DropReason::Truncated)?;
        Ok(Some((packet, fingerprint(&packet, ip.bytes, header))))
    }

    /// The packet as it was on the wire: with its full length, and the length field and checksum
    /// that the sender's NIC filled in after the capture. Uncaptured bytes are not examined.
    fn mended(&mut self, bytes: &[u8], len: usize) -> Result<&[u8], DropReason> {
        if len > PACKET_MAX {
            return Err(DropReason::Truncated);
        }
        self.whole.resize(self.whole.len().max(len), 0);
        let whole = &mut self.whole[..len];
        whole[..bytes.len()].copy_from_slice(bytes);
        let header_len = usize::from(bytes.first().copied().unwrap_or(0) & 0x0f) * 4;
        let is_v4 = bytes.first().is_some_and(|first| first >> 4 == 4);
        if is_v4 && header_len >= IPV4_HEADER_BYTES && bytes.len() >= header_len {
            let total = u16::try_from(len).map_err(|_| DropReason::Truncated)?;
            whole[2..4].copy_from_slice(&total.to_be_bytes());
            whole[10..12].fill(0);
            let sum = header_sum(&whole[..header_len]);
            whole[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(whole)
    }
}
