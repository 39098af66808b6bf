//! ICMP errors about packets that the switch sent: quoted back as their sender knows them
//! (RFC 792, RFC 4443, RFC 5508), and echo requests.

use core::time::Duration;

use fairlead_base::{Address, DropReason, Packet, SeqNumber};
use fairlead_datapath::config::{ProxyVersion, Source};
use fairlead_datapath::{ServerState, Side, State, Verdict};
use fairlead_testkit::{endpoint, oracle, segment, tcp};
use fairlead_wire::icmp::IcmpPacket;
use fairlead_wire::{Classified, IcmpKind, TcpFlags, build, checksum, classify, packet::offset};

use crate::rig::{
    Ends, Joined, REQUEST, Rig, Sent, http_config, linux, payload, probe_every, refusal, syn_ack,
    v6_config,
};

fn router(v4: bool) -> Address {
    let text = if v4 {
        "172.16.9.9:0"
    } else {
        "[2001:db8:99::9]:0"
    };
    endpoint(text).addr
}

#[track_caller]
fn parsed(packet: &Packet) -> IcmpPacket {
    match classify(&packet.bytes) {
        Ok(Classified::Icmp(message)) => message,
        other => panic!("not ICMP, or its checksum is wrong: {other:?}"),
    }
}

/// A router's message that a packet that the switch sent is too big.
pub(crate) fn too_big(sent: &Sent, mtu: u32, quoted: usize) -> Packet {
    let to = sent.header.key.src.addr;
    let bytes = &sent.packet.bytes[..quoted.min(sent.packet.bytes.len())];
    let mut packet = Packet::default();
    build::emit_icmp_too_big(&router(to.is_v4()), &to, mtu, bytes, &mut packet.bytes);
    packet
}

fn unreachable(sent: &Sent, from: Address, code: u8) -> Packet {
    let to = sent.header.key.src.addr;
    let mut packet = Packet::default();
    build::emit_icmp_unreachable(&from, &to, code, &sent.packet.bytes, &mut packet.bytes);
    packet
}

fn families() -> [Joined; 2] {
    [
        Joined::with(http_config(), &Ends::default()),
        Joined::with(v6_config(), &Ends::default()),
    ]
}

/// What a side sent, as it left the switch on the other side.
fn passed(joined: &mut Joined, side: Side) -> (Packet, Sent) {
    let data = joined.by(side).payload([5; 1_400]).timestamps(1, 2);
    (data.packet(), joined.rig.put_one(&data))
}

/// Both directions, both families, quotes of any length: the error reaches the sender and quotes
/// its packet.
#[test]
fn spliced_too_big_is_quoted_as_its_sender_sent_it() {
    for mut joined in families() {
        for side in [Side::Client, Side::Server] {
            let (original, sent) = passed(&mut joined, side);
            let v4 = sent.header.v4;
            let headers = if v4 { 20 } else { 40 };
            for quoted in [
                headers + 8,
                headers + 12,
                headers + 18,
                headers + 20,
                400,
                10_000,
            ] {
                let error = too_big(&sent, 1_300, quoted);
                let error = joined.rig.put_raw(error).expect("it passes");
                let message = parsed(&error);
                assert_eq!(message.kind, IcmpKind::PacketTooBig { mtu: 1_300 });
                // The router stays unnamed: each end knows the other as the switch shows it.
                let (sender, known) = match side {
                    Side::Client => (joined.rig.client, joined.rig.vip),
                    Side::Server => (joined.server, joined.source),
                };
                assert_eq!(message.src, known.addr, "{side:?}");
                assert_eq!(message.dst, sender.addr, "{side:?}");
                let quote = message.quote.expect("a quotation");
                let from = usize::from(quote.ip_at);
                let len = usize::from(message.end) - from;
                let mut seen = error.bytes[from..from + len].to_vec();
                let mut expected = original.bytes[..len].to_vec();
                // Both have passed one router, whose mark stays.
                let ttl_at = if v4 {
                    offset::IPV4_TTL
                } else {
                    offset::IPV6_HOP_LIMIT
                };
                assert_eq!(seen[ttl_at], expected[ttl_at] - 1);
                seen[ttl_at] = 0;
                expected[ttl_at] = 0;
                if v4 {
                    assert_eq!(checksum::ipv4_header(&error.bytes[from..from + 20]), 0);
                    seen[10..12].fill(0);
                    expected[10..12].fill(0);
                }
                // Options behind the fixed header keep the other side's clock: nobody reads them.
                let fixed = headers + 16;
                let end = len.min(fixed);
                assert_eq!(seen[..end], expected[..end], "{side:?}, {quoted} bytes");
            }
        }
    }
}

