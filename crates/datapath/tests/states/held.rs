//! SPLICED with bytes that the switch holds for the server: a PROXY protocol header, a rewritten
//! head, or a head that was acknowledged to the client.

use core::time::Duration;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::config::{Config, Protocol, ProxyVersion, Treatment};
use fairlead_datapath::{End, Side, State, Verdict};
use fairlead_testkit::{Segment, segment};
use fairlead_wire::{TcpFlags, http, proxy_protocol};

use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, payload, simple_config, syn_ack, v6_config,
};

const SSEQ: u32 = 0xffff_fff0;

/// A splice with held bytes, watched from both ends.
struct Holding {
    rig: Rig,
    opened: Opened,
    /// What the switch sent when the server had answered.
    first: Vec<Sent>,
    syn: Sent,
    /// What the server has to get, up to the end of the request.
    bytes: Vec<u8>,
}

impl Holding {
    /// Takes a client to the splice; the server's SYN-ACK has this window.
    #[track_caller]
    fn with(config: Config, window: u16, stream: &[u8]) -> Self {
        let proxy = config.pools[0].proxy_protocol;
        let one_shot = config.services[0].routes[0].treatment == Treatment::OneShot;
        let mut rig = Rig::probed(config, &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        let syn = rig.put_one(&opened.data(0, stream));
        let first = rig.put(&syn_ack(&syn, SSEQ, &linux(900_000)).window(window));
        let mut bytes = Vec::new();
        match proxy {
            Some(ProxyVersion::V1) => proxy_protocol::emit_v1(rig.client, rig.vip, &mut bytes),
            Some(ProxyVersion::V2) => proxy_protocol::emit_v2(rig.client, rig.vip, &mut bytes),
            None => {}
        }
        if one_shot {
            let http::Scan::Complete(head) = http::HeadScanner::default().scan(stream) else {
                panic!("a whole head");
            };
            bytes.extend(http::with_connection_close(&head, stream));
            bytes.extend_from_slice(&stream[head.head_len..]);
        } else {
            bytes.extend_from_slice(stream);
        }
        Self {
            rig,
            opened,
            first,
            syn,
            bytes,
        }
    }

    /// Number of the first byte towards the server.
    fn start(&self) -> u32 {
        self.syn.header.seq.0.wrapping_add(1)
    }

    /// Number behind the held bytes, the same on both sides.
    fn end(&self) -> u32 {
        self.start().wrapping_add(self.bytes.len() as u32)
    }

    /// Begins a segment of the server that acknowledges so many of the held bytes.
    fn server(&self, acked: u32) -> Segment {
        let key = self.syn.header.key;
        segment(key.dst, key.src)
            .seq(SSEQ.wrapping_add(1))
            .ack(self.start().wrapping_add(acked))
            .timestamps(900_001, 5_010)
    }

    /// The server has it all; the fast path takes over.
    #[track_caller]
    fn finish(&mut self) {
        let ack = self.server(self.bytes.len() as u32);
        let seen = self.rig.put_one(&ack);
        assert_eq!(seen.header.ack, SeqNumber(self.end()));
        let now = self.rig.datapath.snapshot();
        assert_eq!((now.setups, now.buffered_bytes, now.live), (0, 0, 1));
        let before = now.fast_packets;
        self.rig
            .put_one(&self.server(self.bytes.len() as u32).payload(b"x"));
        assert_eq!(self.rig.datapath.snapshot().fast_packets, before + 1);
    }
}

fn proxied(version: ProxyVersion) -> Config {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.pools[0].proxy_protocol = Some(version);
    config
}

fn one_shot() -> Config {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.services[0].routes[0].treatment = Treatment::OneShot;
    config
}

fn all_configs() -> Vec<Config> {
    let mut both = proxied(ProxyVersion::V1);
    both.services[0].routes[0].treatment = Treatment::OneShot;
    let mut v6 = v6_config();
    for pool in &mut v6.pools {
        pool.proxy_protocol = Some(ProxyVersion::V2);
    }
    vec![
        proxied(ProxyVersion::V1),
        proxied(ProxyVersion::V2),
        one_shot(),
        both,
        v6,
    ]
}

/// Heads that grow and heads that shrink when they are rewritten; a body of four bytes follows.
const HEADS: [&[u8]; 3] = [
    b"PUT /a.jpg HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\n\r\n",
    b"PUT /a.jpg HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, upgrade\r\n\
      Keep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\n",
    b"PUT /a.jpg HTTP/1.1\r\nHost: a\r\nConnection: x\r\nContent-Length: 4\r\n\r\n",
];

#[test]
fn held_preamble_and_head_are_numbered_so_that_the_rest_needs_no_translation() {
    for config in all_configs() {
        let one_shot = config.services[0].routes[0].treatment == Treatment::OneShot;
        for stream in HEADS {
            let mut holding = Holding::with(config.clone(), 60_000, stream);
            assert_eq!(payload(&holding.first), holding.bytes);
            assert_eq!(holding.first[0].header.seq, SeqNumber(holding.start()));
            assert_eq!(holding.end(), 1_001 + stream.len() as u32);
            assert_eq!(holding.rig.datapath.snapshot().setups, 1);
            // Bytes behind it pass with their own numbers, both before and after the server's
            // acknowledgement.
            let len = stream.len() as u32;
            let body = holding.rig.put_one(&holding.opened.data(len, b"body"));
            assert_eq!(body.header.seq, SeqNumber(holding.end()));
            assert_eq!(body.payload(), b"body");
            holding.finish();
            if !one_shot {
                let more = holding.rig.put_one(&holding.opened.data(len + 4, b"more"));
                assert_eq!(more.header.seq, SeqNumber(holding.end()) + 4);
            }
        }
    }
}

#[test]
fn held_bytes_are_repeated_until_acknowledged() {
    for config in all_configs() {
        let mut holding = Holding::with(config, 60_000, REQUEST);
        for wait in [250, 500, 1_000, 2_000] {
            assert!(holding.rig.wait_ms(wait - 1).is_empty());
            let again = holding.rig.wait_ms(1);
            assert_eq!(payload(&again), holding.bytes, "after {wait} ms");
            assert_eq!(again[0].header.seq, SeqNumber(holding.start()));
        }
        holding.finish();
        assert!(holding.rig.wait_ms(60_000).is_empty());
    }
}

#[test]
fn held_bytes_never_acknowledged_end_the_connection() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let sent = holding.rig.wait(Duration::from_secs(200));
    let (resets, repeats): (Vec<_>, Vec<_>) = sent
        .into_iter()
        .partition(|sent| sent.header.flags.contains(TcpFlags::RST));
    assert_eq!(repeats.len(), 8);
    assert_eq!(resets.len(), 2);
    assert_eq!(resets[0].header.key.dst, holding.rig.client);
    assert_eq!(resets[0].header.seq, SeqNumber(holding.opened.dseq) + 1);
    assert_eq!(resets[1].header.key.dst, holding.syn.header.key.dst);
    assert_eq!(resets[1].header.seq, SeqNumber(holding.end()));
    assert_eq!(holding.rig.ends(), [End::PreambleUnacked]);
    assert_eq!(holding.rig.drops(DropReason::PreambleUnacked), 1);
    holding.rig.assert_empty();
}

