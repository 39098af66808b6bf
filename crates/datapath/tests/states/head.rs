//! ESTABLISHED: a head is collected, in whatever pieces it comes, and decides where it goes.

use core::time::Duration;

use fairlead_base::{DropReason, Rng, SeqNumber};
use fairlead_datapath::config::{Config, Matcher, NamePattern, Protocol, Treatment, Unmatched};
use fairlead_datapath::{Event, State};
use fairlead_testkit::endpoint;
use fairlead_wire::TcpFlags;

use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, payload, pool, route, simple_config, syn_ack,
};

const FIRST: &str = "10.2.0.1:8081";

/// The request as the server gets it, once it has answered the SYN.
#[track_caller]
fn delivered(rig: &mut Rig, syn: &Sent) -> Vec<u8> {
    assert_eq!(syn.header.flags, TcpFlags::SYN);
    payload(&rig.put(&syn_ack(syn, 0xffff_fff0, &linux(900_000))))
}

fn opened() -> (Rig, Opened) {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    (rig, opened)
}

#[test]
fn established_whole_head_in_one_segment_goes_where_its_path_says() {
    for (path, server) in [("/a.jpg", FIRST), ("/a.html", "10.2.0.2:8082")] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let request = format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n");
        let (_, sent) = rig.request(1_000, request.as_bytes());
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].header.key.dst, endpoint(server));
        assert_eq!(rig.state(), Some(State::SynSent));
        let events = rig.events();
        let [
            Event::Decided {
                server: chosen,
                attempt: 0,
                treatment,
                subject,
                ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(*chosen, endpoint(server));
        assert_eq!(*treatment, Treatment::Splice);
        assert_eq!(subject.as_str(), format!("GET example.com{path}"));
        assert_eq!(delivered(&mut rig, &sent[0]), request.as_bytes());
    }
}

#[test]
fn established_bytes_are_not_acknowledged_before_the_server_has_them() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let syn = rig.put_one(&opened.data(20, &REQUEST[20..]));
    let to_server = rig.put(&syn_ack(&syn, 5, &linux(900_000)));
    assert!(
        to_server
            .iter()
            .all(|sent| sent.header.key.dst == endpoint(FIRST))
    );
}

/// Random cuts, random order, duplicates: always the same bytes.
#[test]
fn established_head_in_any_pieces_and_order_is_delivered_once_and_in_order() {
    let request = format!(
        "GET /{}.jpg HTTP/1.1\r\nHost: example.com\r\nCookie: {}\r\n\r\n",
        "a".repeat(3_000),
        "b".repeat(4_000)
    );
    let request = request.as_bytes();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::probed(http_config(), &linux(1));
        let opened = rig.open(rng.next_u64() as u32, &linux(5_000));
        let mut cuts: Vec<usize> = (0..8).map(|_| rng.below(7_000) as usize).collect();
        cuts.extend([0, request.len()]);
        cuts.sort_unstable();
        let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
        pieces.extend_from_within(..3);
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, rng.below(at as u32 + 1) as usize);
        }
        // The first byte must come first: before it there is no record.
        pieces.insert(0, (0, cuts[1].max(1)));
        let mut syn = None;
        for (from, to) in pieces {
            let sent = rig.put(&opened.data(from as u32, &request[from..to]));
            syn = syn.or(sent.into_iter().next());
        }
        let syn = syn.unwrap_or_else(|| panic!("seed {seed}: no server was chosen"));
        assert_eq!(delivered(&mut rig, &syn), request, "seed {seed}");
    }
}

#[test]
fn established_conflicting_copies_the_first_bytes_win_and_both_ends_see_them() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, b"GET /"));
    // Later bytes first, then other bytes for the same place.
    rig.put_none(&opened.data(10, b"g HTTP/1.1\r\nHost: a\r\n"));
    rig.put_none(&opened.data(0, b"PUT /first HTTP/9.9\r\nHost: b\r\n"[..10].as_ref()));
    rig.put_none(&opened.data(5, b"YYYYYYYYYYY"));
    let syn = rig.put_one(&opened.data(31, b"\r\n"));
    let expected = b"GET /firstg HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(delivered(&mut rig, &syn), expected);
}

