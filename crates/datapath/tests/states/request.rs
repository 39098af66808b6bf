//! One-shot connections: the server gets one request, its head and its body, and nothing that the
//! client sends behind it.

use core::time::Duration;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::config::{Config, Protocol, Treatment};
use fairlead_datapath::{End, State};
use fairlead_testkit::{Segment, segment};
use fairlead_wire::TcpFlags;

use crate::rig::{Opened, Rig, Sent, linux, payload, simple_config, syn_ack};

const SSEQ: u32 = 70_000;
const FIN: TcpFlags = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
const CLOSED_GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
const SECOND: &[u8] = b"GET /inside/b HTTP/1.1\r\nHost: x\r\n\r\n";
const POST: &[u8] = b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n";
const CHUNKED: &[u8] = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

fn one_shot() -> Config {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.services[0].routes[0].treatment = Treatment::OneShot;
    config
}

/// A one-shot connection whose server has answered the SYN.
struct Once {
    rig: Rig,
    opened: Opened,
    syn: Sent,
    /// What the server was sent then.
    first: Vec<u8>,
    /// Bytes of the server that the client has.
    answered: u32,
}

impl Once {
    /// The client sends all of this in one segment.
    #[track_caller]
    fn with(stream: &[u8]) -> Self {
        Self::of(one_shot(), stream)
    }

    #[track_caller]
    fn of(config: Config, stream: &[u8]) -> Self {
        let mut rig = Rig::probed(config, &linux(1));
        let opened = rig.open(1_000, &linux(5_000));
        let syn = rig.put_one(&opened.data(0, stream));
        let first = payload(&rig.put(&syn_ack(&syn, SSEQ, &linux(900_000))));
        Self {
            rig,
            opened,
            syn,
            first,
            answered: 0,
        }
    }

    /// Begins a segment of the server that acknowledges the client's stream up to here.
    fn server(&self, acked: usize) -> Segment {
        let key = self.syn.header.key;
        segment(key.dst, key.src)
            .seq(SSEQ + 1 + self.answered)
            .ack(1_001 + acked as u32)
            .timestamps(900_001, 5_010)
    }

    /// The server answers; the client has it all.
    #[track_caller]
    fn answer(&mut self, acked: usize, text: &[u8]) {
        let sent = self.rig.put_one(&self.server(acked).payload(text));
        assert_eq!(sent.payload(), text);
        self.answered += text.len() as u32;
    }

    /// A segment of the client that acknowledges all of the server's.
    fn client(&self, offset: usize, bytes: &[u8]) -> Segment {
        let ack = self.opened.dseq.wrapping_add(1 + self.answered);
        self.opened.data(offset as u32, bytes).ack(ack)
    }

    /// Nothing of a segment is forwarded, and that is counted.
    #[track_caller]
    fn dropped(&mut self, segment: &Segment) {
        let before = self.rig.drops(DropReason::BehindRequest);
        self.rig.put_none(segment);
        self.rig.assert_dropped(DropReason::BehindRequest);
        assert_eq!(self.rig.drops(DropReason::BehindRequest), before + 1);
    }

    fn fast_packets(&self) -> u64 {
        self.rig.datapath.snapshot().fast_packets
    }
}

#[test]
fn one_shot_a_pipelined_second_request_reaches_no_server() {
    let mut once = Once::with(&[GET, SECOND].concat());
    assert_eq!(once.first, CLOSED_GET);
    assert_eq!(once.rig.drops(DropReason::BehindRequest), 1);
    // Held bytes are repeated, and nothing behind them.
    assert_eq!(payload(&once.rig.wait_ms(250)), CLOSED_GET);
    once.dropped(&once.client(GET.len(), SECOND));
    once.answer(GET.len(), b"HTTP/1.1 200 OK\r\n\r\n");
    // An acknowledgement stands behind all that the client has sent, and moves nothing.
    let end = GET.len() + SECOND.len();
    once.rig
        .put_one(&once.client(end, b"").flags(TcpFlags::ACK));
    once.dropped(&once.client(GET.len(), SECOND));
    // One that repeats the first is cut.
    let cut = once.rig.put_one(&once.client(0, &[GET, SECOND].concat()));
    assert_eq!(cut.payload(), GET);
    assert_eq!(once.rig.state(), Some(State::Spliced));
}

