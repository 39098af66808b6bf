//! ANSWERING: the switch answers a client itself, and closes.

use core::time::Duration;
use std::sync::Arc;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::State;
use fairlead_datapath::config::{Limits, PAGE_BYTES_MAX, Page};
use fairlead_wire::{SynOptions, TcpFlags, http};

use crate::icmp::too_big;
use crate::rig::{Opened, Rig, Sent, http_config, linux, refusal};

const FIN: TcpFlags = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);
const ASKED: &[u8] = b"GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n";

/// A client whose request no route takes, and the answer.
fn answered() -> (Rig, Opened, Sent) {
    answered_to(ASKED)
}

fn answered_to(request: &[u8]) -> (Rig, Opened, Sent) {
    let mut config = http_config();
    config.services[0].routes.pop();
    let mut rig = Rig::probed(config, &linux(1));
    let (opened, mut sent) = rig.request(1_000, request);
    assert_eq!(sent.len(), 1);
    assert_eq!(rig.state(), Some(State::Answering));
    (rig, opened, sent.remove(0))
}

/// Behind our FIN, as the client acknowledges it.
fn our_end(answer: &Sent) -> u32 {
    answer
        .header
        .seq
        .0
        .wrapping_add(answer.header.segment_len())
}

fn client_at(opened: &Opened, answer: &Sent, offset: u32) -> fairlead_testkit::Segment {
    opened.at(offset).ack(our_end(answer))
}

#[test]
fn answering_one_segment_carries_answer_and_fin() {
    let (rig, opened, answer) = answered();
    assert_eq!(answer.payload(), http::response(404, None, false));
    let flags = TcpFlags::FIN | TcpFlags::ACK | TcpFlags::PSH;
    assert_eq!(answer.header.flags, flags);
    assert_eq!(answer.header.seq, SeqNumber(opened.dseq) + 1);
    assert_eq!(answer.header.ack, SeqNumber(1_001) + ASKED.len() as u32);
    let stamps = answer.timestamps().unwrap();
    assert_eq!((stamps.value, stamps.echo), (1_000, 5_010));
    let now = rig.datapath.snapshot();
    assert_eq!((now.setups, now.half_read, now.live), (1, 0, 0));
    assert!(now.buffered_bytes < 64, "the head is forgotten");
}

#[test]
fn answering_for_a_client_without_timestamps_has_none() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &SynOptions::default());
    let answer = rig.put_one(&opened.data(0, b"\0"));
    assert!(answer.options().is_empty());
    assert!(answer.payload().starts_with(b"HTTP/1.1 400 "));
}

#[test]
fn answering_client_that_takes_it_and_closes_is_forgotten_soon() {
    let (mut rig, opened, answer) = answered();
    let fin = client_at(&opened, &answer, ASKED.len() as u32).flags(FIN);
    let last = rig.put_one(&fin);
    assert_eq!(last.header.flags, TcpFlags::ACK);
    assert_eq!(last.header.seq, SeqNumber(our_end(&answer)));
    assert_eq!(last.header.ack, SeqNumber(1_002) + ASKED.len() as u32);
    // Our last acknowledgement may be lost: the FIN comes again.
    assert_eq!(rig.put_one(&fin).header, last.header);
    assert!(
        rig.wait(Duration::from_secs(2)).is_empty(),
        "no RST to one who closed"
    );
    rig.assert_empty();
}

#[test]
fn answering_client_that_never_acknowledges_gets_it_again_and_then_a_rst() {
    let (mut rig, _, answer) = answered();
    for wait in [300, 600, 1_200, 2_400, 4_800] {
        assert!(rig.wait_ms(wait - 1).is_empty());
        let again = rig.wait_ms(1);
        assert_eq!(again.len(), 1, "after {wait} ms");
        assert_eq!(again[0].header, answer.header);
        assert_eq!(again[0].payload(), answer.payload());
    }
    let sent = rig.wait_ms(9_600);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    assert_eq!(sent[0].header.seq, SeqNumber(our_end(&answer)));
    assert_eq!(rig.drops(DropReason::AnswerUnacked), 1);
    rig.assert_empty();
}