#[test]
fn established_head_across_the_wrap_of_the_sequence_space_is_one_head() {
    let wrap = u32::MAX - 25;
    for isn in [wrap, u32::MAX, u32::MAX - 1] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let opened = rig.open(isn, &linux(5_000));
        rig.put_none(&opened.data(0, &REQUEST[..10]));
        let syn = rig.put_one(&opened.data(10, &REQUEST[10..]));
        assert_eq!(syn.header.seq, SeqNumber(isn));
        assert_eq!(delivered(&mut rig, &syn), REQUEST);
        let fin = opened.at(REQUEST.len() as u32).flags(TcpFlags::RST);
        rig.put(&fin);
        rig.wait_ms(5_000);
        let events = rig.events();
        let bytes = events.iter().find_map(|event| match event {
            Event::Closed { bytes_in, .. } => Some(*bytes_in),
            _ => None,
        });
        assert_eq!(bytes, Some(REQUEST.len() as u64));
    }
}

#[test]
fn established_keep_alive_probe_before_and_within_the_head_changes_nothing() {
    let (mut rig, opened) = opened();
    rig.put_one(&opened.at(0).seq(1_000));
    rig.put_none(&opened.data(0, &REQUEST[..10]));
    rig.put_none(&opened.at(0).seq(1_000).payload(b"\0"));
    let syn = rig.put_one(&opened.data(10, &REQUEST[10..]));
    assert_eq!(delivered(&mut rig, &syn), REQUEST);
}

#[test]
fn established_bytes_behind_the_head_go_to_the_server_too() {
    let (mut rig, opened) = opened();
    let two = [REQUEST, REQUEST, b"GET /third"].concat();
    let syn = rig.put_one(&opened.data(0, &two));
    rig.put_none(&opened.data(two.len() as u32, b".html HTTP/1.1\r\n"));
    let all = [&two[..], b".html HTTP/1.1\r\n"].concat();
    assert_eq!(delivered(&mut rig, &syn), all);
}

#[test]
fn established_fin_with_the_request_reaches_the_server_behind_it() {
    let (mut rig, opened) = opened();
    let last = opened.data(0, REQUEST).flags(TcpFlags::FIN | TcpFlags::ACK);
    let syn = rig.put_one(&last);
    let sent = rig.put(&syn_ack(&syn, 5, &linux(900_000)));
    assert_eq!(payload(&sent), REQUEST);
    assert!(sent[0].header.flags.contains(TcpFlags::FIN));
    assert_eq!(rig.state(), Some(State::FinRelayed1));
}

/// The beginning of a head of each protocol.
const BEGUN: [(Protocol, &[u8]); 2] = [
    (Protocol::Http, b"GET /a HTTP/1.1\r\nHo"),
    (Protocol::Tls, &[22, 3, 1, 2, 0, 1]),
];

#[test]
fn established_fin_before_the_head_is_whole_ends_the_connection_as_aborted() {
    for (protocol, begun) in BEGUN {
        // With the bytes, and in a segment of its own.
        for apart in [false, true] {
            let mut rig = Rig::probed(simple_config(protocol, &[FIRST]), &linux(1));
            let opened = rig.open(1_000, &linux(5_000));
            let fin = TcpFlags::FIN | TcpFlags::ACK;
            let end = begun.len() as u32;
            let last = if apart {
                rig.put_none(&opened.data(0, begun));
                rig.put_one(&opened.at(end).flags(fin))
            } else {
                rig.put_one(&opened.data(0, begun).flags(fin))
            };
            assert!(last.header.flags.contains(TcpFlags::FIN));
            assert_eq!(last.payload(), b"", "nobody reads an answer");
            assert_eq!(
                last.header.ack,
                SeqNumber(1_002 + end),
                "the FIN is acknowledged"
            );
            let told = (protocol, apart);
            assert_eq!(
                rig.refusals(),
                [(DropReason::HeadAborted, None)],
                "{told:?}"
            );
            assert_eq!(rig.drops(DropReason::HeadAborted), 1);
            assert_eq!(rig.drops(DropReason::HttpMalformed), 0);
            assert_eq!(rig.drops(DropReason::TlsMalformed), 0);
            rig.put_none(&opened.at(end + 1).ack(last.header.seq.0.wrapping_add(1)));
            rig.wait(Duration::from_secs(2));
            rig.assert_empty();
        }
    }
}

#[test]
fn established_rst_before_the_head_is_whole_is_counted_and_told_as_aborted() {
    for (protocol, begun) in BEGUN {
        let mut rig = Rig::probed(simple_config(protocol, &[FIRST]), &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, begun));
        rig.put_none(&opened.at(begun.len() as u32).flags(TcpFlags::RST));
        assert_eq!(rig.refusals(), [(DropReason::HeadAborted, None)]);
        assert_eq!(rig.drops(DropReason::HeadAborted), 1);
        rig.assert_empty();
    }
}

