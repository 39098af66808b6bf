//! SYNs whose TCP checksum is wrong, and others whose checksum a device has yet to complete.

use fairlead_base::{DropReason, Packet, Rng};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_tcp::{FlowOffload, Line, ListenOffer, Side, SynOffload};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::TcpFlags;

use super::translating::one_translation;
use super::ways::with_open_checksum;
use super::{
    COOKIE, OFFER, endpoints, frame_of, kernel, on_a_switch, record, run, some_syn, tell_interfaces,
};

fn offer(table: &mut FlowTable) {
    for (listen, endpoint) in (0..).zip(endpoints().listens) {
        table.set_offer(endpoint, &ListenOffer { listen, ..OFFER });
    }
}

/// A SYN in a service's name is the engine's, which refuses it, where that is the service that it
/// is sent to. In another one's name it is answered, as no look-up is spent on it: back by the link
/// to where it came from, as every answer, not to where routes to that service lead (decision
/// 0007).
#[test]
fn an_answer_to_another_services_address_goes_back_to_where_the_syn_came_from() {
    run(|| {
        on_a_switch(|_, interface| {
            for mode in [Mode::Tc, Mode::XdpNative] {
                let (kernel, mut table) = kernel(mode, 0);
                let two = ["10.1.0.3:80", "10.1.0.4:80"];
                for (listen, name) in (0..).zip(two) {
                    table.set_offer(endpoint(name), &ListenOffer { listen, ..OFFER });
                }
                for from in ["10.1.0.3:41000", "10.1.0.4:41000"] {
                    for to in two {
                        let syn = segment(endpoint(from), endpoint(to));
                        let frame = frame_of(&syn.flags(TcpFlags::SYN).packet());
                        let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                        if from.split(':').next() == to.split(':').next() {
                            assert_eq!((trial.fate, trial.frame), (Fate::Pass, frame));
                            continue;
                        }
                        assert_eq!(trial.fate, Fate::Redirect, "{from} to {to}");
                        assert_eq!(trial.frame[..6], frame[6..12]);
                        assert_eq!(trial.frame[6..12], frame[..6]);
                    }
                }
            }
        });
    });
}

/// The engine drops what has a wrong checksum before it looks at anything else.
fn wrong_checksums_are_not_answered(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(12);
        let (kernel, mut table) = kernel(mode, 0);
        offer(&mut table);
        let (mut wrong, mut ended_bytes) = (0, 0);
        for round in 0..200u32 {
            let v6 = round.is_multiple_of(3);
            let client = endpoint(if v6 {
                "[fd01::9]:41000"
            } else {
                "10.1.0.9:41000"
            });
            let listen = endpoints().listens[usize::from(v6)];
            let mut packet = some_syn(&mut rng, client, listen);
            let header = tcp(&packet);
            let spoilt = rng.chance(500_000);
            if spoilt {
                // Anywhere behind the ports: the sums of sequence numbers, options, or the field.
                let at = usize::from(header.tcp_at);
                let room = (packet.bytes.len() - at - 20) as u32;
                let at = at + [4, 16, 20 + rng.below(room.max(1)) as usize][rng.below(3) as usize];
                let at = at.min(packet.bytes.len() - 1);
                packet.bytes[at] ^= 1 << rng.below(8);
            }
            let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
            match trial.fate {
                Fate::Drop => {
                    assert!(spoilt);
                    wrong += 1;
                    ended_bytes += packet.bytes.len() as u64;
                }
                // Options that became unusual are the engine's, which drops the packet.
                Fate::Pass => assert!(spoilt && trial.frame == frame_of(&packet)),
                _ => {
                    assert!(!spoilt, "{header:?}");
                    let answer = Packet::from_bytes(&trial.frame[14..]);
                    assert!(tcp(&answer).checksum_valid(&answer.bytes));
                    ended_bytes += packet.bytes.len() as u64;
                }
            }
        }
        assert!(wrong > 50, "{wrong}");
        let counted = kernel.counters().unwrap();
        assert_eq!(counted.drops.of(DropReason::BadTcpChecksum), wrong);
        assert_eq!(counted.drops.total(), wrong);
        assert_eq!(counted.ended_bytes, ended_bytes);
        assert_eq!(counted.syns, counted.syn_acks);
    });
}

#[test]
fn tc_answers_no_wrong_checksum() {
    run(|| wrong_checksums_are_not_answered(Mode::Tc));
}

#[test]
fn xdp_answers_no_wrong_checksum() {
    run(|| wrong_checksums_are_not_answered(Mode::XdpNative));
}

