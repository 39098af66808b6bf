//! Whether a TCP checksum is as it must be, by the slow twin where the field is partial.

use fairlead_base::{Checksum, Packet};
use fairlead_testkit::oracle;
use fairlead_wire::TcpPacket;

/// True when the checksum of a packet with this header is right for its kind: complete, or the sum
/// of the pseudo-header for a device to go on from.
pub(super) fn is_right(packet: &Packet, header: &TcpPacket) -> bool {
    if packet.checksum != Checksum::Partial {
        return header.checksum_valid(&packet.bytes);
    }
    let at = usize::from(header.tcp_at);
    let field = u16::from_be_bytes([packet.bytes[at + 16], packet.bytes[at + 17]]);
    let length = u32::from(header.end - header.tcp_at);
    let pseudo = oracle::pseudo_header(&header.key.src.addr, &header.key.dst.addr, length);
    // The two zeros of ones' complement are one number.
    let is_zero = |sum: u16| matches!(sum, 0 | 0xffff);
    field == pseudo || is_zero(field) && is_zero(pseudo)
}
