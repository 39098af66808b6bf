//! ANSWERING: the switch answers a client itself, and closes.

use core::time::Duration;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::State;
use fairlead_wire::{SynOptions, TcpFlags, http};

use crate::rig::{Opened, Rig, Sent, http_config, linux};

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
