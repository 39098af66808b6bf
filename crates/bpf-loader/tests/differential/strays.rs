//! What comes to a service's address and concerns none: the engine's, until it is kept from its
//! work.

use fairlead_base::{Address, DropReason, Packet, Rng};
use fairlead_bpf_loader::{Fate, Mode};
use fairlead_tcp::{FlowOffload, Line, Refusal, SynOffload};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::{TcpFlags, build};

use super::{OFFER, frame_of, kernel, on_a_switch, record, run};

fn ping(from: &str, to: &str) -> Packet {
    let [from, to] =
        [from, to].map(|text| Address::from(text.parse::<std::net::IpAddr>().unwrap()));
    let mut packet = Packet::default();
    build::emit_icmp_echo_request(&from, &to, 1, 1, b"?", &mut packet.bytes);
    packet
}

/// An IPv6 packet turned into one of a neighbour's questions for its way.
fn neighbours(mut packet: Packet, kind: u8) -> Packet {
    packet.bytes[40] = kind;
    packet
}

fn syn(from: &str, to: &str) -> Packet {
    let packet = segment(endpoint(from), endpoint(to));
    packet.flags(TcpFlags::SYN).packet()
}

/// A SYN turned into something else: its IPv4 protocol, its place in a fragmented packet.
fn changed(mut packet: Packet, at: usize, byte: u8) -> Packet {
    packet.bytes[at] = byte;
    packet
}

fn strays() -> Vec<Packet> {
    let to_other_port = || syn("10.1.0.9:2000", "10.1.0.3:81");
    vec![
        to_other_port(),
        syn("[fd01::9]:2000", "[fd01::3]:81"),
        syn("10.1.0.3:2000", "10.1.0.3:80"),
        changed(to_other_port(), 9, 17),
        changed(to_other_port(), 6, 0x20),
        changed(syn("10.1.0.9:2000", "10.1.0.3:80"), 7, 9),
        changed(syn("[fd01::9]:2000", "[fd01::3]:80"), 6, 44),
        ping("10.1.0.9", "10.1.0.3"),
        ping("fd01::9", "fd01::3"),
    ]
}

/// Those that must come through, whatever the engine is kept from: of others, of servers, of the
/// stack's own concern, and errors about a connection.
fn kept(about: &Packet, sent_by: Address) -> Vec<Packet> {
    let mut error = Packet::default();
    let router = Address::v4([10, 1, 0, 9]);
    build::emit_icmp_too_big(&router, &sent_by, 1_300, &about.bytes, &mut error.bytes);
    vec![
        error,
        syn("10.1.0.9:2000", "10.1.0.4:80"),
        changed(syn("10.1.0.9:2000", "10.1.0.4:80"), 9, 17),
        syn("10.2.0.1:8081", "100.64.0.1:2000"),
        ping("10.1.0.9", "10.1.0.4"),
        ping("fd01::9", "fd01::4"),
        neighbours(ping("fd01::9", "fd01::3"), 135),
        neighbours(ping("fd01::9", "fd01::3"), 136),
    ]
}

fn strays_end_here_under_pressure_alone(mode: Mode) {
    on_a_switch(|_, interface| {
        let (kernel, mut table) = kernel(mode, 0);
        table.set_offer(endpoint("10.1.0.3:80"), &OFFER);
        table.set_offer(endpoint("[fd01::3]:80"), &OFFER);
        let (record, client, server) = record(&mut Rng::new(5), false, false);
        assert!(table.offload(Line(0), &record, &client, &server));
        let about = segment(client.dst, client.src).payload([7; 64]).packet();
        for unproven in [true, false, true] {
            table.set_refusal(Refusal { syns: 0, unproven });
            let dropped = |packet: &Packet| {
                let count = || kernel.counters().unwrap();
                let before = count();
                let mut frame = frame_of(packet);
                frame.resize(frame.len().max(60), 0); // as links do, which is no part of it
                let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                let after = count();
                let ended = after.ended_bytes - before.ended_bytes;
                let overloaded = after.drops.of(DropReason::Overloaded)
                    - before.drops.of(DropReason::Overloaded);
                if trial.fate == Fate::Drop {
                    assert_eq!((overloaded, ended), (1, packet.bytes.len() as u64));
                    assert_eq!(after.not_ours, before.not_ours);
                } else {
                    assert_eq!((overloaded, ended), (0, 0));
                    assert_eq!(trial.frame, frame, "as it was");
                }
                trial.fate == Fate::Drop
            };
            for (number, packet) in strays().iter().enumerate() {
                assert_eq!(dropped(packet), unproven, "stray {number}");
            }
            for (number, packet) in kept(&about, client.dst.addr).iter().enumerate() {
                assert!(!dropped(packet), "kept {number}");
            }
            let mut for_others = frame_of(&strays()[0]);
            for_others[..6].copy_from_slice(&[2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee]);
            let trial = kernel.try_frame(&for_others, interface, 1).unwrap();
            assert_eq!(trial.fate, Fate::Pass);
        }
    });
}

#[test]
fn tc_strays_end_here_under_pressure_alone() {
    run(|| strays_end_here_under_pressure_alone(Mode::Tc));
}

#[test]
fn xdp_strays_end_here_under_pressure_alone() {
    run(|| strays_end_here_under_pressure_alone(Mode::XdpNative));
}
