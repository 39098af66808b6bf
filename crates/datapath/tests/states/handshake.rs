//! CLOSED and SYN_RCVD, which have no memory: the paper's Table 1, RFC 4987.

use core::time::Duration;

use fairlead_base::{Checksum, DropReason, SeqNumber};
use fairlead_datapath::config::Protocol;
use fairlead_datapath::{State, Verdict};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

use crate::rig::{Joined, REQUEST, Rig, http_config, linux, simple_config, syn_ack, v6_config};

fn kept(rig: &Rig) -> [u64; 5] {
    let now = rig.datapath.snapshot();
    [
        now.records,
        now.setups,
        now.half_read,
        now.buffered_bytes,
        now.accepted,
    ]
}

#[test]
fn closed_syn_is_answered_and_nothing_is_kept() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let syn_ack = rig.syn(1_000, &linux(5_000));
    assert_eq!(syn_ack.header.flags, TcpFlags::SYN | TcpFlags::ACK);
    assert_eq!(syn_ack.header.ack, SeqNumber(1_001));
    assert_eq!(syn_ack.header.key.src, rig.vip);
    assert_eq!(syn_ack.header.key.dst, rig.client);
    assert_eq!(kept(&rig), [0; 5]);
    assert_eq!(rig.state(), None);
}

#[test]
fn closed_syn_repeated_gets_the_same_number() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let first = rig.syn(1_000, &linux(5_000)).header.seq;
    rig.now = rig.now + Duration::from_secs(1);
    assert_eq!(rig.syn(1_000, &linux(6_000)).header.seq, first);
    assert_ne!(rig.syn(1_001, &linux(5_000)).header.seq, first);
    rig.client.port += 1;
    assert_ne!(rig.syn(1_000, &linux(5_000)).header.seq, first);
}

#[test]
fn closed_hundred_thousand_syns_grow_nothing() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    for number in 0..100_000u32 {
        rig.client.port = number as u16;
        rig.client.addr.0[15] = (number >> 16) as u8;
        rig.syn(number, &linux(number));
    }
    assert_eq!(kept(&rig), [0; 5]);
    let now = rig.datapath.snapshot();
    assert_eq!((now.syns, now.syn_acks), (100_000, 100_000));
    assert_eq!(rig.events().len(), 0);
}

#[test]
fn closed_syn_for_ipv6_is_answered() {
    let mut rig = Rig::probed(v6_config(), &linux(1));
    let syn_ack = rig.syn(1_000, &linux(5_000));
    assert_eq!(syn_ack.header.key.src, rig.vip);
    assert!(!syn_ack.header.v4);
}

#[test]
fn closed_syn_with_partial_checksum_is_answered_by_a_complete_packet() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let syn = rig.by_client().flags(TcpFlags::SYN).seq(7);
    let sent = rig.put_packet(syn.syn_options(&linux(1)).partial());
    assert_eq!(sent[0].packet.checksum, Checksum::Complete);
    assert_eq!(sent[0].header.ack, SeqNumber(8));
}

/// Steps 2 and 4 of Table 1, and what RFC 9293 and RFC 7323 say of options.
#[test]
fn closed_damaged_packets_are_dropped_and_counted() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let syn = rig.by_client().flags(TcpFlags::SYN).seq(7);
    let good = syn.syn_options(&linux(1)).packet();
    type Damage = (fn(&mut Vec<u8>), DropReason);
    let cases: [Damage; 8] = [
        (|bytes| bytes.truncate(19), DropReason::Truncated),
        (|bytes| bytes[0] = 0x55, DropReason::BadIpHeader),
        (|bytes| bytes[8] ^= 1, DropReason::BadIpChecksum),
        (|bytes| bytes[24] ^= 1, DropReason::BadTcpChecksum),
        (|bytes| bytes[32] = 0x40, DropReason::BadTcpHeader),
        (|bytes| bytes[33] = 3, DropReason::BadTcpFlags),
        (|bytes| bytes[33] = 0, DropReason::BadTcpFlags),
        (|bytes| bytes.clear(), DropReason::Truncated),
    ];
    for (damage, reason) in cases {
        let mut packet = good.clone();
        damage(&mut packet.bytes);
        let before = rig.drops(reason);
        assert!(rig.put_packet(packet).is_empty(), "{reason}");
        rig.assert_dropped(reason);
        assert_eq!(rig.drops(reason), before + 1, "{reason}");
    }
    let odd = rig.by_client().flags(TcpFlags::SYN).options(&[2, 9, 0, 0]);
    rig.put_none(&odd);
    rig.assert_dropped(DropReason::BadTcpOptions);
    assert_eq!(kept(&rig), [0; 5]);
}