#[test]
fn held_partial_acknowledgements_are_never_shown_to_the_client() {
    for config in all_configs() {
        let mut holding = Holding::with(config, 60_000, REQUEST);
        for acked in [1, 5, 20, holding.bytes.len() as u32 - 1] {
            holding.rig.put_none(&holding.server(acked));
            assert_eq!(holding.rig.last, Some(Verdict::Consumed));
        }
        // With data they are, but without the number.
        let data = holding.server(20).payload(b"early");
        let seen = holding.rig.put_one(&data);
        assert_eq!(seen.payload(), b"early");
        assert_eq!(seen.header.ack, SeqNumber(1_001));
        // What was acknowledged is not repeated.
        let again = holding.rig.wait_ms(250);
        assert_eq!(payload(&again), holding.bytes[holding.bytes.len() - 1..]);
        holding.finish();
    }
}

#[test]
fn held_sack_blocks_about_held_bytes_are_blanked() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let start = holding.start();
    let data = holding
        .server(5)
        .sack(&[(start + 20, start + 40)])
        .payload(b"x");
    let seen = holding.rig.put_one(&data);
    assert_eq!(seen.options(), [1; 12]);
}

#[test]
fn held_bytes_repeated_by_the_client_are_absorbed() {
    let mut holding = Holding::with(proxied(ProxyVersion::V2), 60_000, REQUEST);
    holding.rig.put_none(&holding.opened.data(0, REQUEST));
    holding.rig.assert_dropped(DropReason::HeldAlready);
    holding
        .rig
        .put_none(&holding.opened.data(10, &REQUEST[10..20]));
    holding.rig.assert_dropped(DropReason::HeldAlready);
    // An acknowledgement that comes with them still reaches the server, under our number.
    holding.rig.put_one(&holding.server(5).payload(b"early"));
    let news = holding
        .opened
        .data(0, REQUEST)
        .ack(holding.opened.dseq.wrapping_add(6));
    let ack = holding.rig.put_one(&news);
    assert_eq!(ack.payload().len(), 0);
    assert_eq!(ack.header.seq, SeqNumber(holding.end()));
    assert_eq!(ack.header.ack, SeqNumber(SSEQ) + 6);
    holding.finish();
}

