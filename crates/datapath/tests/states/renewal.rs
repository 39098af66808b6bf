//! A SYN on a tuple that is on record, and the new connection that may follow it (RFC 5961,
//! section 4; RFC 6191; RFC 9293, section 3.6.1).

use core::time::Duration;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::config::{Protocol, Source};
use fairlead_datapath::{End, Side, State, Verdict};
use fairlead_testkit::{FastPathDouble, segment};
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, REQUEST, Rig, http_config, linux, payload, simple_config, syn_ack};

fn rested(first: Side) -> Joined {
    let mut joined = Joined::usual();
    for side in [first, first.other()] {
        joined.close(side);
        joined.acknowledge(side.other());
    }
    assert_eq!(joined.state(), State::TimeWait);
    joined.rig.events();
    joined
}

#[test]
fn time_wait_syn_with_its_cookie_begins_a_new_connection_under_a_new_delta() {
    for first in [Side::Client, Side::Server] {
        let mut joined = rested(first);
        let old_delta = joined.seen_nxt.wrapping_sub(joined.server_nxt);
        let anew = joined.rig.open(500_000, &linux(70_000));
        assert_eq!(joined.state(), State::TimeWait, "a SYN proves nothing");
        joined.rig.put_none(&anew.at(0));
        assert_eq!(joined.rig.last, Some(Verdict::Consumed));
        assert_eq!(joined.state(), State::TimeWait, "nor is it worth memory");
        let syn = joined.rig.put_one(&anew.data(0, REQUEST));
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        assert_eq!(syn.header.seq, SeqNumber(500_000));
        assert_eq!(joined.state(), State::SynSent);
        let sent = joined.rig.put(&syn_ack(&syn, 33, &linux(1)));
        assert_eq!(payload(&sent), REQUEST);
        let key = syn.header.key;
        let data = segment(key.dst, key.src)
            .seq(34)
            .ack(500_001 + REQUEST.len() as u32)
            .payload(b"new");
        let seen = joined.rig.put_one(&data);
        assert_eq!(seen.header.seq, SeqNumber(anew.dseq) + 1);
        assert_ne!(anew.dseq.wrapping_sub(33), old_delta);
        let now = joined.rig.datapath.snapshot();
        assert_eq!((now.records, now.time_wait, now.live), (1, 0, 1));
        assert_eq!(joined.rig.ends(), [], "the old one had ended already");
    }
}

/// A connection after the server's RST.
fn reset() -> Joined {
    let mut joined = Joined::usual();
    let rst = joined.by_server().flags(TcpFlags::RST);
    joined.rig.put_one(&rst);
    assert_eq!(joined.state(), State::Reset);
    joined
}

#[test]
fn at_rest_a_syn_that_a_fast_path_answered_need_not_be_remembered() {
    for make in [|| rested(Side::Client), || rested(Side::Server), reset] {
        let mut joined = make();
        // Another switch of the same secrets stands in for the fast path.
        let anew = make().rig.open(500_000, &linux(70_000));
        joined.rig.put_none(&anew.at(0));
        assert_eq!(joined.rig.last, Some(Verdict::Consumed));
        joined.rig.put_none(&anew.data(10, &REQUEST[10..]));
        joined.rig.assert_dropped(DropReason::CookieInvalid);
        let syn = joined.rig.put_one(&anew.data(0, REQUEST));
        assert_eq!(syn.header.seq, SeqNumber(500_000));
        assert_eq!(joined.state(), State::SynSent);
    }
}

/// As many SYNs on tuples at rest as are kept in mind on live ones: each is answered, and the one
/// on a live tuple, which was first, is not forgotten for them.
#[test]
fn at_rest_syns_do_not_shut_out_those_on_live_tuples() {
    let mut config = http_config();
    config.limits.connections = 70_000;
    let mut rig = Rig::probed(config, &linux(1));
    let live = rig.client;
    let (_, sent) = rig.request(1_000, REQUEST);
    rig.put(&syn_ack(&sent[0], 5, &linux(1)));
    let anew = rig.open(500_000, &linux(70_000));
    for number in 0..=65_536u32 {
        let [_, third, high, low] = number.to_be_bytes();
        rig.client.addr.0[14] = 100 + third;
        rig.client.port = u16::from_be_bytes([high, low]);
        let (opened, sent) = rig.request(1_000, REQUEST);
        rig.put(&syn_ack(&sent[0], 5, &linux(1)));
        rig.put(&opened.at(REQUEST.len() as u32).flags(TcpFlags::RST));
        assert_eq!(rig.state(), Some(State::Reset));
        rig.open(500_000, &linux(70_000));
    }
    rig.events();
    rig.client = live;
    let sent = rig.put(&anew.data(0, REQUEST));
    assert_eq!(sent[1].header.seq, SeqNumber(500_000));
    assert_eq!(rig.ends(), [End::Replaced]);
}