#[test]
fn closed_syn_from_one_of_our_own_addresses_is_dropped() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let land = segment(rig.vip, rig.vip).flags(TcpFlags::SYN);
    rig.put_none(&land);
    rig.assert_dropped(DropReason::BadSource);
}

#[test]
fn closed_syn_for_another_port_is_refused_and_for_another_address_ignored() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let syn = segment(rig.client, endpoint("10.1.0.3:81"))
        .flags(TcpFlags::SYN)
        .seq(9);
    let reset = rig.put_one(&syn);
    assert_eq!(reset.header.flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(
        (reset.header.seq, reset.header.ack),
        (SeqNumber(0), SeqNumber(10))
    );
    assert_eq!(rig.drops(DropReason::NotOurs), 1);
    rig.put_none(&segment(rig.client, endpoint("10.1.0.4:80")).flags(TcpFlags::SYN));
    rig.assert_dropped(DropReason::NotOurs);
}

#[test]
fn closed_syn_ack_is_refused_and_rst_ignored() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let both = rig.by_client().flags(TcpFlags::SYN | TcpFlags::ACK).ack(77);
    let reset = rig.put_one(&both);
    assert_eq!(
        (reset.header.flags, reset.header.seq),
        (TcpFlags::RST, SeqNumber(77))
    );
    rig.put_none(&rig.by_client().flags(TcpFlags::RST));
    rig.assert_dropped(DropReason::NoConnection);
    rig.put_none(&rig.by_client().flags(TcpFlags::PSH).payload(b"x"));
    rig.assert_dropped(DropReason::BadTcpFlags);
}

#[test]
fn syn_rcvd_ack_keeps_nothing_until_data_comes() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.at(0));
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(kept(&rig), [0; 5]);
    rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_rcvd_unknown_acknowledgement_is_refused() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let wrong = opened.at(0).ack(opened.dseq.wrapping_add(2));
    let reset = rig.put_one(&wrong);
    assert_eq!(reset.header.flags, TcpFlags::RST);
    assert_eq!(reset.header.seq, SeqNumber(opened.dseq) + 2);
    assert_eq!(rig.drops(DropReason::CookieInvalid), 1);
}

#[test]
fn syn_rcvd_second_segment_before_the_first_waits_for_it_in_silence() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(10, &REQUEST[10..]));
    rig.assert_dropped(DropReason::CookieInvalid);
    assert_eq!(kept(&rig), [0; 5]);
    rig.put_none(&opened.data(0, &REQUEST[..10]));
    rig.put_one(&opened.data(10, &REQUEST[10..]));
    assert_eq!(rig.state(), Some(State::SynSent));
}