#[test]
fn established_nothing_is_taken_behind_a_fin() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let end = REQUEST.len() as u32;
    rig.put_none(&opened.at(end).flags(TcpFlags::FIN | TcpFlags::ACK));
    rig.put_none(&opened.data(end, b"smuggled"));
    let syn = rig.put_one(&opened.data(20, &REQUEST[20..]));
    let sent = rig.put(&syn_ack(&syn, 5, &linux(900_000)));
    assert_eq!(payload(&sent), REQUEST);
    assert!(sent[0].header.flags.contains(TcpFlags::FIN));
}

#[test]
fn established_fin_inside_bytes_already_taken_is_no_end() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    rig.put_none(&opened.at(10).flags(TcpFlags::FIN | TcpFlags::ACK));
    let syn = rig.put_one(&opened.data(20, &REQUEST[20..]));
    let sent = rig.put(&syn_ack(&syn, 5, &linux(900_000)));
    assert_eq!(payload(&sent), REQUEST);
    assert!(!sent[0].header.flags.contains(TcpFlags::FIN));
}

/// One byte every 100 ms: acknowledged after 40 ms, held from then on.
#[test]
fn established_head_byte_by_byte_is_acknowledged_late_and_then_held() {
    let (mut rig, opened) = opened();
    let mut syn = None;
    for (at, byte) in REQUEST.iter().enumerate() {
        let at = at as u32;
        let mut sent = rig.put(&opened.data(at, &[*byte]));
        if let Some(last) = sent.pop() {
            syn = Some(last);
            break;
        }
        assert!(rig.wait_ms(39).is_empty());
        let acks = rig.wait_ms(61);
        assert_eq!(acks.len(), 1, "byte {at}");
        assert_eq!(acks[0].header.flags, TcpFlags::ACK);
        assert_eq!(acks[0].header.ack, SeqNumber(1_002 + at));
        assert_eq!(acks[0].header.seq, SeqNumber(opened.dseq) + 1);
        let room = (16 << 10) - at - 1;
        assert_eq!(u32::from(acks[0].header.window), room >> 7);
        let stamps = acks[0].timestamps().unwrap();
        assert_eq!((stamps.value, stamps.echo), (1_000, 5_010));
    }
    let syn = syn.unwrap();
    assert_eq!(delivered(&mut rig, &syn), REQUEST);
    // The client no longer has these bytes to send, so we repeat them.
    let again = rig.wait_ms(250);
    assert_eq!(payload(&again), REQUEST);
}

#[test]
fn established_repeated_bytes_that_were_acknowledged_are_acknowledged_again() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    assert_eq!(rig.wait_ms(40).len(), 1);
    let again = rig.put_one(&opened.data(0, &REQUEST[..20]));
    assert_eq!(again.header.ack, SeqNumber(1_021));
}

#[test]
fn established_head_too_large_is_answered_431() {
    let (mut rig, opened) = opened();
    let line = format!(
        "GET /a.jpg HTTP/1.1\r\nHost: a\r\nX: {}",
        "x".repeat(17_000)
    );
    let mut answers = Vec::new();
    for (index, piece) in line.as_bytes().chunks(1_400).enumerate() {
        answers.extend(rig.put(&opened.data(index as u32 * 1_400, piece)));
    }
    assert!(answers[0].payload().starts_with(b"HTTP/1.1 431 "));
    assert_eq!(rig.refusals(), [(DropReason::HeadTooLarge, Some(431))]);
}

/// RFC 9112, section 3: nobody's fields were too many.
#[test]
fn established_request_line_too_long_is_answered_414() {
    let (mut rig, opened) = opened();
    let line = format!("GET /{}", "a".repeat(17_000));
    let mut answers = Vec::new();
    for (index, piece) in line.as_bytes().chunks(1_400).enumerate() {
        answers.extend(rig.put(&opened.data(index as u32 * 1_400, piece)));
    }
    assert!(
        answers[0]
            .payload()
            .starts_with(b"HTTP/1.1 414 URI Too Long\r\n")
    );
    assert_eq!(rig.refusals(), [(DropReason::HeadTooLarge, Some(414))]);
}