#[test]
fn held_straddling_segment_is_trimmed_to_what_is_new() {
    for config in [proxied(ProxyVersion::V1), proxied(ProxyVersion::V2)] {
        let mut holding = Holding::with(config, 60_000, REQUEST);
        let both = [&REQUEST[30..], b"and a body"].concat();
        let passed = holding.rig.put_one(&holding.opened.data(30, &both));
        assert_eq!(passed.payload(), b"and a body");
        assert_eq!(passed.header.seq, SeqNumber(holding.end()));
        holding.finish();
    }
}

#[test]
fn held_straddling_super_packet_is_trimmed() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let both = [REQUEST, &[7; 4_000]].concat();
    let sent = holding
        .rig
        .put_packet(holding.opened.data(0, &both).super_packet(1_400));
    assert_eq!(sent[0].payload(), [7; 4_000]);
    assert!(sent[0].packet.gso.is_some());
    let both = [REQUEST, &[7; 1_000]].concat();
    let sent = holding
        .rig
        .put_packet(holding.opened.data(0, &both).super_packet(1_400));
    assert_eq!(sent[0].payload(), [7; 1_000]);
    assert!(sent[0].packet.gso.is_none());
}

#[test]
fn held_window_smaller_than_the_preamble_is_filled_as_it_opens() {
    for config in all_configs() {
        let mut holding = Holding::with(config, 10, REQUEST);
        assert_eq!(payload(&holding.first), holding.bytes[..10]);
        let mut taken = 10;
        while taken < holding.bytes.len() {
            // Scaled by 7 from here on: 128 bytes at a time.
            let sent = holding.rig.put(&holding.server(taken as u32).window(1));
            let to = holding.bytes.len().min(taken + 128);
            assert_eq!(payload(&sent), holding.bytes[taken..to]);
            taken = to;
        }
        holding.finish();
    }
}

/// RFC 9293, section 3.8.6.1.
#[test]
fn held_closed_window_is_probed_for_as_long_as_probes_are_answered() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 0, REQUEST);
    assert_eq!(payload(&holding.first), b"");
    for _ in 0..30 {
        let mut probes = Vec::new();
        while probes.is_empty() {
            probes = holding.rig.wait_ms(1_000);
        }
        assert!(
            probes
                .iter()
                .all(|probe| probe.payload() == &holding.bytes[..1])
        );
        holding.rig.put_none(&holding.server(0).window(0));
    }
    let sent = holding.rig.put(&holding.server(0).window(500));
    assert_eq!(payload(&sent), holding.bytes);
    holding.finish();
}

/// Answered probes prolong the holding, not the connection's life.
#[test]
fn held_closed_window_ends_with_the_longest_lifetime() {
    let mut config = proxied(ProxyVersion::V1);
    config.services[0].timeouts.lifetime = Some(Duration::from_secs(60));
    let mut holding = Holding::with(config, 0, REQUEST);
    for _ in 0..58 {
        holding.rig.wait_ms(1_000);
        holding.rig.put_none(&holding.server(0).window(0));
    }
    assert_eq!(holding.rig.state(), Some(State::Spliced));
    holding.rig.wait_ms(4_000);
    assert_eq!(holding.rig.ends(), [End::MaxLifetime]);
    holding.rig.assert_empty();
}