/// A copy of the SYN makes us answer twice; the client, which has sent its request meanwhile, replies
/// to the second answer under its next number. If the request was lost on the way, that is the
/// first that we hear of it.
#[test]
fn syn_rcvd_challenge_of_a_client_whose_first_segment_was_lost_is_not_refused() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.at(REQUEST.len() as u32));
    rig.assert_dropped(DropReason::CookieInvalid);
    rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_rcvd_data_under_another_number_is_not_let_in() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(1, REQUEST));
    rig.assert_dropped(DropReason::CookieInvalid);
    // The cookie of another tuple is none at all.
    rig.client.port += 1;
    let stolen = segment(rig.client, rig.vip)
        .seq(1_001)
        .ack(opened.dseq.wrapping_add(1))
        .payload(REQUEST);
    let reset = rig.put_one(&stolen);
    assert_eq!(reset.header.flags, TcpFlags::RST);
    assert_eq!(rig.drops(DropReason::CookieInvalid), 2);
    assert_eq!(kept(&rig), [0; 5]);
}

#[test]
fn syn_rcvd_keep_alive_is_answered_with_and_without_a_byte() {
    for nonsense in [&b""[..], b"\0"] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        rig.now = rig.now + Duration::from_secs(5);
        let probe = opened.at(0).seq(1_000).payload(nonsense);
        let answer = rig.put_one(&probe);
        assert_eq!(answer.header.flags, TcpFlags::ACK);
        assert_eq!(answer.header.ack, SeqNumber(1_001));
        assert_eq!(answer.header.seq, SeqNumber(opened.dseq) + 1);
        let stamps = answer.timestamps().unwrap();
        assert_eq!((stamps.value, stamps.echo), (6_000, 5_010));
        assert_eq!(kept(&rig), [0; 5]);
    }
}

/// Where the server speaks first, nothing comes of a client whose last segment of the handshake was
/// lost; its keep-alive proves the handshake as well.
#[test]
fn syn_rcvd_keep_alive_completes_the_handshake_where_nothing_is_read() {
    for nonsense in [&b""[..], b"\0"] {
        let config = simple_config(Protocol::Tcp, &["10.2.0.1:8081"]);
        let mut rig = Rig::probed(config, &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        rig.now = rig.now + Duration::from_secs(45);
        let probe = opened.at(0).seq(1_000).payload(nonsense);
        let syn = rig.put_one(&probe);
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        assert_eq!(syn.header.seq, SeqNumber(1_000));
        rig.put_none(&probe);
        let ack = rig.put_one(&syn_ack(&syn, 77, &linux(1)));
        assert_eq!(ack.header.flags, TcpFlags::ACK);
        assert_eq!(
            (ack.header.seq, ack.header.ack),
            (SeqNumber(1_001), SeqNumber(78))
        );
        let greeting = segment(syn.header.key.dst, syn.header.key.src)
            .seq(78)
            .ack(1_001)
            .payload(b"220 ready");
        let seen = rig.put_one(&greeting);
        assert_eq!(seen.header.seq, SeqNumber(opened.dseq) + 1);
        assert_eq!(seen.payload(), b"220 ready");
    }
}

#[test]
fn syn_rcvd_fin_of_a_silent_client_is_answered_by_ours_and_nothing_is_kept() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let fin = opened.at(0).flags(TcpFlags::FIN | TcpFlags::ACK);
    let answer = rig.put_one(&fin);
    assert_eq!(answer.header.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!(answer.header.ack, SeqNumber(1_002));
    rig.put_none(&opened.at(1).ack(opened.dseq.wrapping_add(2)));
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(rig.drops(DropReason::CookieInvalid), 0);
    assert_eq!(kept(&rig), [0; 5]);
}

#[test]
fn syn_rcvd_cookie_is_good_for_an_interval_and_then_earns_a_rst() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let made = rig.now;
    rig.now = made + Duration::from_secs(129);
    let reset = rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(reset.header.flags, TcpFlags::RST);
    assert_eq!(reset.header.seq, SeqNumber(opened.dseq) + 1);
    assert_eq!(rig.drops(DropReason::CookieInvalid), 1);
    assert_eq!(kept(&rig), [0; 5]);

    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.now = rig.now + Duration::from_secs(64);
    rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_rcvd_idle_client_whose_cookie_aged_learns_it_from_its_keep_alive() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.now = rig.now + Duration::from_secs(200);
    let reset = rig.put_one(&opened.at(0).seq(1_000));
    assert_eq!(reset.header.flags, TcpFlags::RST);
}