#[test]
fn established_head_that_is_never_whole_is_answered_408() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let sent = rig.wait(Duration::from_secs(9));
    assert_eq!(sent.len(), 1, "the late acknowledgement only");
    // More bytes do not buy more time.
    rig.put_none(&opened.data(20, &REQUEST[20..25]));
    let sent = rig.wait(Duration::from_millis(1_000));
    let answer = sent.iter().find(|sent| !sent.payload().is_empty()).unwrap();
    assert!(answer.payload().starts_with(b"HTTP/1.1 408 "));
    assert_eq!(rig.refusals(), [(DropReason::HeadTimeout, Some(408))]);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn established_malformed_head_is_answered_as_rfc_9112_asks_and_counted() {
    let cases: [(&[u8], u16, DropReason); 8] = [
        (b"GET / HTTP/1.1\nHost: a\n\n", 400, DropReason::HttpMalformed),
        (b"GET / HTTP/1.1\r\n\r\n", 400, DropReason::HttpMalformed),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, DropReason::HttpMalformed),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400, DropReason::HttpMalformed),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            DropReason::HttpMalformed,
        ),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, DropReason::HttpVersion),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, DropReason::HttpMalformed),
        (b"\x16\x03\x01\x02\x00\x01", 400, DropReason::HttpMalformed),
    ];
    for (bytes, status, reason) in cases {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let (_, sent) = rig.request(1_000, bytes);
        let text = String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(sent.len(), 1, "{text}");
        let start = format!("HTTP/1.1 {status} ");
        assert!(sent[0].payload().starts_with(start.as_bytes()), "{text}");
        assert_eq!(rig.refusals(), [(reason, Some(status))], "{text}");
        assert_eq!(rig.drops(reason), 1);
        assert_eq!(rig.datapath.snapshot().services[0].refused, 1);
    }
}

#[test]
fn established_malformed_head_is_told_with_rule_offset_and_byte() {
    for (protocol, bytes, wanted) in [
        (
            Protocol::Http,
            &b"GET /a HTTP/1.1\r\nHost: a\x01\r\n\r\n"[..],
            "control_byte at 24 byte 0x01",
        ),
        (Protocol::Http, b"GET /a HTTP/1.1\r\n\r\n", "host_missing"),
        (
            Protocol::Tls,
            &[22, 3, 1, 0, 0],
            "empty_record at 3 byte 0x00",
        ),
    ] {
        let mut rig = Rig::probed(simple_config(protocol, &[FIRST]), &linux(1));
        rig.request(1_000, bytes);
        let events = rig.events();
        let [
            Event::Refused {
                fault: Some(fault), ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(fault.to_string(), wanted);
    }
}

#[test]
fn established_bytes_beyond_ascii_in_the_target_are_routed_by_and_forwarded() {
    let request = b"GET /caf\xc3\xa9.jpg?\xff HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut rig = Rig::probed(http_config(), &linux(1));
    let (_, sent) = rig.request(1_000, request);
    assert_eq!(sent[0].header.key.dst, endpoint(FIRST), "it ends with .jpg");
    assert_eq!(delivered(&mut rig, &sent[0]), request);
}

#[test]
fn established_servers_all_of_weight_0_are_as_servers_out_of_reach() {
    for (protocol, bytes) in [(Protocol::Http, REQUEST), (Protocol::Tcp, b"x")] {
        let mut config = simple_config(protocol, &[FIRST, "10.2.0.2:8082"]);
        for server in &mut config.pools[0].servers {
            server.weight = 0;
        }
        let mut rig = Rig::probed(config, &linux(1));
        let (_, sent) = rig.request(1_000, bytes);
        assert_eq!(sent.len(), 1, "{protocol:?}");
        if protocol == Protocol::Http {
            assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
        } else {
            assert!(sent[0].header.flags.contains(TcpFlags::RST));
        }
        assert_eq!(rig.drops(DropReason::NoServer), 1);
    }
}

#[test]
fn established_head_without_a_route_is_answered_404_or_421() {
    for (unmatched, status) in [(Unmatched::NotFound, 404), (Unmatched::Misdirected, 421)] {
        let mut config = http_config();
        config.services[0].routes.pop();
        config.services[0].unmatched = unmatched;
        let mut rig = Rig::probed(config, &linux(1));
        let (_, sent) = rig.request(1_000, b"GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n");
        let start = format!("HTTP/1.1 {status} ");
        assert!(sent[0].payload().starts_with(start.as_bytes()));
        assert_eq!(rig.refusals(), [(DropReason::NoRoute, Some(status))]);
    }
}

#[test]
fn established_head_request_without_a_route_gets_no_body() {
    let mut config = http_config();
    config.services[0].routes.clear();
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(sent[0].payload().ends_with(b"\r\n\r\n"));
}

/// A ClientHello with this server name, padded to about `len` bytes, in records of `record` bytes.
pub(crate) fn client_hello(name: &str, len: usize, record: usize) -> Vec<u8> {
    let mut extensions = Vec::new();
    let list_len = (name.len() + 3) as u16;
    extensions.extend([0, 0]);
    extensions.extend((list_len + 2).to_be_bytes());
    extensions.extend(list_len.to_be_bytes());
    extensions.push(0);
    extensions.extend((name.len() as u16).to_be_bytes());
    extensions.extend(name.as_bytes());
    extensions.extend([0, 21]);
    extensions.extend((len as u16).to_be_bytes());
    extensions.resize(extensions.len() + len, 0);
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let records = message.chunks(record).flat_map(|part| {
        let mut bytes = vec![22, 3, 1];
        bytes.extend((part.len() as u16).to_be_bytes());
        bytes.extend_from_slice(part);
        bytes
    });
    records.collect()
}

fn tls_config() -> Config {
    let mut config = simple_config(Protocol::Tls, &[FIRST]);
    let sni = |name: &str| Matcher::Sni(vec![NamePattern::Exact(name.into())]);
    config.services[0].routes = vec![
        route(vec![sni("a.example")], 0),
        route(vec![sni("b.example")], 1),
    ];
    config.services[0].head_bytes_max = 32 << 10;
    config.pools.push(pool("second", &["10.2.0.2:8082"]));
    config
}

fn tls_rig() -> Rig {
    Rig::probed(tls_config(), &linux(1))
}

#[test]
fn established_hello_over_several_segments_and_records_goes_where_its_name_says() {
    for (name, server) in [("a.example", FIRST), ("b.example", "10.2.0.2:8082")] {
        for record in [16_384, 700, 90] {
            let hello = client_hello(name, 4_000, record);
            let mut rig = tls_rig();
            let opened = rig.open(1_000, &linux(5_000));
            let mut sent = Vec::new();
            for (index, piece) in hello.chunks(1_400).enumerate() {
                sent.extend(rig.put(&opened.data(index as u32 * 1_400, piece)));
            }
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0].header.key.dst, endpoint(server));
            assert_eq!(delivered(&mut rig, &sent[0]), hello);
        }
    }
}

