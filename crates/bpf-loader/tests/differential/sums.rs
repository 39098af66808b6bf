//! SYNs whose TCP checksum is wrong, and others whose checksum a device has yet to complete.

use fairlead_base::{DropReason, Packet, Rng};
use fairlead_bpf_loader::{Fate, FlowTable, Mode};
use fairlead_tcp::{FastPath, ListenOffer};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::TcpFlags;

use super::ways::with_open_checksum;
use super::{OFFER, endpoints, frame_of, kernel, on_a_switch, run, some_syn};

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