/// A quotation that is whole is whole again in the sender's numbers, checksum and all.
#[test]
fn spliced_whole_quotation_has_the_right_checksum() {
    for mut joined in families() {
        for side in [Side::Client, Side::Server] {
            let data = joined.by(side).payload(b"short");
            let sent = joined.rig.put_one(&data);
            let error = joined.rig.put_raw(too_big(&sent, 1_300, 10_000)).unwrap();
            let quote = parsed(&error).quote.unwrap();
            let tcp_header = &error.bytes[usize::from(quote.tcp_at)..];
            let original = data.packet();
            let expected = &original.bytes[usize::from(tcp(&original).tcp_at)..];
            assert_eq!(tcp_header, expected);
            let sum = u16::from_be_bytes([tcp_header[16], tcp_header[17]]);
            let (src, dst) = (quote.key.src.addr, quote.key.dst.addr);
            assert_eq!(sum, oracle::tcp_checksum(&src, &dst, tcp_header));
        }
    }
}

#[test]
fn spliced_error_from_the_other_end_itself_comes_from_the_address_that_is_known() {
    for mut joined in families() {
        for side in [Side::Client, Side::Server] {
            let (_, sent) = passed(&mut joined, side);
            let error = unreachable(&sent, sent.header.key.dst.addr, 1);
            let error = joined.rig.put_raw(error).expect("it passes");
            let message = parsed(&error);
            let known = match side {
                Side::Client => joined.rig.vip.addr,
                Side::Server => joined.source.addr,
            };
            assert_eq!(message.src, known, "{side:?}");
        }
    }
}

#[test]
fn spliced_error_at_its_last_hop_goes_no_further() {
    for mut joined in families() {
        let (_, sent) = passed(&mut joined, Side::Client);
        let mut error = too_big(&sent, 1_300, 10_000);
        if sent.header.v4 {
            error.bytes[offset::IPV4_TTL] = 1;
            error.bytes[10..12].fill(0);
            let sum = checksum::ipv4_header(&error.bytes[..20]);
            error.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            error.bytes[offset::IPV6_HOP_LIMIT] = 1;
        }
        assert!(joined.rig.put_raw(error).is_none());
        joined.rig.assert_dropped(DropReason::TtlExpired);
    }
}

#[test]
fn error_about_no_connection_of_ours_or_for_somebody_else_is_dropped() {
    let mut joined = Joined::usual();
    let (_, sent) = passed(&mut joined, Side::Client);
    let mut other = sent.clone();
    other.packet.bytes[23] ^= 1;
    let stranger = too_big(&other, 1_300, 10_000);
    assert!(joined.rig.put_raw(stranger).is_none());
    joined.rig.assert_dropped(DropReason::BadIcmp);
    let mut misled = Packet::default();
    let elsewhere = Address::v4([192, 0, 2, 99]);
    build::emit_icmp_too_big(
        &router(true),
        &elsewhere,
        1_300,
        &sent.packet.bytes,
        &mut misled.bytes,
    );
    assert!(joined.rig.put_raw(misled).is_none());
    joined.rig.assert_dropped(DropReason::BadIcmp);
    // Too short a quotation to know a connection by.
    assert!(joined.rig.put_raw(too_big(&sent, 1_300, 27)).is_none());
    joined.rig.assert_dropped(DropReason::BadIcmp);
}

#[test]
fn time_wait_and_half_closed_connections_still_hear_errors() {
    let mut joined = Joined::usual();
    let (_, sent) = passed(&mut joined, Side::Server);
    joined.advance(Side::Server, 1_400);
    joined.close(Side::Server);
    assert!(joined.rig.put_raw(too_big(&sent, 1_300, 100)).is_some());
    joined.acknowledge(Side::Client);
    joined.close(Side::Client);
    joined.acknowledge(Side::Server);
    assert_eq!(joined.state(), State::TimeWait);
    assert!(joined.rig.put_raw(too_big(&sent, 1_300, 100)).is_some());
}

fn two_servers() -> (Rig, Sent) {
    let servers = ["10.2.0.1:8081", "10.2.0.2:8081"];
    let config = crate::rig::simple_config(fairlead_datapath::config::Protocol::Http, &servers);
    let mut rig = Rig::probed(config, &linux(1));
    let (_, mut sent) = rig.request(1_000, REQUEST);
    (rig, sent.remove(0))
}