/// What a client does that is closed before it has said anything.
#[test]
fn at_rest_a_new_connection_that_says_nothing_is_let_go_and_the_old_one_stays() {
    for make in [|| rested(Side::Client), || rested(Side::Server), reset] {
        for answered_outside in [false, true] {
            let mut joined = make();
            let before = joined.state();
            let anew = match answered_outside {
                false => joined.rig.open(500_000, &linux(70_000)),
                true => make().rig.open(500_000, &linux(70_000)),
            };
            joined.rig.put_none(&anew.at(0));
            let fin = anew.at(0).flags(TcpFlags::FIN | TcpFlags::ACK);
            for _copy in 0..2 {
                let answer = joined.rig.put_one(&fin);
                assert_eq!(answer.header.flags, TcpFlags::FIN | TcpFlags::ACK);
                assert_eq!(answer.header.seq, SeqNumber(anew.dseq) + 1);
                assert_eq!(answer.header.ack, SeqNumber(500_002));
            }
            let last = anew.at(1).ack(anew.dseq.wrapping_add(2));
            joined.rig.put_none(&last);
            assert_eq!(joined.rig.last, Some(Verdict::Consumed));
            assert_eq!(joined.state(), before);
            assert_eq!(joined.rig.datapath.snapshot().records, 1);
        }
    }
}

/// The fast path answered the SYN as a stranger's; nothing but the first data tells. Cookies of one
/// tuple begin with the same bits, so the acknowledgement alone may look like the old one's.
#[test]
fn spliced_new_connection_behind_a_lost_key_is_known_however_near_its_cookie() {
    let mut other = Joined::usual().rig;
    let seen_nxt = Joined::usual().seen_nxt;
    // Clients' numbers move on with time: those of the new connection are not the old one's.
    let numbers = (1..2_000).map(|number| 20_000_000 + 2_000_000 * number);
    let all = numbers.map(|isn| other.open(isn, &linux(70_000)));
    let is_near = |dseq: u32| (2..1 << 24).contains(&seen_nxt.wrapping_sub(dseq));
    let (near, far): (Vec<_>, Vec<_>) = all.partition(|anew| is_near(anew.dseq));
    assert!(!near.is_empty() && !far.is_empty());
    for anew in near.iter().take(50).chain(far.iter().take(50)) {
        let mut joined = Joined::usual();
        let now = joined.rig.now;
        joined
            .rig
            .datapath
            .set_fast_path(now, Box::new(FastPathDouble::forgetting()));
        for side in [Side::Client, Side::Server] {
            let data = joined.by(side).payload(b"undisturbed");
            assert_eq!(joined.rig.put_one(&data).payload(), b"undisturbed");
            joined.advance(side, 11);
        }
        joined.rig.events();
        let sent = joined.rig.put(&anew.data(0, REQUEST));
        let syn = sent.last().expect("a SYN to the server");
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        assert_eq!(syn.header.seq, SeqNumber(anew.isn));
        assert_eq!(joined.rig.ends(), [End::Replaced]);
    }
}

