//! Attackers: packets not sent by any host of the world. They know addresses and ports, but no
//! sequence numbers. They must not disturb a connection or make the switch's memory grow.

use fairlead_base::{Address, Endpoint, SeqNumber};
use smoltcp::wire::Ipv4Packet;

use crate::dice::Dice;
use crate::net::segment::{ACK, FIN, PSH, RST, SYN, seal};
use crate::net::too_big;
use crate::oracle::Taps;

/// One packet of mischief. `vips` are the listening endpoints.
pub(crate) fn packet(dice: &mut Dice, vips: &[Endpoint], taps: &Taps) -> Vec<u8> {
    let flows = taps.live();
    match dice.between(0, 9) {
        0 => garbage(dice),
        1..=3 => flood(dice, vips),
        _ if flows.is_empty() => flood(dice, vips),
        4 => forged_too_big(dice, &flows),
        _ => blind(dice, &flows),
    }
}

/// A connection as a stranger would like to know it: both ends, and about where its numbers are.
pub(crate) struct Target {
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
}

/// The address of one of many strangers.
pub(crate) fn stranger(dice: &mut Dice, v4: bool) -> Address {
    let low = dice.word().to_be_bytes();
    if v4 {
        return Address::v4([10, 66, low[0], low[1]]);
    }
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfd, 0x66]);
    octets[8..].copy_from_slice(&low);
    Address::v6(octets)
}

/// True for an address that [`stranger`] makes.
pub(crate) fn is_stranger(addr: &Address) -> bool {
    if addr.is_v4() {
        addr.v4_octets()[..2] == [10, 66]
    } else {
        addr.0[..2] == [0xfd, 0x66]
    }
}

fn garbage(dice: &mut Dice) -> Vec<u8> {
    let len = dice.between(0, 120) as usize;
    let mut bytes: Vec<u8> = (0..len).map(|_| dice.word() as u8).collect();
    // Half of it looks like IP at first.
    if let Some(first) = bytes.first_mut() {
        *first = dice.pick(&[0x45, 0x46, 0x60, *first]);
    }
    if bytes.len() >= 20 && bytes[0] == 0x45 {
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&[0x40, 0]);
        bytes[9] = dice.pick(&[6, 6, 1, 17]);
        bytes[12..14].copy_from_slice(&[10, 66]);
        Ipv4Packet::new_unchecked(&mut bytes).fill_checksum();
    }
    bytes
}

/// A SYN, or an acknowledgement without a SYN-ACK, from an unused address.
fn flood(dice: &mut Dice, vips: &[Endpoint]) -> Vec<u8> {
    let vip = dice.pick(vips);
    let src = Endpoint {
        addr: stranger(dice, vip.addr.is_v4()),
        port: dice.between(1, 65_535) as u16,
    };
    let flags = dice.pick(&[SYN, SYN, SYN, ACK, ACK | PSH, FIN | ACK, RST, SYN | FIN, 0]);
    let payload = if flags & PSH != 0 {
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..]
    } else {
        b""
    };
    let (seq, ack) = (dice.word() as u32, dice.word() as u32);
    forge(src, vip, seq, ack, flags, payload)
}

/// A packet between two connected ends with wrong numbers: slightly beyond the largest window, far
/// ahead, or far behind.
fn blind(dice: &mut Dice, flows: &[Target]) -> Vec<u8> {
    let target = &flows[dice.between(0, flows.len() as u32 - 1) as usize];
    let off = dice.pick(&[
        1u32 << 23,
        1 << 25,
        1 << 28,
        (1 << 30) - 5,
        1 << 31,
        u32::MAX << 24,
    ]);
    let seq = target.seq.0.wrapping_add(off);
    // A stranger who knew this number could have the closed end of a tuple reset the open one.
    let ack = target
        .ack
        .0
        .wrapping_add(dice.pick(&[1 << 25, 1 << 31, u32::MAX << 25]));
    let flags = dice.pick(&[
        RST,
        RST,
        RST | ACK,
        FIN | ACK,
        ACK,
        ACK | PSH,
        SYN,
        SYN | ACK,
    ]);
    let payload = if flags & PSH != 0 {
        &b"forged"[..]
    } else {
        b""
    };
    forge(target.src, target.dst, seq, ack, flags, payload)
}

/// "Packet too big" about a packet that was never sent.
fn forged_too_big(dice: &mut Dice, flows: &[Target]) -> Vec<u8> {
    let target = &flows[dice.between(0, flows.len() as u32 - 1) as usize];
    let seq = target.ack.0.wrapping_add(1 << 27);
    // It would have been sent the other way.
    let quoted = forge(target.dst, target.src, seq, 0, ACK, &[0; 40]);
    too_big(&quoted, 600, 8).unwrap_or_default()
}

fn forge(src: Endpoint, dst: Endpoint, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let tcp_len = (20 + payload.len()) as u16;
    let mut bytes = if dst.addr.is_v4() {
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
        ip[2..4].copy_from_slice(&(20 + tcp_len).to_be_bytes());
        ip.extend(src.addr.v4_octets());
        ip.extend(dst.addr.v4_octets());
        ip
    } else {
        let mut ip = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
        ip[4..6].copy_from_slice(&tcp_len.to_be_bytes());
        ip.extend(src.addr.0);
        ip.extend(dst.addr.0);
        ip
    };
    bytes.extend(src.port.to_be_bytes());
    bytes.extend(dst.port.to_be_bytes());
    bytes.extend(seq.to_be_bytes());
    bytes.extend(ack.to_be_bytes());
    bytes.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(payload);
    seal(&mut bytes);
    bytes
}
