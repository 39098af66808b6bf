//! Packets that arrive in fragments (decision 0026).

use core::time::Duration;

use fairlead_base::{DropReason, Packet};
use fairlead_datapath::{Side, State, Verdict};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{build, checksum};

use crate::rig::{Ends, Joined, REQUEST, Rig, http_config, linux, v6_config};

/// The packet in fragments with at most `bytes` bytes of payload, a multiple of eight.
fn fragments(packet: &Packet, bytes: usize) -> Vec<Packet> {
    let v4 = packet.bytes[0] >> 4 == 4;
    let headers = if v4 { 20 } else { 40 };
    let payload = &packet.bytes[headers..];
    let mut parts = Vec::new();
    for (index, piece) in payload.chunks(bytes).enumerate() {
        let at = index * bytes;
        let more = at + piece.len() < payload.len();
        let mut part = packet.bytes[..headers].to_vec();
        if v4 {
            part[2..4].copy_from_slice(&(20 + piece.len() as u16).to_be_bytes());
            part[4..6].copy_from_slice(&[7, 7]);
            let place = (at / 8) as u16 | u16::from(more) << 13;
            part[6..8].copy_from_slice(&place.to_be_bytes());
            part[10..12].fill(0);
            let sum = checksum::ipv4_header(&part);
            part[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            part[4..6].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
            let protocol = core::mem::replace(&mut part[6], 44);
            let [high, low] = (at as u16 | u16::from(more)).to_be_bytes();
            part.extend_from_slice(&[protocol, 0, high, low, 0, 0, 7, 7]);
        }
        part.extend_from_slice(piece);
        parts.push(Packet::from_bytes(&part));
    }
    parts
}

/// A request in fragments is answered by its server's SYN, data in fragments by one translated
/// packet; both ways, where the switch has an address of its own.
#[test]
fn fragments_to_the_switch_are_handled_as_the_packet_that_they_are_of() {
    for config in [http_config(), v6_config()] {
        let mut rig = Rig::probed(config.clone(), &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        let parts = fragments(&opened.data(0, REQUEST).packet(), 24);
        assert!(parts.len() > 2);
        let (last, first) = parts.split_last().unwrap();
        for part in first.iter().rev() {
            assert!(rig.put_packet(part.clone()).is_empty());
            assert_eq!(rig.last, Some(Verdict::Consumed));
        }
        let sent = rig.put_packet(last.clone());
        assert_eq!(sent.len(), 1, "a SYN to the server");
        assert_eq!(rig.state(), Some(State::SynSent));

        let mut joined = Joined::with(config, &Ends::default());
        for side in [Side::Client, Side::Server] {
            let data: Vec<u8> = (0..1_400u32).map(|at| at as u8).collect();
            let whole = joined.by(side).payload(&data).packet();
            let before = joined.rig.datapath.snapshot();
            let mut sent = Vec::new();
            for part in fragments(&whole, 576) {
                sent.extend(joined.rig.put_packet(part));
            }
            assert_eq!(sent.len(), 1, "{side:?}");
            assert_eq!(sent[0].payload(), data);
            let now = joined.rig.datapath.snapshot();
            assert_eq!(now.reassembled, before.reassembled + 1);
            assert_eq!(now.rx_packets, before.rx_packets + 3);
            assert_eq!(now.tx_packets, before.tx_packets + 1);
            assert_eq!(now.drops.total(), before.drops.total());
            // Where the way on takes less, it may be cut again.
            if tcp(&whole).v4 {
                assert_eq!(sent[0].packet.bytes[6..8], [0, 0]);
            }
            joined.advance(side, data.len() as u32);
        }
    }
}

#[test]
fn a_ping_in_fragments_is_answered() {
    let mut rig = Rig::new(http_config());
    let (from, to) = (endpoint("10.9.0.1:0").addr, rig.vip.addr);
    let mut ping = Packet::default();
    build::emit_icmp_echo_request(&from, &to, 1, 2, &[9; 1_000], &mut ping.bytes);
    let parts = fragments(&ping, 800);
    assert!(rig.put_raw(parts[0].clone()).is_none());
    let answer = rig.put_raw(parts[1].clone()).expect("an answer");
    assert_eq!(answer.bytes.len(), ping.bytes.len());
}

#[test]
fn fragments_for_others_are_dropped_and_what_is_missing_is_not_waited_for_for_ever() {
    for config in [http_config(), v6_config()] {
        let mut rig = Rig::probed(config.clone(), &linux(1));
        let elsewhere = config.pools[0].servers[0].endpoint;
        let others = segment(rig.client, elsewhere).payload([0; 100]).packet();
        for part in fragments(&others, 80) {
            assert!(rig.put_raw(part).is_none());
            rig.assert_dropped(DropReason::Fragment);
        }
        let ours = rig.by_client().payload([0; 100]).packet();
        let parts = fragments(&ours, 80);
        assert!(rig.put_raw(parts[0].clone()).is_none());
        assert_eq!(rig.drops(DropReason::FragmentTimeout), 0);
        rig.wait(Duration::from_secs(31));
        assert_eq!(rig.drops(DropReason::FragmentTimeout), 1);
        assert!(rig.put_raw(parts[1].clone()).is_none());
        assert_eq!(rig.last, Some(Verdict::Consumed));
        assert_eq!(rig.datapath.snapshot().reassembled, 0);
    }
}

/// What contradicts itself, is too long or nonsense ends here, counted.
#[test]
fn fragments_that_make_no_packet_are_counted_by_reason() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let whole = rig.by_client().payload([0; 200]).packet();
    let parts = fragments(&whole, 80);
    assert!(rig.put_raw(parts[0].clone()).is_none());
    let other = fragments(&rig.by_client().payload([1; 200]).packet(), 80);
    assert!(rig.put_raw(other[0].clone()).is_none());
    rig.assert_dropped(DropReason::FragmentOverlap);
    assert_eq!(rig.drops(DropReason::FragmentOverlap), 2);
    let before = rig.datapath.unproven();
    for part in &parts[1..] {
        assert!(rig.put_raw(part.clone()).is_none());
        rig.assert_dropped(DropReason::FragmentOverlap);
    }
    assert_eq!(rig.datapath.unproven(), before + 2, "they proved nothing");
    let mut odd = parts[0].clone();
    odd.bytes.truncate(90);
    odd.bytes[2..4].copy_from_slice(&90u16.to_be_bytes());
    odd.bytes[10..12].fill(0);
    let sum = checksum::ipv4_header(&odd.bytes[..20]);
    odd.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    assert!(rig.put_raw(odd).is_none());
    rig.assert_dropped(DropReason::BadIpHeader);
}