/// One SYN in 2¹⁶ on a tuple is answered by the very number that the old connection's was.
#[test]
fn a_new_connection_is_known_by_its_first_segment_when_it_has_the_old_ones_cookie() {
    let ends = Ends::default();
    let mut other = Joined::usual().rig;
    let own = Rig::probed(http_config(), &linux(1)).open(ends.client_isn, &ends.client);
    let anew = (1..1_000_000)
        .map(|number| other.open(20_000_000 + 1_000 * number, &ends.client))
        .find(|anew| anew.dseq == own.dseq)
        .expect("a cookie like the first");
    for answered_outside in [false, true] {
        for make in [|| rested(Side::Client), || rested(Side::Server), reset] {
            let mut joined = make();
            assert_eq!(joined.seen_nxt.wrapping_sub(joined.server_nxt), {
                own.dseq.wrapping_sub(ends.server_isn)
            });
            if !answered_outside {
                joined.rig.open(anew.isn, &ends.client);
            }
            joined.rig.put_none(&anew.at(0));
            assert_eq!(joined.rig.last, Some(Verdict::Consumed));
            let syn = joined.rig.put_one(&anew.data(0, REQUEST));
            assert_eq!(syn.header.flags, TcpFlags::SYN);
            assert_eq!(syn.header.seq, SeqNumber(anew.isn));
        }
    }
    // Of a live connection a SYN must have been seen, and its own packets stay its own.
    let mut joined = Joined::usual();
    joined.rig.open(anew.isn, &ends.client);
    let again = own.data(0, REQUEST);
    assert_eq!(joined.rig.put_one(&again).payload(), REQUEST);
    assert_eq!(joined.state(), State::Spliced);
    let sent = joined.rig.put(&anew.data(0, REQUEST));
    assert_eq!(sent[1].header.seq, SeqNumber(anew.isn));
    assert_eq!(joined.rig.ends(), [End::Replaced]);
}

#[test]
fn time_wait_second_segment_of_the_new_connection_never_passes_under_the_old_delta() {
    let mut joined = rested(Side::Client);
    let anew = joined.rig.open(500_000, &linux(70_000));
    // It overtakes the first: its acknowledgement tells whose it is, though not whether it is good.
    joined.rig.put_none(&anew.data(10, &REQUEST[10..]));
    joined.rig.assert_dropped(DropReason::CookieInvalid);
    assert_eq!(joined.state(), State::TimeWait);
    joined.rig.put_none(&anew.data(0, &REQUEST[..10]));
    assert_eq!(joined.state(), State::Established);
    let syn = joined.rig.put_one(&anew.data(10, &REQUEST[10..]));
    assert_eq!(
        payload(&joined.rig.put(&syn_ack(&syn, 33, &linux(1)))),
        REQUEST
    );
}

#[test]
fn time_wait_old_packets_still_pass_while_a_new_handshake_is_under_way() {
    let mut joined = rested(Side::Client);
    joined.rig.open(500_000, &linux(70_000));
    let old = joined.by_server().seq(joined.server_nxt.wrapping_sub(1));
    let fin = old.flags(TcpFlags::FIN | TcpFlags::ACK);
    joined.rig.put_one(&fin);
    joined.acknowledge(Side::Client);
    assert_eq!(joined.state(), State::TimeWait);
    joined.rig.wait(Duration::from_secs(70));
    joined.rig.assert_empty();
}

#[test]
fn spliced_syn_is_answered_and_does_not_disturb_the_connection() {
    let mut joined = Joined::usual();
    // Too far ahead to be taken for the old connection's next bytes.
    let stranger = joined.rig.open(50_000_000, &linux(70_000));
    assert_eq!(stranger.offered.mss, Some(1_460));
    for side in [Side::Client, Side::Server] {
        let data = joined.by(side).payload(b"undisturbed");
        assert_eq!(joined.rig.put_one(&data).payload(), b"undisturbed");
        joined.advance(side, 11);
    }
    assert_eq!(joined.state(), State::Spliced);
    // Guesses of the cookie do not help.
    let guess = stranger
        .data(0, REQUEST)
        .ack((stranger.dseq ^ 0x0100_0000).wrapping_add(1));
    joined.rig.put_none(&guess);
    joined.rig.assert_dropped(DropReason::CookieInvalid);
    assert_eq!(joined.state(), State::Spliced);
    // When no cookie of that SYN can be good any more it is forgotten, and the fast path is back.
    joined.rig.wait(Duration::from_secs(130));
    let before = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&joined.by_client().payload(b"x"));
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, before + 1);
}

#[test]
fn spliced_syn_whose_answer_the_client_denies_is_forgotten() {
    let mut joined = Joined::usual();
    let stranger = joined.rig.open(500_000, &linux(70_000));
    // The client's TCP knows of no such handshake.
    let denial = stranger.at(0).flags(TcpFlags::RST);
    joined.rig.put_none(&denial);
    joined.rig.assert_dropped(DropReason::NothingToDo);
    assert_eq!(joined.state(), State::Spliced);
    let before = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&joined.by_client().payload(b"x"));
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, before + 1);
}