#[test]
fn held_segments_respect_the_servers_mss_and_each_way_limit() {
    let mut rig = Rig::probed(proxied(ProxyVersion::V1), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(9_000));
    let mut syn = None;
    for (index, part) in long.as_bytes().chunks(1_400).enumerate() {
        syn = syn.or(rig.put(&opened.data(index as u32 * 1_400, part)).pop());
    }
    let mut options = linux(900_000);
    options.mss = Some(600);
    let sent = rig.put(&syn_ack(&syn.unwrap(), SSEQ, &options));
    assert!(sent.len() > 15);
    for segment in &sent {
        assert!(segment.payload().len() + segment.options().len() <= 600);
    }
    assert!(payload(&sent).ends_with(long.as_bytes()));
}

#[test]
fn held_acknowledgement_of_what_was_never_sent_is_dropped() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 10, REQUEST);
    holding
        .rig
        .put_none(&holding.server(holding.bytes.len() as u32));
    holding.rig.assert_dropped(DropReason::BadSequence);
    holding.rig.put_none(&holding.server(30));
    assert_eq!(
        payload(&holding.rig.wait_ms(250)),
        holding.bytes[..10],
        "nothing was taken"
    );
}

#[test]
fn held_pure_acknowledgement_of_the_client_carries_a_number_the_server_knows() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 10, REQUEST);
    let sent = holding
        .rig
        .put_one(&holding.opened.at(REQUEST.len() as u32));
    assert_eq!(sent.header.seq, SeqNumber(holding.start()) + 10);
    assert_eq!(sent.header.ack, SeqNumber(SSEQ) + 1);
}

#[test]
fn held_head_that_was_acknowledged_is_acknowledged_again_when_repeated() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    assert_eq!(rig.wait_ms(40).len(), 1);
    let syn = rig.put_one(&opened.data(20, &REQUEST[20..]));
    let sent = rig.put(&syn_ack(&syn, SSEQ, &linux(900_000)));
    assert_eq!(payload(&sent), REQUEST);
    let again = rig.put_one(&opened.data(0, &REQUEST[..20]));
    assert_eq!(again.header.key.dst, rig.client);
    assert_eq!(again.header.ack, SeqNumber(1_021));
    assert_eq!(again.header.seq, SeqNumber(opened.dseq) + 1);
    assert!(again.timestamps().is_some());
    // What was not acknowledged is the client's to repeat; we stay silent.
    rig.put_none(&opened.data(20, &REQUEST[20..]));
}

#[test]
fn held_fin_of_the_client_is_relayed_and_its_repetitions_too() {
    for config in all_configs() {
        let mut rig = Rig::probed(config.clone(), &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        let fin = TcpFlags::FIN | TcpFlags::ACK;
        let syn = rig.put_one(&opened.data(0, REQUEST).flags(fin));
        let sent = rig.put(&syn_ack(&syn, SSEQ, &linux(900_000)));
        assert!(sent.last().unwrap().header.flags.contains(TcpFlags::FIN));
        assert_eq!(rig.state(), Some(State::FinRelayed1));
        // The client repeats all; only the FIN is news to anyone.
        let again = rig.put_one(&opened.data(0, REQUEST).flags(fin));
        assert_eq!((again.header.flags, again.payload().len()), (fin, 0));
        assert_eq!(again.header.seq, SeqNumber(1_001) + REQUEST.len() as u32);
        assert_eq!(rig.state(), Some(State::FinRelayed1));
        // A FIN in the middle of what it has sent is none.
        rig.put_none(&opened.data(0, &REQUEST[..5]).flags(fin));
        rig.assert_dropped(DropReason::BadSequence);
    }
}

#[test]
fn held_server_that_closes_early_is_relayed() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let fin = holding.server(5).flags(TcpFlags::FIN | TcpFlags::ACK);
    let seen = holding.rig.put_one(&fin);
    assert!(seen.header.flags.contains(TcpFlags::FIN));
    assert_eq!(seen.header.ack, SeqNumber(1_001));
    assert_eq!(holding.rig.state(), Some(State::FinRelayed1));
    // The rest is still repeated, and the connection ends in time.
    assert_eq!(payload(&holding.rig.wait_ms(250)), holding.bytes[5..]);
    holding.rig.wait(Duration::from_secs(200));
    holding.rig.assert_empty();
}