#[test]
fn answering_client_that_takes_it_but_stays_is_reset_after_a_while() {
    let (mut rig, opened, answer) = answered();
    rig.put_none(&client_at(&opened, &answer, ASKED.len() as u32));
    assert!(rig.wait_ms(2_999).is_empty(), "it is not sent again");
    let sent = rig.wait_ms(1);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    rig.assert_empty();
}

/// A client that is busy sending must be able to read the answer, but it cannot hold us for ever.
#[test]
fn answering_client_that_goes_on_sending_is_acknowledged_for_a_while_only() {
    let (mut rig, opened, answer) = answered();
    let mut offset = ASKED.len() as u32;
    let mut forgotten_after = None;
    for round in 0..100 {
        let more = client_at(&opened, &answer, offset).payload([0; 1_000]);
        let sent = rig.put(&more);
        if rig.state().is_none() {
            forgotten_after = Some(round);
            break;
        }
        offset += 1_000;
        assert_eq!(sent[0].header.ack, SeqNumber(1_001) + offset);
        rig.wait_ms(100);
    }
    assert_eq!(forgotten_after, Some(30));
    rig.assert_empty();
}

#[test]
fn answering_partial_acknowledgement_is_not_the_end() {
    let (mut rig, opened, answer) = answered();
    let part = opened
        .at(ASKED.len() as u32)
        .ack(our_end(&answer).wrapping_sub(5));
    rig.put_none(&part);
    assert_eq!(rig.wait_ms(300).len(), 1, "sent again");
}

#[test]
fn answering_rst_of_the_client_frees_it() {
    let (mut rig, opened, _) = answered();
    let reset = |offset: u32| opened.at(offset).flags(TcpFlags::RST);
    let challenge = rig.put_one(&reset(ASKED.len() as u32 + 5));
    assert_eq!(challenge.header.ack, SeqNumber(1_001) + ASKED.len() as u32);
    assert_eq!(rig.state(), Some(State::Answering));
    rig.put_none(&reset(ASKED.len() as u32));
    rig.assert_empty();
}