/// Programs of this machine send such packets. PROG_TEST_RUN marks none as open, so that the sum of
/// the answer says nothing here: end-to-end tests see that stacks take it.
#[test]
fn tc_answers_checksums_that_a_device_has_yet_to_complete() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(13);
            let (kernel, mut table) = kernel(Mode::Tc, 0);
            offer(&mut table);
            for (client, listen) in ["10.1.0.9:41000", "[fd01::9]:41000"]
                .into_iter()
                .zip(endpoints().listens)
            {
                let syn = some_syn(&mut rng, endpoint(client), listen);
                let frame = frame_of(&with_open_checksum(&syn));
                let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                assert_eq!(trial.fate, Fate::Redirect);
            }
            let counted = kernel.counters().unwrap();
            assert_eq!((counted.syn_acks, counted.drops.total()), (2, 0));
        });
    });
}

/// The same packet with a payload for which its checksum, complete as it is, says `wanted`.
fn with_checksum(made: impl Fn(&[u8]) -> Packet, wanted: u16) -> Packet {
    let field = |packet: &Packet| {
        let at = usize::from(tcp(packet).tcp_at) + 16;
        u16::from_be_bytes([packet.bytes[at], packet.bytes[at + 1]])
    };
    let sum = u32::from(field(&made(&[0, 0]))) + u32::from(!wanted);
    let word = ((sum & 0xffff) + (sum >> 16)) as u16;
    let packet = made(&word.to_be_bytes());
    assert_eq!(field(&packet), wanted);
    packet
}

/// One complete checksum of 65,536 says what an open one would, and another says 0: both are
/// changed like any other, in headers of every length, whatever becomes of the addresses.
#[test]
fn tc_translates_complete_checksums_that_look_open() {
    run(|| {
        on_a_switch(|_, interface| {
            let (mut kernel, mut table) = kernel(Mode::Tc, 0);
            let mut rng = Rng::new(31);
            for round in 0..240u32 {
                let (record, client, server) =
                    record(&mut rng, round % 2 == 0, round.is_multiple_of(3));
                let line = Line(round % 64);
                assert!(table.offload(line, &record, &client, &server));
                let sent = record.server_nxt.wrapping_add(record.seq_delta);
                let made = |payload: &[u8]| {
                    let packet = segment(client.src, client.dst).seq(record.client_nxt);
                    let packet = packet.ack(sent).flags(TcpFlags::ACK).payload(payload);
                    match round / 2 % 3 {
                        0 => packet.packet(),
                        1 => packet.timestamps(round, 77).packet(),
                        _ => packet.sack(&[(sent, sent.wrapping_add(9))]).packet(),
                    }
                };
                let bare = made(&[0, 0]);
                let at = usize::from(tcp(&bare).tcp_at) + 16;
                let open = &with_open_checksum(&bare).bytes[at..at + 2];
                let open = u16::from_be_bytes([open[0], open[1]]);
                for wanted in [open, 0] {
                    let packet = with_checksum(made, wanted);
                    let side = Side::Client;
                    let done = one_translation(
                        &mut kernel,
                        &table,
                        &record,
                        line,
                        side,
                        &packet,
                        interface,
                    );
                    assert!(done, "{round}");
                }
                table.remove(line, &client, &server);
            }
        });
    });
}

/// Where the addresses change by nothing in the sum, an open checksum would stay what it is, as a
/// complete one would: this one is complete, and the ports are in it.
#[test]
fn tc_translates_them_where_the_addresses_balance() {
    run(|| {
        on_a_switch(|host, interface| {
            host.ip("addr add 10.3.0.254/24 dev s\n\
                 neigh add 10.3.0.1 lladdr 02:00:00:00:00:11 dev s\n")
                .unwrap();
            let mut ends = endpoints();
            ends.servers[0] = endpoint("10.3.0.1:8081"); // as much as 10.1.0.3
            let (mut kernel, mut table) = Kernel::load(Mode::Tc, 64, &ends, COOKIE, 0).unwrap();
            tell_interfaces(&mut kernel);
            let (record, client, _) = record(&mut Rng::new(7), false, true);
            let server = record.server_key(&ends);
            assert!(table.offload(Line(0), &record, &client, &server));
            let made = |payload: &[u8]| {
                let packet = segment(client.src, client.dst).seq(record.client_nxt);
                let ack = record.server_nxt.wrapping_add(record.seq_delta);
                let packet = packet.ack(ack).flags(TcpFlags::ACK).payload(payload);
                packet.packet()
            };
            let at = usize::from(tcp(&made(&[0, 0])).tcp_at) + 16;
            let open = with_open_checksum(&made(&[0, 0])).bytes;
            let packet = with_checksum(made, u16::from_be_bytes([open[at], open[at + 1]]));
            let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
            assert_eq!(trial.fate, Fate::Redirect);
            let sent = Packet {
                bytes: trial.frame[14..].to_vec(),
                ..Packet::default()
            };
            let header = tcp(&sent);
            assert_eq!((header.key.src, header.key.dst), (server.dst, server.src));
            assert!(header.checksum_valid(&sent.bytes));
        });
    });
}