#[test]
fn held_rst_of_either_side_goes_through_with_a_number_its_receiver_believes() {
    for side in [Side::Client, Side::Server] {
        let mut holding = Holding::with(proxied(ProxyVersion::V1), 10, REQUEST);
        let reset = match side {
            Side::Client => holding.opened.at(REQUEST.len() as u32).flags(TcpFlags::RST),
            Side::Server => holding.server(5).flags(TcpFlags::RST | TcpFlags::ACK),
        };
        let sent = holding.rig.put_one(&reset);
        match side {
            Side::Client => assert_eq!(sent.header.seq, SeqNumber(holding.start()) + 10),
            Side::Server => assert_eq!(sent.header.seq, SeqNumber(holding.opened.dseq) + 1),
        }
        assert_eq!(holding.rig.state(), Some(State::Reset));
        assert!(
            holding.rig.wait_ms(5_000).is_empty(),
            "nothing is sent to the dead"
        );
        let now = holding.rig.datapath.snapshot();
        assert_eq!((now.records, now.setups, now.buffered_bytes), (1, 0, 0));
        let end = match side {
            Side::Client => End::ResetByClient,
            Side::Server => End::ResetByServer,
        };
        assert_eq!(holding.rig.ends(), [end]);
        holding.rig.wait_ms(57_000);
        holding.rig.assert_empty();
    }
}

/// The server lacks some of what was sent before the RST, so that the number is not what it
/// expects: it challenges, and is answered in the place of the client, who knows of no such
/// numbers.
#[test]
fn held_rst_that_the_server_challenges_is_repeated_with_the_number_that_it_expects() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let reset = holding.opened.at(REQUEST.len() as u32).flags(TcpFlags::RST);
    let passed = holding.rig.put_one(&reset);
    assert_eq!(passed.header.seq, SeqNumber(holding.end()));
    assert_eq!(holding.rig.state(), Some(State::Reset));
    let challenge = holding.server(5);
    let repeated = holding.rig.put_one(&challenge);
    assert_eq!(repeated.header.flags, TcpFlags::RST);
    assert_eq!(repeated.header.seq, SeqNumber(holding.start()) + 5);
    assert_eq!(repeated.header.key, passed.header.key);
    assert_eq!(holding.rig.ends(), [End::ResetByClient]);
    holding.rig.wait_ms(62_000);
    holding.rig.assert_empty();
}

/// A client that is gone resets by the number that was acknowledged to it.
#[test]
fn held_rst_of_the_client_counts_where_it_was_acknowledged_and_a_near_one_is_challenged() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    for off in [5, u32::MAX, u32::MAX << 22] {
        let near = holding.opened.at(off).flags(TcpFlags::RST);
        let challenge = holding.rig.put_one(&near);
        assert_eq!(challenge.header.key.dst, holding.rig.client);
        assert_eq!(challenge.header.flags, TcpFlags::ACK);
        assert_eq!(challenge.header.ack, SeqNumber(1_001));
        assert_eq!(holding.rig.state(), Some(State::Spliced));
    }
    let far = holding.opened.at(u32::MAX << 28).flags(TcpFlags::RST);
    holding.rig.put_none(&far);
    holding.rig.assert_dropped(DropReason::BadSequence);
    let exact = holding.opened.at(0).flags(TcpFlags::RST);
    let passed = holding.rig.put_one(&exact);
    assert_eq!(passed.header.seq, SeqNumber(holding.end()));
    assert_eq!(holding.rig.state(), Some(State::Reset));
}

/// A stranger's acknowledgement does not end the holding, and his clock is nobody's.
#[test]
fn held_bytes_and_clocks_are_safe_from_strangers() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let whole = holding.bytes.len() as u32;
    let wild = [
        // They acknowledge more than anybody sent, or come from far away.
        holding.server(whole + 1),
        holding.server(whole + (1 << 25)),
        holding.server(whole).seq(SSEQ.wrapping_add(1 << 25)),
        holding.server(whole).seq(SSEQ.wrapping_add(1 << 31)),
    ];
    for stranger in wild {
        holding.rig.put_none(&stranger.timestamps(0x7000_0000, 0));
        holding.rig.assert_dropped(DropReason::BadSequence);
    }
    let by_client = holding.opened.at(0);
    holding.rig.put(
        &by_client
            .ack(0x1234_5678)
            .window(1)
            .timestamps(0x7000_0000, 0),
    );
    let again = holding.rig.wait_ms(250);
    assert_eq!(payload(&again), holding.bytes, "held, and sent again");
    let stamps = again[0].timestamps().unwrap();
    assert!(
        stamps.value < 6_000 && stamps.echo < 1_000_000,
        "{stamps:?}"
    );
    assert_ne!(again[0].header.window, 1);
    holding.finish();
}