/// Only the latest SYN's number is remembered, and it may be a stranger's.
#[test]
fn time_wait_new_connection_is_known_by_its_first_segment_whoever_sent_a_syn_since() {
    let mut joined = rested(Side::Client);
    let anew = joined.rig.open(500_000, &linux(70_000));
    joined.rig.open(7_000_000, &linux(1));
    // Behind the first segment nothing tells whose it is: it waits, and does not pass as old.
    joined.rig.put_none(&anew.data(10, &REQUEST[10..]));
    joined.rig.assert_dropped(DropReason::CookieInvalid);
    assert_eq!(joined.state(), State::TimeWait);
    joined.rig.put_none(&anew.data(0, &REQUEST[..10]));
    assert_eq!(joined.state(), State::Established);
    let syn = joined.rig.put_one(&anew.data(10, &REQUEST[10..]));
    assert_eq!(syn.header.seq, SeqNumber(500_000));
}

/// A stranger who sends SYNs has every packet of the connection looked at as if it began another:
/// of many one has a number whose cookie it happens to acknowledge.
#[test]
fn spliced_packets_of_the_old_connection_never_pass_for_the_first_of_a_new_one() {
    let mut joined = Joined::usual();
    let (seen_nxt, client_nxt) = (joined.seen_nxt, joined.client_nxt);
    let ahead = |dseq: u32| dseq.wrapping_add(1).wrapping_sub(seen_nxt);
    // Cookies of one tuple differ in some bits only: soon one is not far ahead of the server.
    let (isn, dseq) = (0..200u32)
        .map(|at| client_nxt.wrapping_add(1_000 * at))
        .map(|isn| (isn, joined.rig.open(isn, &linux(70_000)).dseq))
        .find(|(_, dseq)| (1..1 << 23).contains(&ahead(*dseq)))
        .expect("a cookie in reach");
    let mut left = ahead(dseq);
    while left > 0 {
        let step = left.min(1 << 20);
        joined.advance(Side::Server, step - 1);
        joined.rig.put_one(&joined.by_server().payload(b"x"));
        joined.advance(Side::Server, 1);
        left -= step;
    }
    joined.rig.open(7_000_000, &linux(1)); // of all these SYNs the last one is remembered
    joined.rig.events();
    let packet = joined
        .by_client()
        .seq(isn.wrapping_add(1))
        .payload(b"upload");
    let sent = joined.rig.put_one(&packet);
    assert_eq!(
        (sent.payload(), joined.state()),
        (&b"upload"[..], State::Spliced)
    );
    assert!(joined.rig.ends().is_empty());
}

/// A connection that is being set up has a cookie too; its own packets are not those of another.
#[test]
fn established_syn_of_a_stranger_does_not_disturb_the_head() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, &REQUEST[..10]));
    rig.open(7_000_000, &linux(1));
    rig.put_none(&opened.data(0, &REQUEST[..10]));
    // The client's challenge for our answer to the stranger.
    rig.put(&opened.at(10));
    assert_eq!(rig.state(), Some(State::Established));
    let syn = rig.put_one(&opened.data(10, &REQUEST[10..]));
    assert_eq!(syn.header.seq, SeqNumber(1_000));
    rig.put(&opened.at(REQUEST.len() as u32));
    assert_eq!(rig.state(), Some(State::SynSent));
    assert_eq!(payload(&rig.put(&syn_ack(&syn, 33, &linux(1)))), REQUEST);
}

#[test]
fn spliced_syn_with_its_cookie_replaces_the_connection() {
    let mut joined = Joined::usual();
    joined.rig.events();
    let anew = joined.rig.open(500_000, &linux(70_000));
    let sent = joined.rig.put(&anew.data(0, REQUEST));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header.flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(sent[0].header.key.dst, joined.server);
    assert_eq!(sent[0].header.seq, SeqNumber(joined.client_nxt));
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_eq!(sent[1].header.seq, SeqNumber(500_000));
    assert_eq!(joined.rig.ends(), [End::Replaced]);
    let now = joined.rig.datapath.snapshot();
    assert_eq!((now.records, now.live, now.setups), (1, 0, 1));
    let active: u32 = now
        .pools
        .iter()
        .flat_map(|pool| &pool.servers)
        .map(|one| one.active)
        .sum();
    assert_eq!(active, 1);
}