#[test]
fn draining_refuses_syns_and_first_data_and_leaves_the_rest_alone() {
    let mut joined = Joined::usual();
    joined.rig.client.port += 1;
    let opened = joined.rig.open(70_000, &linux(5_000));
    joined.rig.datapath.drain(joined.rig.now);
    let reset = joined.rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(reset.header.flags, TcpFlags::RST);
    let refusals = joined.rig.refusals();
    assert_eq!(refusals, [(DropReason::Draining, None)]);
    let syn = joined.rig.by_client().flags(TcpFlags::SYN).seq(9);
    let reset = joined.rig.put_one(&syn);
    assert_eq!(reset.header.flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(reset.header.ack, SeqNumber(10));
    assert_eq!(joined.rig.drops(DropReason::Draining), 2);
    joined.rig.client.port -= 1;
    let data = joined.by_server().payload(b"still here");
    assert_eq!(joined.rig.put_one(&data).payload(), b"still here");
    assert!(joined.rig.datapath.snapshot().draining);
}

/// What goes into the cookie comes out again: the SYN to the server asks for what the client asked.
#[test]
fn syn_rcvd_what_the_client_asked_for_survives_the_cookie() {
    let asks = [
        linux(5_000),
        SynOptions {
            mss: Some(536),
            ..SynOptions::default()
        },
        SynOptions::default(),
        SynOptions {
            mss: Some(1_400),
            window_scale: Some(0),
            ..SynOptions::default()
        },
        SynOptions {
            mss: Some(1_460),
            window_scale: Some(14),
            sack_permitted: true,
            timestamps: None,
        },
        SynOptions {
            mss: Some(1_220),
            timestamps: Some(Timestamps {
                value: u32::MAX,
                echo: 0,
            }),
            ..SynOptions::default()
        },
    ];
    for (index, ask) in asks.into_iter().enumerate() {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let opened = rig.open(u32::MAX - index as u32, &ask);
        assert_eq!(
            opened.offered.window_scale.is_some(),
            ask.window_scale.is_some()
        );
        assert_eq!(opened.offered.sack_permitted, ask.sack_permitted);
        assert_eq!(
            opened.offered.timestamps.is_some(),
            ask.timestamps.is_some()
        );
        let syn = rig.put_one(&opened.data(0, REQUEST));
        let asked = syn.syn_options();
        assert_eq!(asked.mss, Some(ask.mss.unwrap_or(536)));
        assert_eq!(asked.window_scale, ask.window_scale);
        assert_eq!(asked.sack_permitted, ask.sack_permitted);
        assert_eq!(
            asked.timestamps.map(|ts| ts.value),
            opened.stamps.map(|(value, _)| value)
        );
        assert_eq!(
            syn.header.seq,
            SeqNumber(opened.isn),
            "the client's own number"
        );
    }
}

#[test]
fn closed_packet_from_a_server_of_no_connection_is_refused() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let stray = segment(endpoint("10.2.0.1:8081"), endpoint("100.64.0.1:5000"))
        .seq(1)
        .ack(77)
        .payload(b"late");
    let reset = rig.put_one(&stray);
    assert_eq!(
        (reset.header.flags, reset.header.seq),
        (TcpFlags::RST, SeqNumber(77))
    );
    assert_eq!(rig.drops(DropReason::NoConnection), 1);
    let dead = segment(endpoint("10.2.0.1:8081"), endpoint("100.64.0.1:5000")).flags(TcpFlags::RST);
    rig.put_none(&dead);
    assert_eq!(tcp(&dead.packet()).flags, TcpFlags::RST);
    rig.assert_dropped(DropReason::NoConnection);
}