#[test]
fn held_one_shot_sends_connection_close_and_nothing_else_differs() {
    let stream =
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody";
    let holding = Holding::with(one_shot(), 60_000, stream);
    let expected =
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    assert_eq!(payload(&holding.first), expected);
}

#[test]
fn held_preamble_names_the_client_for_a_service_that_reads_nothing() {
    let mut config = proxied(ProxyVersion::V1);
    config.services[0].protocol = Protocol::Tcp;
    let mut rig = Rig::probed(config, &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let syn = rig.put_one(&opened.at(0));
    let header = b"PROXY TCP4 192.0.2.7 10.1.0.3 40000 80\r\n";
    assert_eq!(syn.header.seq, SeqNumber(1_000) - header.len() as u32);
    let sent = rig.put(&syn_ack(&syn, SSEQ, &linux(900_000)));
    assert_eq!(payload(&sent), header);
    let key = syn.header.key;
    let banner = segment(key.dst, key.src)
        .seq(SSEQ.wrapping_add(1))
        .ack(1_001)
        .payload(b"220\r\n");
    let seen = rig.put_one(&banner);
    assert_eq!(
        (seen.payload(), seen.header.ack),
        (&b"220\r\n"[..], SeqNumber(1_001))
    );
    assert_eq!(rig.datapath.snapshot().setups, 0);
}

/// An acknowledgement that was overtaken by the one that ended the holding.
#[test]
fn held_late_acknowledgement_of_the_preamble_is_not_shown_to_the_client_afterwards() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 60_000, REQUEST);
    let (late, with_data) = (holding.server(5), holding.server(5).payload(b"late"));
    holding.finish();
    holding.rig.put_none(&late);
    holding.rig.assert_dropped(DropReason::NothingToDo);
    let seen = holding.rig.put_one(&with_data);
    assert_eq!(
        (seen.payload(), seen.header.ack),
        (&b"late"[..], SeqNumber(1_001))
    );
}

#[test]
fn held_aborted_connections_reset_both_ends_at_the_right_numbers() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 10, REQUEST);
    holding.rig.datapath.abort_all(holding.rig.now);
    let mut sent = Vec::new();
    holding.rig.fetch(&mut sent);
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header.seq, SeqNumber(holding.opened.dseq) + 1);
    assert_eq!(sent[1].header.seq, SeqNumber(holding.start()) + 10);
    holding.rig.assert_empty();
}

/// The server has ten bytes, and believes a RST behind these alone.
#[test]
fn held_connections_whose_clients_begin_anew_are_reset_at_the_right_number() {
    let mut holding = Holding::with(proxied(ProxyVersion::V1), 10, REQUEST);
    let anew = holding.rig.open(500_000, &linux(70_000));
    let sent = holding.rig.put(&anew.data(0, REQUEST));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header.flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(sent[0].header.key.dst, holding.syn.header.key.dst);
    assert_eq!(sent[0].header.seq, SeqNumber(holding.start()) + 10);
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_eq!(holding.rig.ends(), [End::Replaced]);
}

#[test]
fn a_client_that_has_reset_keeps_nothing_by_what_it_sends_afterwards() {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.pools[0].proxy_protocol = Some(ProxyVersion::V2);
    let mut stream = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n".to_vec();
    stream.resize(1_400, b'x');
    let end = stream.len() as u32;
    for flags in [TcpFlags::ACK, TcpFlags::RST] {
        let mut holding = Holding::with(config.clone(), 500, &stream);
        let rst = holding.opened.at(end).flags(TcpFlags::RST);
        holding.rig.put(&rst);
        assert_eq!(holding.rig.state(), Some(State::Reset));
        let before = holding.rig.datapath.snapshot();
        assert!(before.buffered_bytes > 0, "the server took a part of it");
        let mut waited_ms = 0;
        while holding.rig.datapath.snapshot().setups > 0 {
            waited_ms += 2_900;
            let mut sent = holding.rig.wait_ms(2_900);
            let packet = holding.opened.at(end).flags(flags);
            sent.extend(holding.rig.put(&packet));
            let data = sent.iter().find(|one| !one.payload().is_empty());
            assert!(data.is_none(), "after a RST nothing is sent");
            assert!(waited_ms < 150_000, "it is kept for ever by {flags:?}");
        }
        assert_eq!(holding.rig.datapath.snapshot().buffered_bytes, 0);
    }
}