#[test]
fn syn_sent_unreachable_leads_to_the_next_server() {
    let (mut rig, syn) = two_servers();
    let sent = rig.put_packet(unreachable(&syn, router(true), 1));
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN);
    assert_ne!(sent[0].header.key.dst, syn.header.key.dst);
    assert_eq!(rig.drops(DropReason::ServerRefused), 1);
}

#[test]
fn probe_unreachable_means_down_at_once_and_is_no_bad_message() {
    let mut config = http_config();
    probe_every(&mut config, Duration::from_secs(10));
    let mut rig = Rig::new(config);
    let state = |rig: &Rig| rig.datapath.snapshot().pools[0].servers[0].state;
    let mut probes = rig.wait(Duration::ZERO);
    assert!(rig.put_packet(too_big(&probes[0], 1_300, 40)).is_empty());
    assert_eq!(rig.drops(DropReason::NothingToDo), 1);
    assert_eq!(state(&rig), ServerState::Unknown);
    let error = unreachable(&probes[0], router(true), 1);
    probes[0].packet.bytes[27] ^= 1;
    let guess = unreachable(&probes[0], router(true), 1);
    assert!(rig.put_packet(guess).is_empty());
    assert_eq!(state(&rig), ServerState::Unknown);
    assert_eq!(rig.drops(DropReason::BadIcmp), 1);
    assert!(rig.put_packet(error).is_empty());
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(state(&rig), ServerState::Down);
    assert_eq!(rig.drops(DropReason::BadIcmp), 1);
}

/// RFC 5927, section 4.1: whoever did not see the SYN cannot quote its number.
#[test]
fn syn_sent_unreachable_with_another_number_is_not_believed() {
    let (mut rig, mut syn) = two_servers();
    syn.packet.bytes[27] ^= 1;
    assert!(
        rig.put_packet(unreachable(&syn, router(true), 1))
            .is_empty()
    );
    rig.assert_dropped(DropReason::BadIcmp);
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_sent_other_errors_are_ignored() {
    let (mut rig, syn) = two_servers();
    assert!(rig.put_packet(too_big(&syn, 1_300, 100)).is_empty());
    rig.assert_dropped(DropReason::NothingToDo);
    let answer = rig.put_one(&refusal(&syn));
    assert_eq!(answer.header.flags, TcpFlags::SYN);
}

#[test]
fn answering_other_errors_are_ignored() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let (_, sent) = rig.request(1_000, b"\0");
    assert!(
        rig.put_packet(unreachable(&sent[0], router(true), 1))
            .is_empty()
    );
    rig.assert_dropped(DropReason::NothingToDo);
    assert_eq!(rig.state(), Some(State::Answering));
}