#[test]
fn established_hello_without_a_route_gets_an_alert() {
    let mut rig = tls_rig();
    let (_, sent) = rig.request(1_000, &client_hello("c.example", 100, 16_384));
    assert_eq!(sent[0].payload(), [21, 3, 3, 0, 2, 2, 112]);
    assert!(sent[0].header.flags.contains(TcpFlags::FIN));
    assert_eq!(rig.refusals(), [(DropReason::NoRoute, None)]);
}

#[test]
fn established_hello_without_a_route_is_reset_where_that_is_wanted() {
    let mut config = tls_config();
    config.services[0].unmatched = Unmatched::Reset;
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, &client_hello("c.example", 100, 16_384));
    assert_eq!(sent.len(), 1);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    assert_eq!(sent[0].payload(), []);
    assert_eq!(rig.refusals(), [(DropReason::NoRoute, None)]);
    rig.assert_empty();
}

#[test]
fn established_bytes_that_are_no_hello_get_an_alert_where_no_route_takes_them() {
    let mut rig = tls_rig();
    let (_, sent) = rig.request(1_000, b"SSH-2.0-OpenSSH_9.2\r\n");
    assert_eq!(sent[0].payload()[..6], [21, 3, 3, 0, 2, 2]);
    assert_eq!(rig.refusals(), [(DropReason::TlsMalformed, None)]);
}

#[test]
fn established_plain_http_on_a_tls_service_is_answered_400_where_no_route_takes_it() {
    let mut rig = tls_rig();
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 400 "));
    assert_eq!(rig.refusals(), [(DropReason::TlsMalformed, Some(400))]);
}

