//! Strangers who know who talks to whom, but not the numbers (RFC 5961).

use core::time::Duration;

use fairlead_base::{DropReason, Packet, SeqNumber};
use fairlead_datapath::{Side, State};
use fairlead_testkit::segment;
use fairlead_wire::{TcpFlags, build};

use crate::rig::{Joined, REQUEST, Rig, http_config, linux, payload, syn_ack};

/// A RST with number 0 might lie in the window of a server that has just answered.
#[test]
fn syn_sent_what_acknowledges_nothing_is_dropped_without_an_answer() {
    for flags in [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::PSH] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let (_, sent) = rig.request(1_000, REQUEST);
        let key = sent[0].header.key;
        let bare = segment(key.dst, key.src).flags(flags).seq(77);
        rig.put_none(&bare);
        rig.assert_dropped(DropReason::BadSequence);
        assert_eq!(rig.state(), Some(State::SynSent));
        assert_eq!(
            payload(&rig.put(&syn_ack(&sent[0], 33, &linux(1)))),
            REQUEST
        );
    }
}

#[test]
fn a_probe_is_not_disturbed_by_what_acknowledges_nothing() {
    let mut rig = Rig::new(http_config());
    let probes = rig.wait(Duration::ZERO);
    let key = probes[0].header.key;
    rig.put_none(&segment(key.dst, key.src).flags(TcpFlags::SYN).seq(77));
    rig.assert_dropped(DropReason::BadSequence);
    rig.put_one(&syn_ack(&probes[0], 5, &linux(1)));
}

/// Clock and window of a client in set-up are believed with a good acknowledgement only: what we
/// send to its server in its name would be ahead of its own clock.
#[test]
fn established_clock_and_window_of_a_stranger_are_not_believed() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, &REQUEST[..5]));
    let stranger = opened.at(5).timestamps(0x7000_0000, 0).window(3);
    for off in [1u32, 1 << 25, u32::MAX] {
        rig.put_none(
            &stranger
                .clone()
                .ack(opened.dseq.wrapping_add(1).wrapping_add(off)),
        );
        rig.assert_dropped(DropReason::BadSequence);
    }
    let syn = rig.put_one(&opened.data(5, &REQUEST[5..]));
    assert_eq!(syn.timestamps().unwrap().value, 5_010);
    assert!(syn.header.window > 3);
}

/// An answer is taken, and its client gone, by acknowledgements of it only.
#[test]
fn answering_a_fin_of_a_stranger_is_dropped() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let answer = rig.put_one(&opened.data(0, b"\0"));
    assert_eq!(rig.state(), Some(State::Answering));
    let end = opened.dseq.wrapping_add(2 + answer.payload().len() as u32);
    let fin = opened.at(1).flags(TcpFlags::FIN | TcpFlags::ACK);
    for ack in [end.wrapping_add(1), opened.dseq, end ^ (1 << 30)] {
        rig.put_none(&fin.clone().ack(ack));
        rig.assert_dropped(DropReason::BadSequence);
    }
    rig.put_one(&fin.ack(end));
}

/// A number that is ahead counts if what it acknowledges was sent: else it passes, for its receiver
/// to judge, and nothing is learnt from it.
#[test]
fn spliced_data_with_impossible_acknowledgements_does_not_move_the_tracked_numbers() {
    for side in [Side::Client, Side::Server] {
        let mut joined = Joined::usual();
        let (nxt, ack) = match side {
            Side::Client => (joined.client_nxt, joined.seen_nxt),
            Side::Server => (joined.server_nxt, joined.client_nxt),
        };
        for (ahead, acked) in [
            (1 << 19, 1u32 << 25),
            (1 << 19, (1u32 << 30).wrapping_neg() - 1),
            (1 << 23, (1u32 << 25).wrapping_neg()),
            (1 << 25, 0),
            (1 << 29, 0),
        ] {
            let data = joined.by(side).payload(b"forged");
            let data = data.seq(nxt.wrapping_add(ahead));
            let data = data.ack(ack.wrapping_add(acked));
            assert_eq!(joined.rig.put_one(&data).payload(), b"forged");
        }
        // So the number at which a RST is believed is still the old one.
        joined.rig.put_one(&joined.by(side).flags(TcpFlags::RST));
        assert_eq!(joined.state(), State::Reset, "{side:?}");
    }
}

/// What the connection's own packets look like is not affected: as much as a window may be under
/// way, and a loss of a super-packet does no harm.
#[test]
fn spliced_old_acknowledgements_and_small_gaps_stay_on_the_fast_path() {
    for side in [Side::Client, Side::Server] {
        let mut joined = Joined::usual();
        let other = side.other();
        for _ in 0..64 {
            joined.advance(other, (1 << 20) - 4);
            let sent = joined.rig.put_one(&joined.by(other).payload(b"far"));
            assert_eq!(sent.payload(), b"far");
            joined.advance(other, 3);
        }
        let fast = joined.rig.datapath.snapshot().fast_packets;
        let old = match side {
            Side::Client => joined.seen_nxt,
            Side::Server => joined.client_nxt,
        };
        joined
            .rig
            .put_one(&joined.by(side).ack(old.wrapping_sub(60 << 20)));
        joined.advance(side, 100_000);
        let sent = joined
            .rig
            .put_one(&joined.by(side).payload(b"behind a gap"));
        assert!(sent.header.seq != SeqNumber(0));
        assert_eq!(joined.rig.datapath.snapshot().fast_packets, fast + 2);
    }
}

/// Whoever lets a fast path refuse such packets must know how many of them there are.
#[test]
fn what_proves_nothing_is_counted_and_what_belongs_to_somebody_is_not() {
    let mut joined = Joined::usual();
    let before = joined.rig.datapath.unproven();
    joined
        .rig
        .put_one(&joined.by(Side::Client).payload(b"more"));
    let (client, vip) = (joined.rig.client, joined.rig.vip);
    let mut other = client;
    other.port += 1;
    joined
        .rig
        .put_one(&segment(other, vip).flags(TcpFlags::SYN));
    assert_eq!(joined.rig.datapath.unproven(), before);
    let mut other_port = vip;
    other_port.port += 1;
    let syn = |to| segment(other, to).flags(TcpFlags::SYN);
    let changed = |at: usize, byte: u8| {
        let mut packet = syn(vip).packet();
        packet.bytes[at] = byte;
        let sum = !fairlead_testkit::oracle::ones_complement_sum(
            &[&packet.bytes[..10], &[0, 0], &packet.bytes[12..20]].concat(),
        );
        packet.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let mut ping = Packet::default();
    build::emit_icmp_echo_request(&other.addr, &vip.addr, 1, 1, b"?", &mut ping.bytes);
    let strays = [
        syn(other_port).packet(),
        segment(other, vip)
            .ack(7)
            .flags(TcpFlags::ACK)
            .payload(b"GET /")
            .packet(),
        segment(vip, vip).flags(TcpFlags::SYN).packet(),
        segment(other, vip).flags(TcpFlags::NONE).packet(),
        changed(9, 17),
        changed(6, 0x20),
        ping,
        Packet::default(),
    ];
    for (number, packet) in (1..).zip(strays) {
        joined.rig.put_raw(packet);
        assert_eq!(joined.rig.datapath.unproven(), before + number);
    }
}