/// Nobody but the switch can cut these bytes smaller.
#[test]
fn held_too_big_is_heard_by_the_switch_and_the_bytes_are_sent_again_smaller() {
    for (mtu, largest) in [(700, 660), (0, 536)] {
        let mut config = http_config();
        config.pools[0].proxy_protocol = Some(ProxyVersion::V1);
        let mut rig = Rig::probed(config, &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        let head = format!("GET /{}.jpg HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1_350));
        let syn = rig.put_one(&opened.data(0, head.as_bytes()));
        let first = rig.put(&syn_ack(&syn, 5, &linux(1)));
        let again = rig.put_packet(too_big(&first[0], mtu, 100));
        assert_eq!(rig.last, Some(Verdict::Consumed));
        assert_eq!(payload(&again), payload(&first));
        for segment in &again {
            assert!(segment.payload().len() + segment.options().len() <= largest);
        }
        // The same message once more changes nothing.
        assert!(rig.put_packet(too_big(&first[0], mtu, 100)).is_empty());
        // What the client sent itself is the client's to cut.
        let body = rig.put_one(&opened.data(head.len() as u32, &[1; 1_000]));
        let error = rig.put_raw(too_big(&body, 700, 100)).expect("it passes");
        assert_eq!(parsed(&error).dst, rig.client.addr);
    }
}

#[test]
fn echo_request_to_a_listening_address_is_answered_and_to_others_not() {
    for config in [http_config(), v6_config()] {
        let mut rig = Rig::new(config);
        let (client, vip) = (rig.client.addr, rig.vip.addr);
        let mut request = Packet::default();
        build::emit_icmp_echo_request(&client, &vip, 7, 9, b"are you there", &mut request.bytes);
        let answer = rig.put_raw(request).expect("an answer");
        let message = parsed(&answer);
        assert_eq!((message.src, message.dst), (vip, client));
        assert!(answer.bytes.ends_with(b"are you there"));
        let kind = if vip.is_v4() { 0 } else { 129 };
        assert_eq!(answer.bytes[usize::from(message.icmp_at)], kind);
        let mut request = Packet::default();
        let mut other = vip;
        other.0[15] ^= 1;
        build::emit_icmp_echo_request(&client, &other, 7, 9, b"", &mut request.bytes);
        assert!(rig.put_raw(request).is_none());
        rig.assert_dropped(DropReason::NotOurs);
    }
}

/// Every truncation and every flipped byte of an error: no panic, and only valid packets leave.
#[test]
fn spliced_damaged_errors_are_survived() {
    for mut joined in families() {
        let (_, sent) = passed(&mut joined, Side::Client);
        let error = too_big(&sent, 1_300, 120);
        for at in 0..error.bytes.len() {
            for flip in [1u8, 0x40, 0xff] {
                let mut damaged = error.clone();
                damaged.bytes[at] ^= flip;
                if sent.header.v4 {
                    damaged.bytes[10..12].fill(0);
                    let len = usize::from(damaged.bytes[0] & 15) * 4;
                    let header = &damaged.bytes[..len.min(damaged.bytes.len())];
                    let sum = checksum::ipv4_header(header);
                    damaged.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                    damaged.bytes[22..24].fill(0);
                    let sum = !checksum::fold(checksum::sum(&damaged.bytes[20..]));
                    damaged.bytes[22..24].copy_from_slice(&sum.to_be_bytes());
                }
                if let Some(passed) = joined.rig.put_raw(damaged) {
                    parsed(&passed);
                }
            }
            let mut cut = error.clone();
            cut.bytes.truncate(at);
            assert!(joined.rig.put_raw(cut).is_none());
        }
        assert_eq!(joined.state(), State::Spliced);
    }
}

/// Where a server sees the client's own address, so does every router before it.
#[test]
fn error_to_a_client_about_what_it_has_not_sent_is_known_and_no_other_is() {
    for mut config in [http_config(), v6_config()] {
        for source in [Source::Transparent, Source::Snat] {
            config.services[0].source = source;
            let mut joined = Joined::with(config.clone(), &Ends::default());
            let (_, up) = passed(&mut joined, Side::Client);
            let (_, down) = passed(&mut joined, Side::Server);
            let error = too_big(&up, 1_300, 100);
            let known = |packet: &Packet| joined.rig.datapath.is_error_past_us(packet);
            // Under the switch's own address it comes to the switch by itself, as do those about
            // what went to the client.
            assert_eq!(known(&error), source == Source::Transparent);
            assert!(known(&unreachable(&up, router(up.header.v4), 1)) == known(&error));
            assert!(!known(&too_big(&down, 1_300, 100)));
            assert!(!known(&up.packet) && !known(&Packet::default()));
            let mut others = up.clone();
            let port_at = usize::from(up.header.tcp_at);
            others.packet.bytes[port_at] ^= 1;
            assert!(
                !known(&too_big(&others, 1_300, 100)),
                "another connection's"
            );
            let mut elsewhere = Packet::default();
            let (from, quoted) = (router(up.header.v4), &up.packet.bytes);
            build::emit_icmp_too_big(&from, &joined.rig.vip.addr, 9, quoted, &mut elsewhere.bytes);
            assert!(!known(&elsewhere), "another's mail");
            if source == Source::Transparent {
                let message = parsed(&joined.rig.put_raw(error).expect("it passes"));
                assert_eq!(message.dst, joined.rig.client.addr);
                let quote = message.quote.unwrap().key;
                assert_eq!((quote.src, quote.dst), (joined.rig.client, joined.rig.vip));
            }
        }
    }
}

#[test]
fn quoted_numbers_are_those_of_the_sender() {
    let mut joined = Joined::usual();
    let (_, sent) = passed(&mut joined, Side::Server);
    assert_eq!(sent.header.seq, SeqNumber(joined.seen_nxt));
    let error = joined.rig.put_raw(too_big(&sent, 1_300, 100)).unwrap();
    let quote = parsed(&error).quote.unwrap();
    assert_eq!(quote.seq, SeqNumber(joined.server_nxt));
    let expected = segment(joined.server, joined.source);
    assert_eq!(quote.key, tcp(&expected.packet()).key);
}