#[test]
fn answering_client_that_begins_anew_is_heard() {
    let (mut rig, _, _) = answered();
    let anew = rig.open(77_000, &linux(9_000));
    let syn = rig.put_one(&anew.data(0, b"GET /a.jpg HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(
        (syn.header.flags, syn.header.seq),
        (TcpFlags::SYN, SeqNumber(77_000))
    );
    assert_eq!(rig.datapath.snapshot().records, 1);
}

#[test]
fn answering_client_that_closed_with_its_request_has_its_fin_acknowledged() {
    let mut config = http_config();
    config.services[0].routes.clear();
    let mut rig = Rig::probed(config, &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let answer = rig.put_one(&opened.data(0, ASKED).flags(FIN));
    assert_eq!(answer.header.ack, SeqNumber(1_002) + ASKED.len() as u32);
    let end = ASKED.len() as u32 + 1;
    rig.put_none(&client_at(&opened, &answer, end));
    assert!(rig.wait_ms(1_000).is_empty());
    rig.assert_empty();
}

/// A client whose request no route takes, of a service with a page of this length, and what it
/// gets at once. The client takes `window` bytes and scales by 7.
fn paged(body_len: usize, window: u16, limits: Limits) -> (Rig, Opened, Vec<Sent>) {
    let mut config = http_config();
    config.limits = limits;
    config.services[0].routes.pop();
    config.services[0].unmatched_page = Some(page(body_len));
    let mut rig = Rig::probed(config, &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let sent = rig.put(&opened.data(0, ASKED).window(window));
    (rig, opened, sent)
}

fn page(body_len: usize) -> Arc<Page> {
    Arc::new(Page {
        path: "/page.html".to_owned(),
        content_type: "text/html",
        body: (0..body_len).map(|at| at as u8).collect(),
    })
}

/// A client that acknowledges what it has in order, without any loss but that of the segments
/// which `lost` names by their number.
struct Reader {
    got: Vec<u8>,
    ended: bool,
    number: usize,
}

impl Reader {
    fn new() -> Self {
        Self {
            got: Vec::new(),
            ended: false,
            number: 0,
        }
    }

    fn take(&mut self, opened: &Opened, sent: &[Sent], lost: impl Fn(usize) -> bool) {
        for one in sent {
            self.number += 1;
            assert!(!one.header.flags.contains(TcpFlags::RST), "a RST");
            let at = one.header.seq.since(SeqNumber(opened.dseq) + 1) as usize;
            if lost(self.number) || at > self.got.len() {
                continue;
            }
            let news = one.payload().get(self.got.len() - at..);
            self.got.extend_from_slice(news.unwrap_or_default());
            self.ended |= one.header.flags.contains(TcpFlags::FIN);
        }
    }

    fn ack(&self, opened: &Opened, window: u16) -> fairlead_testkit::Segment {
        let taken = self.got.len() as u32 + u32::from(self.ended);
        let ack = opened.dseq.wrapping_add(1).wrapping_add(taken);
        opened.at(ASKED.len() as u32).ack(ack).window(window)
    }
}

fn whole_answer(body_len: usize) -> Vec<u8> {
    let mut whole = http::response_head(404, None, "text/html", body_len);
    whole.extend_from_slice(&page(body_len).body);
    whole
}

#[test]
fn answering_page_goes_out_in_segments_of_the_client_and_ten_at_first() {
    let (mut rig, opened, sent) = paged(PAGE_BYTES_MAX, 512, Limits::default());
    assert_eq!(sent.len(), 10);
    let full = sent[0].payload().len();
    assert_eq!(full, 1_460 - 12, "with timestamps");
    assert!(sent.iter().all(|one| one.payload().len() == full));
    assert!(
        sent.iter()
            .all(|one| !one.header.flags.contains(TcpFlags::FIN))
    );
    let mut reader = Reader::new();
    reader.take(&opened, &sent, |_| false);
    let rest = rig.put(&reader.ack(&opened, 512));
    reader.take(&opened, &rest, |_| false);
    assert_eq!(reader.got, whole_answer(PAGE_BYTES_MAX));
    assert!(reader.ended);
    rig.put_none(&reader.ack(&opened, 512));
    assert!(rig.wait_ms(2_000).is_empty(), "nothing is sent again");
}

/// Whichever segment is lost, and with any window, the page arrives.
#[test]
fn answering_page_survives_the_loss_of_any_segment() {
    for window in [1, 7, 12, 100, 512] {
        for every in 2..14 {
            let (mut rig, opened, sent) = paged(9_000, window, Limits::default());
            let mut reader = Reader::new();
            let lost = |number: usize| number % every == 1 && number < 40;
            reader.take(&opened, &sent, lost);
            for _ in 0..400 {
                if reader.ended {
                    break;
                }
                let mut sent = rig.put(&reader.ack(&opened, window));
                if sent.is_empty() {
                    sent = rig.wait_ms(300);
                }
                reader.take(&opened, &sent, lost);
            }
            assert_eq!(reader.got, whole_answer(9_000), "{window}, every {every}");
            assert!(reader.ended);
        }
    }
}

#[test]
fn answering_never_sends_more_than_the_window_takes() {
    let (mut rig, opened, sent) = paged(PAGE_BYTES_MAX, 20, Limits::default());
    let mut reader = Reader::new();
    let (mut sent, mut rounds) = (sent, 0);
    while !reader.ended {
        let bytes: usize = sent.iter().map(|one| one.payload().len()).sum();
        assert!(bytes > 0 && bytes <= 20 << 7, "{bytes} bytes");
        reader.take(&opened, &sent, |_| false);
        sent = rig.put(&reader.ack(&opened, 20));
        rounds += 1;
    }
    assert!(rounds >= PAGE_BYTES_MAX / (20 << 7), "{rounds} rounds");
}

#[test]
fn answering_closed_window_is_probed_and_opened() {
    let (mut rig, opened, sent) = paged(4_000, 0, Limits::default());
    assert!(sent.is_empty(), "the window is closed");
    let mut reader = Reader::new();
    let probe = rig.wait_ms(300);
    assert_eq!(probe.len(), 1);
    assert_eq!(probe[0].payload().len(), 1);
    for _ in 0..3 {
        rig.put_none(&reader.ack(&opened, 0));
    }
    for _ in 0..4 {
        let sent = rig.put(&reader.ack(&opened, 512));
        reader.take(&opened, &sent, |_| false);
    }
    assert_eq!(reader.got, whole_answer(4_000));
    assert!(reader.ended);
}

/// A client that takes a byte now and then does not keep its place for ever.
#[test]
fn answering_client_that_takes_it_too_slowly_is_reset() {
    let (mut rig, opened, _) = paged(PAGE_BYTES_MAX, 0, Limits::default());
    let mut reader = Reader::new();
    let mut waited = 0;
    while rig.state().is_some() {
        let sent = rig.wait_ms(100);
        waited += 100;
        if sent
            .iter()
            .any(|one| one.header.flags.contains(TcpFlags::RST))
        {
            break;
        }
        reader.take(&opened, &sent, |_| false);
        if waited % 1_000 == 0 {
            for one in rig.put(&reader.ack(&opened, 0)) {
                assert!(one.payload().is_empty());
            }
        }
    }
    assert_eq!(waited, 60_000);
    assert!((2..400).contains(&reader.got.len()), "{}", reader.got.len());
    assert_eq!(rig.drops(DropReason::AnswerUnacked), 1);
    rig.assert_empty();
}

#[test]
fn answering_page_that_is_too_big_for_the_way_is_cut_smaller() {
    let (mut rig, opened, sent) = paged(5_000, 512, Limits::default());
    let foreign = {
        let mut other = sent[0].clone();
        other.packet.bytes[24..28].copy_from_slice(&[0; 4]);
        other
    };
    assert!(
        rig.put_packet(too_big(&foreign, 1_000, 28)).is_empty(),
        "not about a byte under way"
    );
    let again = rig.put_packet(too_big(&sent[1], 1_000, 500));
    assert!(again.iter().all(|one| one.packet.bytes.len() <= 1_000));
    let mut reader = Reader::new();
    reader.take(&opened, &again, |_| false);
    assert_eq!(reader.got, whole_answer(5_000));
}

/// An ICMP error is one small packet, and anybody on the way can send it.
#[test]
fn answering_page_that_is_cut_smaller_is_sent_in_no_larger_bursts() {
    let (mut rig, opened, sent) = paged(PAGE_BYTES_MAX, 512, Limits::default());
    assert_eq!(sent.len(), 10);
    let mut reader = Reader::new();
    let again = rig.put_packet(too_big(&sent[1], 136, 500));
    assert!(again.iter().all(|one| one.packet.bytes.len() <= 136));
    // Ten segments without options, and these have timestamps.
    let bytes: usize = again.iter().map(|one| one.payload().len()).sum();
    assert!(bytes <= 10 * 96, "{bytes} bytes at once");
    reader.take(&opened, &again, |_| false);
    while reader.got.len() < whole_answer(PAGE_BYTES_MAX).len() {
        let more = rig.put(&reader.ack(&opened, 512));
        assert!(!more.is_empty() && more.len() <= 128);
        reader.take(&opened, &more, |_| false);
    }
    assert_eq!(reader.got, whole_answer(PAGE_BYTES_MAX));
}

/// All who are answered share one page: what is kept of each does not grow with it.
#[test]
fn answering_clients_share_the_page() {
    let (rig, _, _) = paged(PAGE_BYTES_MAX, 512, Limits::default());
    assert!(rig.datapath.snapshot().buffered_bytes < 64);
}

#[test]
fn answering_head_request_has_the_length_of_the_page_alone() {
    let mut config = http_config();
    config.services[0].routes.pop();
    config.services[0].unmatched_page = Some(page(700));
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = http::response_head(404, None, "text/html", 700);
    assert_eq!(sent[0].payload(), head);
}

#[test]
fn answering_unavailable_page_is_for_servers_that_fail_and_no_other_answer() {
    let mut config = http_config();
    config.services[0].unavailable_page = Some(page(300));
    for pool in &mut config.pools {
        pool.servers.truncate(1);
    }
    let mut rig = Rig::probed(config, &linux(1));
    let (_, syn) = rig.request(1_000, ASKED);
    let answer = rig.put_one(&refusal(&syn[0]));
    let mut whole = http::response_head(503, Some(5), "text/html", 300);
    whole.extend_from_slice(&page(300).body);
    assert_eq!(answer.payload(), whole);
    let other = rig.open(9_000, &linux(5_000));
    let malformed = rig.put_one(&other.data(0, b"\0"));
    assert!(malformed.payload().starts_with(b"HTTP/1.1 400 "));
    assert!(malformed.payload().ends_with(b"400 Bad Request\n"));
}