/// A route without conditions takes clients of a TLS service that speak something else.
#[test]
fn established_bytes_that_are_no_hello_take_the_route_for_everything_else() {
    let with_default = || {
        let mut config = simple_config(Protocol::Tls, &[FIRST]);
        let name = NamePattern::Exact("a.example".into());
        let alpn = vec!["h2".to_owned()];
        config.services[0].routes = vec![
            route(vec![Matcher::Sni(vec![name])], 0),
            route(vec![Matcher::Alpn(alpn)], 0),
            route(vec![], 1),
        ];
        config.pools.push(pool("second", &["10.2.0.2:8082"]));
        config
    };
    for bytes in [
        REQUEST,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
    ] {
        let mut rig = Rig::probed(with_default(), &linux(1));
        let (_, sent) = rig.request(1_000, bytes);
        assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.2:8082"));
        assert_eq!(delivered(&mut rig, &sent[0]), bytes);
    }
    // TLS that is malformed is refused as before.
    let mut rig = Rig::probed(with_default(), &linux(1));
    let (_, sent) = rig.request(1_000, &[22, 3, 1, 0, 0]);
    assert_eq!(sent[0].payload()[..6], [21, 3, 3, 0, 2, 2]);
    // Without a server, plain HTTP gets an answer that it can read.
    let mut config = with_default();
    config.pools[1].servers[0].weight = 0;
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
}

#[test]
fn established_rst_frees_the_client_only_with_an_exact_number() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let reset = |offset: u32| opened.at(offset).flags(TcpFlags::RST);
    // Within what we would take, but not exact: a challenge, with the number to use.
    let challenge = rig.put_one(&reset(7));
    assert_eq!(challenge.header.flags, TcpFlags::ACK);
    assert_eq!(challenge.header.ack, SeqNumber(1_001));
    rig.put_none(&reset(0x4000_0000));
    rig.put_none(&reset(u32::MAX - 5));
    assert_eq!(rig.drops(DropReason::BadSequence), 3);
    assert_eq!(rig.state(), Some(State::Established));
    // What the client has sent last, or what we acknowledged last.
    for exact in [20, 0] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, &REQUEST[..20]));
        rig.put_none(&opened.at(exact).flags(TcpFlags::RST));
        assert_eq!(rig.state(), None);
        rig.assert_empty();
    }
}

#[test]
fn established_wrong_acknowledgement_is_dropped() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let ahead = opened
        .data(20, &REQUEST[20..])
        .ack(opened.dseq.wrapping_add(9));
    rig.put_none(&ahead);
    rig.assert_dropped(DropReason::BadSequence);
    assert_eq!(rig.state(), Some(State::Established));
}

#[test]
fn established_syn_of_the_same_handshake_is_ignored() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let syn = rig.by_client().flags(TcpFlags::SYN).seq(1_000);
    rig.put_none(&syn.syn_options(&linux(5_000)));
    rig.assert_dropped(DropReason::NothingToDo);
    rig.put_one(&opened.data(20, &REQUEST[20..]));
}

#[test]
fn established_client_that_begins_anew_is_a_new_client() {
    let (mut rig, opened) = opened();
    rig.put_none(&opened.data(0, &REQUEST[..20]));
    let anew = rig.open(50_000, &linux(9_000));
    assert_eq!(rig.state(), Some(State::Established));
    let syn = rig.put_one(&anew.data(0, REQUEST));
    assert_eq!(syn.header.seq, SeqNumber(50_000));
    let now = rig.datapath.snapshot();
    assert_eq!((now.records, now.setups, now.half_read), (1, 1, 0));
}

#[test]
fn established_tcp_service_decides_on_the_handshake() {
    let mut rig = Rig::probed(simple_config(Protocol::Tcp, &[FIRST]), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let syn = rig.put_one(&opened.at(0));
    assert_eq!(syn.header.flags, TcpFlags::SYN);
    let ack = rig.put_one(&syn_ack(&syn, 5, &linux(900_000)));
    assert_eq!((ack.header.flags, ack.payload().len()), (TcpFlags::ACK, 0));
    assert_eq!(
        (ack.header.seq, ack.header.ack),
        (SeqNumber(1_001), SeqNumber(6))
    );
    // The server speaks first.
    let key = ack.header.key;
    let banner = fairlead_testkit::segment(key.dst, key.src)
        .seq(6)
        .ack(1_001)
        .payload(b"220 ready\r\n");
    let seen = rig.put_one(&banner);
    assert_eq!(seen.payload(), b"220 ready\r\n");
    assert_eq!(seen.header.seq, SeqNumber(opened.dseq) + 1);
    assert_eq!(rig.state(), Some(State::Spliced));
}

#[test]
fn established_tcp_service_takes_first_data_too() {
    let mut rig = Rig::probed(simple_config(Protocol::Tcp, &[FIRST]), &linux(1));
    let (_, sent) = rig.request(1_000, b"EHLO");
    assert_eq!(delivered(&mut rig, &sent[0]), b"EHLO");
}