#[test]
fn every_state_can_be_replaced_and_nothing_leaks() {
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    let ways: [fn(&mut Joined); 6] = [
        |_| {},
        |joined| joined.close(Side::Client),
        |joined| joined.close(Side::Server),
        |joined| {
            joined.close(Side::Client);
            joined.close(Side::Server);
        },
        |joined| drop(joined.rig.put(&joined.by_server().flags(TcpFlags::RST))),
        |joined| {
            joined.close(Side::Client);
            joined.acknowledge(Side::Server);
            joined.close(Side::Server);
            joined.acknowledge(Side::Client);
        },
    ];
    for way in ways {
        let mut joined = Joined::usual();
        way(&mut joined);
        let anew = joined.rig.open(500_000, &linux(70_000));
        let sent = joined.rig.put(&anew.data(0, REQUEST).flags(fin));
        let syn = sent.last().unwrap();
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        joined.rig.put(&syn_ack(syn, 33, &linux(1)));
        assert_eq!(joined.state(), State::FinRelayed1);
        joined.rig.wait(Duration::from_secs(160));
        joined.rig.assert_empty();
    }
}

#[test]
fn replaced_tcp_service_needs_no_data() {
    let config = simple_config(Protocol::Tcp, &["10.2.0.1:8081"]);
    let mut joined = Joined::with(config, &Ends::default());
    let anew = joined.rig.open(500_000, &linux(70_000));
    let sent = joined.rig.put(&anew.at(0));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].header.seq, SeqNumber(500_000));
}

#[test]
fn spliced_syn_of_its_own_handshake_is_ignored() {
    let mut joined = Joined::usual();
    let late = joined.rig.by_client().flags(TcpFlags::SYN).seq(1_000);
    joined.rig.put_none(&late.syn_options(&linux(5_000)));
    joined.rig.assert_dropped(DropReason::NothingToDo);
    let before = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&joined.by_client().payload(b"x"));
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, before + 1);
}

#[test]
fn spliced_syn_while_draining_is_refused_and_leaves_no_trace() {
    let mut joined = Joined::usual();
    joined.rig.datapath.drain(joined.rig.now);
    let syn = joined.rig.by_client().flags(TcpFlags::SYN).seq(500_000);
    let refused = joined.rig.put_one(&syn);
    assert_eq!(refused.header.flags, TcpFlags::RST | TcpFlags::ACK);
    let before = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&joined.by_client().payload(b"x"));
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, before + 1);
}

/// The client's own address and port towards the server: what rests there must give way.
#[test]
fn time_wait_transparent_source_is_used_again_at_once() {
    let mut config = http_config();
    config.services[0].source = Source::Transparent;
    let mut joined = Joined::with(config, &Ends::default());
    for side in [Side::Client, Side::Server] {
        joined.close(side);
        joined.acknowledge(side.other());
    }
    let anew = joined.rig.open(500_000, &linux(70_000));
    let syn = joined.rig.put_one(&anew.data(0, REQUEST));
    assert_eq!(syn.header.key.src, joined.rig.client);
    assert_eq!(
        payload(&joined.rig.put(&syn_ack(&syn, 33, &linux(1)))),
        REQUEST
    );
    joined
        .rig
        .put_one(&anew.at(REQUEST.len() as u32).flags(TcpFlags::RST));
    joined.rig.wait(Duration::from_secs(62));
    joined.rig.assert_empty();
}

#[test]
fn a_strangers_syn_keeps_a_connection_from_the_fast_path_for_a_second() {
    let mut joined = Joined::usual();
    let fast = |joined: &mut Joined| {
        let before = joined.rig.datapath.snapshot().fast_packets;
        let data = joined.by_client().payload(b"x");
        joined.rig.put_one(&data);
        joined.advance(Side::Client, 1);
        joined.rig.datapath.snapshot().fast_packets > before
    };
    assert!(fast(&mut joined));
    let syn = joined.rig.by_client().flags(TcpFlags::SYN).seq(0x1234_5678);
    let syn = syn.syn_options(&linux(1));
    joined.rig.put_one(&syn);
    for _ in 0..9 {
        assert!(!fast(&mut joined), "the client may have begun anew");
        joined.rig.wait_ms(100);
    }
    // The old number again, as of a probe that asks whether the other end is there, proves nothing.
    joined.rig.wait_ms(200);
    let old = joined.by_client().seq(joined.client_nxt.wrapping_sub(1));
    joined.rig.put(&old);
    assert!(!fast(&mut joined), "this one is what tells");
    assert!(fast(&mut joined));
}