#[test]
fn one_shot_a_later_request_reaches_no_server_and_the_answer_is_forwarded_fast() {
    let mut once = Once::with(GET);
    once.answer(GET.len(), b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(once.rig.datapath.snapshot().setups, 0);
    let before = once.fast_packets();
    once.answer(GET.len(), b"more");
    once.rig
        .put_one(&once.client(GET.len(), b"").flags(TcpFlags::ACK));
    assert_eq!(
        once.fast_packets(),
        before + 2,
        "the answer and its acknowledgements"
    );
    once.dropped(&once.client(GET.len(), SECOND));
    assert_eq!(once.fast_packets(), before + 2);
    once.answer(GET.len(), b"and more");
    assert_eq!(once.rig.state(), Some(State::Spliced));
}

#[test]
fn one_shot_a_body_of_announced_length_is_forwarded_and_nothing_behind_it() {
    let stream = [POST, b"ok", SECOND].concat();
    let mut once = Once::with(&stream[..POST.len() + 2]);
    assert!(once.first.ends_with(b"\r\n\r\nok"));
    let at = POST.len();
    // Out of order, then a segment that goes on behind the body.
    let late = once.rig.put_one(&once.client(at + 4, b"yz"));
    assert_eq!(late.payload(), b"yz");
    let cut = once
        .rig
        .put_one(&once.client(at + 2, &[b"wxyz", SECOND].concat()));
    assert_eq!(cut.payload(), b"wxyz");
    assert_eq!(cut.header.seq, SeqNumber(1_001 + at as u32 + 2));
    assert_eq!(once.rig.drops(DropReason::BehindRequest), 1);
    once.dropped(&once.client(at + 6, SECOND));
    once.answer(at + 6, b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(
        once.rig.datapath.snapshot().setups,
        0,
        "nothing is held any more"
    );
    // What the server has not acknowledged may be sent again.
    assert_eq!(
        once.rig.put_one(&once.client(at + 2, b"wxyz")).payload(),
        b"wxyz"
    );
    once.dropped(&once.client(at + 6, SECOND));
}

#[test]
fn one_shot_a_body_that_comes_late_is_waited_for_by_the_engine() {
    let mut once = Once::with(POST);
    let at = POST.len();
    once.answer(at, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(once.rig.datapath.snapshot().setups, 1);
    assert!(once.rig.wait_ms(2_000).is_empty(), "nothing is sent again");
    assert_eq!(once.rig.put_one(&once.client(at, b"abc")).payload(), b"abc");
    assert_eq!(
        once.rig.put_one(&once.client(at + 3, b"def")).payload(),
        b"def"
    );
    assert_eq!(once.rig.datapath.snapshot().setups, 0);
    once.dropped(&once.client(at + 6, SECOND));
}

/// The server has the head. The client is to send a body, and no timer of the held bytes is left.
fn without_body(lifetime: Option<Duration>) -> Once {
    let mut config = one_shot();
    let timeouts = &mut config.services[0].timeouts;
    timeouts.idle = Duration::from_secs(60);
    timeouts.half_closed = Duration::from_secs(30);
    timeouts.time_wait = Duration::from_secs(20);
    timeouts.lifetime = lifetime;
    let mut once = Once::of(config, POST);
    once.answer(POST.len(), b"HTTP/1.1 100 Continue\r\n\r\n");
    once
}

/// Both ends are reset, and nothing is kept.
#[track_caller]
fn ends_by(mut once: Once, after: Duration, end: End) {
    let early = once.rig.wait(after - Duration::from_secs(2));
    assert!(early.is_empty(), "too early for {end:?}");
    assert_eq!(once.rig.datapath.snapshot().setups, 1);
    let resets = once.rig.wait_ms(4_000);
    assert_eq!(resets.len(), 2);
    let reset = |sent: &Sent| sent.header.flags.contains(TcpFlags::RST);
    assert!(resets.iter().all(reset));
    assert_eq!(once.rig.ends(), [end]);
    once.rig.assert_empty();
}

#[test]
fn one_shot_a_body_that_never_comes_is_not_waited_for_for_ever() {
    ends_by(
        without_body(None),
        Duration::from_secs(60),
        End::IdleTimeout,
    );

    // The client closes before its body is whole.
    let mut once = without_body(None);
    once.rig.put_one(&once.client(POST.len(), b"").flags(FIN));
    ends_by(once, Duration::from_secs(30), End::HalfClosedTimeout);

    // So does the server.
    let mut once = without_body(None);
    let at = POST.len() + 1;
    once.rig.put_one(&once.client(POST.len(), b"").flags(FIN));
    once.rig.put_one(&once.server(at).flags(FIN));
    once.answered += 1;
    once.rig.put_one(&once.client(at, b"").flags(TcpFlags::ACK));
    assert_eq!(once.rig.state(), Some(State::TimeWait));
    assert_eq!(once.rig.ends(), [End::Finished]);
    assert!(once.rig.wait(Duration::from_secs(22)).is_empty());
    once.rig.assert_empty();
}

#[test]
fn one_shot_a_body_that_comes_by_bytes_ends_with_the_longest_lifetime() {
    let mut once = without_body(Some(Duration::from_secs(90)));
    for sent in 0..2 {
        assert!(once.rig.wait_ms(40_000).is_empty());
        once.rig.put_one(&once.client(POST.len() + sent, b"x"));
        once.rig.put_one(&once.server(POST.len() + sent + 1));
    }
    ends_by(once, Duration::from_secs(10), End::MaxLifetime);
}

#[test]
fn one_shot_a_chunked_body_is_followed_to_its_end() {
    let body = b"4\r\nwxyz\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n";
    // All in one, and in every two pieces.
    let once = Once::with(&[CHUNKED, body, SECOND].concat());
    assert!(once.first.ends_with(&[b"\r\n\r\n", &body[..]].concat()));
    for cut in 0..body.len() {
        let mut once = Once::with(&[CHUNKED, &body[..cut]].concat());
        let rest = [&body[cut..], SECOND].concat();
        let at = CHUNKED.len() + cut;
        let sent = once.rig.put_one(&once.client(at, &rest));
        assert_eq!(sent.payload(), &body[cut..], "cut at {cut}");
        once.dropped(&once.client(CHUNKED.len() + body.len(), SECOND));
    }
    // Out of order nothing can be read.
    let mut once = Once::with(CHUNKED);
    let at = CHUNKED.len();
    once.rig.put_none(&once.client(at + 9, &body[9..]));
    once.rig.assert_dropped(DropReason::BadSequence);
    assert_eq!(
        once.rig.put_one(&once.client(at, &body[..9])).payload(),
        &body[..9]
    );
    assert_eq!(
        once.rig.put_one(&once.client(at, &body[..9])).payload(),
        &body[..9]
    );
    assert_eq!(
        once.rig.put_one(&once.client(at + 9, &body[9..])).payload(),
        &body[9..]
    );
    once.dropped(&once.client(at + body.len(), SECOND));
}

#[test]
fn one_shot_what_is_no_chunk_is_not_forwarded() {
    let mut once = Once::with(&[CHUNKED, b"2\r\nab"].concat());
    let at = CHUNKED.len() + 5;
    let sent = once
        .rig
        .put_one(&once.client(at, &[b"\r\n", SECOND].concat()));
    assert_eq!(sent.payload(), b"\r\n");
    once.dropped(&once.client(at + 2, SECOND));
}

#[test]
fn one_shot_a_client_that_goes_on_asking_is_reset_once_it_has_the_answer() {
    // The server closes, as it was asked to.
    let mut once = Once::with(GET);
    once.answer(GET.len(), b"HTTP/1.1 200 OK\r\n\r\n");
    once.rig.put_one(&once.server(GET.len()).flags(FIN));
    once.dropped(&once.client(GET.len(), SECOND));
    assert_eq!(
        once.rig.state(),
        Some(State::FinRelayed1),
        "it may not have the FIN"
    );
    once.answered += 1;
    let resets = once.rig.put(&once.client(GET.len(), SECOND).flags(FIN));
    assert_eq!(resets.len(), 2);
    assert!(
        resets
            .iter()
            .all(|sent| sent.header.flags.contains(TcpFlags::RST))
    );
    assert_eq!(once.rig.ends(), [End::Finished]);
    once.rig.assert_empty();

    // The server goes on listening: the client has all that it says, and it is silent.
    let mut once = Once::with(GET);
    once.dropped(&once.client(GET.len(), SECOND));
    once.rig.wait_ms(5_000);
    once.dropped(&once.client(GET.len(), SECOND));
    assert_eq!(
        once.rig.state(),
        Some(State::Spliced),
        "there is no answer yet"
    );
    once.answer(GET.len(), b"HTTP/1.1 200 OK\r\n\r\n");
    once.rig.wait_ms(900);
    once.dropped(&once.client(GET.len(), SECOND));
    assert_eq!(once.rig.state(), Some(State::Spliced), "more may come");
    once.rig.wait_ms(200);
    assert_eq!(once.rig.put(&once.client(GET.len(), SECOND)).len(), 2);
    assert_eq!(once.rig.ends(), [End::Finished]);
    once.rig.assert_empty();
}

#[test]
fn one_shot_connections_end_as_others_do() {
    let mut once = Once::with(POST);
    let at = POST.len();
    let last = once.rig.put_one(&once.client(at, b"abcdef").flags(FIN));
    assert_eq!(last.payload(), b"abcdef");
    assert!(last.header.flags.contains(TcpFlags::FIN));
    once.answer(at + 7, b"HTTP/1.1 200 OK\r\n\r\n");
    once.rig.put_one(&once.server(at + 7).flags(FIN));
    once.answered += 1;
    once.rig
        .put_one(&once.client(at + 7, b"").flags(TcpFlags::ACK));
    assert_eq!(once.rig.ends(), [End::Finished]);
    once.rig.wait(Duration::from_secs(120));
    once.rig.assert_empty();

    // A client that gives up, from where it stands: behind bytes that were not forwarded.
    let mut once = Once::with(GET);
    once.answer(GET.len(), b"HTTP/1.1 200 OK\r\n\r\n");
    once.rig
        .put_one(&once.client(GET.len(), b"").flags(TcpFlags::RST));
    assert_eq!(once.rig.ends(), [End::ResetByClient]);
}
