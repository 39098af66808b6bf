//! FIN_RELAYED1 to TIME_WAIT and RESET: the second half of the paper's Fig. 4, with the traps.

use core::time::Duration;
use std::collections::BTreeSet;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::{End, Event, Side, State};
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, REQUEST, Rig, Sent, http_config, linux, syn_ack};

const SIDES: [Side; 2] = [Side::Client, Side::Server];
const FIN: TcpFlags = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);

/// Closes from `first`, then from the other side, all acknowledged.
#[track_caller]
fn close_both(joined: &mut Joined, first: Side) {
    for side in [first, first.other()] {
        joined.close(side);
        joined.acknowledge(side.other());
    }
    assert_eq!(joined.state(), State::TimeWait);
}

#[test]
fn ack_relayed1_data_still_flows_the_other_way() {
    for first in SIDES {
        let mut joined = Joined::usual();
        joined.close(first);
        joined.acknowledge(first.other());
        assert_eq!(joined.state(), State::AckRelayed1);
        for number in 0..20u8 {
            let data = joined.by(first.other()).payload([number; 700]);
            let sent = joined.rig.put_one(&data);
            assert_eq!(sent.payload(), [number; 700]);
            joined.advance(first.other(), 700);
            joined.acknowledge(first);
        }
        assert_eq!(joined.state(), State::AckRelayed1);
        joined.close(first.other());
        joined.acknowledge(first);
        assert_eq!(joined.state(), State::TimeWait);
        let events = joined.rig.events();
        let (end, bytes_in, bytes_out) = events
            .iter()
            .find_map(|event| match event {
                Event::Closed {
                    end,
                    bytes_in,
                    bytes_out,
                    ..
                } => Some((*end, *bytes_in, *bytes_out)),
                _ => None,
            })
            .unwrap();
        assert_eq!(end, End::Finished);
        let mut expected = [REQUEST.len() as u64, 0];
        expected[usize::from(first == Side::Client)] += 14_000;
        assert_eq!([bytes_in, bytes_out], expected, "FINs are no bytes");
        let snapshot = joined.rig.datapath.snapshot();
        let service = snapshot.services[0].carried;
        assert_eq!([service.bytes_in, service.bytes_out], expected);
        assert_eq!(service.connections(), 1);
        let servers = snapshot.pools.iter().flat_map(|pool| &pool.servers);
        let served: Vec<_> = servers
            .filter(|one| one.carried.connections() > 0)
            .collect();
        assert_eq!(served.len(), 1, "the others had nothing");
        assert_eq!(served[0].carried, service);
    }
}

#[test]
fn fin_relayed1_fin_repeated_changes_nothing_and_passes() {
    for first in SIDES {
        let mut joined = Joined::usual();
        let fin = joined.by(first).flags(FIN);
        joined.close(first);
        for _ in 0..3 {
            assert_eq!(joined.rig.put_one(&fin).header.flags, FIN);
        }
        assert_eq!(joined.state(), State::FinRelayed1);
        joined.acknowledge(first.other());
        assert_eq!(joined.state(), State::AckRelayed1);
        joined.rig.put_one(&fin);
        assert_eq!(joined.state(), State::AckRelayed1);
    }
}

#[test]
fn spliced_fin_before_its_data_ends_where_the_data_ends() {
    for first in SIDES {
        let mut joined = Joined::usual();
        let data = joined.by(first).payload([1; 1_000]);
        joined.advance(first, 1_000);
        joined.close(first);
        assert_eq!(joined.state(), State::FinRelayed1);
        // An acknowledgement of what came before does not cover it.
        let old = joined.by(first.other());
        let old = match first {
            Side::Client => old.ack(joined.client_nxt.wrapping_sub(1_001)),
            Side::Server => old.ack(joined.seen_nxt.wrapping_sub(1_001)),
        };
        joined.rig.put_one(&old);
        assert_eq!(joined.state(), State::FinRelayed1);
        joined.rig.put_one(&data);
        joined.acknowledge(first.other());
        assert_eq!(joined.state(), State::AckRelayed1);
        joined.close(first.other());
        joined.acknowledge(first);
        assert_eq!(joined.state(), State::TimeWait);
    }
}

#[test]
fn spliced_simultaneous_close_needs_both_acknowledgements() {
    for first in SIDES {
        let mut joined = Joined::usual();
        let fins = SIDES.map(|side| joined.by(side).flags(FIN));
        for fin in &fins {
            joined.rig.put_one(fin);
        }
        assert_eq!(joined.state(), State::FinRelayed2);
        joined.advance(Side::Client, 1);
        joined.advance(Side::Server, 1);
        joined.acknowledge(first);
        assert_eq!(joined.state(), State::FinRelayed2);
        joined.acknowledge(first.other());
        assert_eq!(joined.state(), State::TimeWait);
    }
}

#[test]
fn spliced_fin_with_data_and_fin_that_acknowledges_a_fin() {
    let mut joined = Joined::usual();
    let last = joined.by_server().flags(FIN).payload(b"page");
    let sent = joined.rig.put_one(&last);
    assert_eq!((sent.payload(), sent.header.flags), (&b"page"[..], FIN));
    joined.advance(Side::Server, 5);
    assert_eq!(joined.state(), State::FinRelayed1);
    joined.close(Side::Client);
    assert_eq!(joined.state(), State::FinRelayed2);
    joined.acknowledge(Side::Server);
    assert_eq!(joined.state(), State::TimeWait);
}

#[test]
fn fin_relayed2_last_ack_lost_is_repeated_in_time_wait() {
    for first in SIDES {
        let mut joined = Joined::usual();
        joined.close(first);
        joined.acknowledge(first.other());
        let fin = joined.by(first.other()).flags(FIN);
        joined.close(first.other());
        assert_eq!(joined.state(), State::FinRelayed2);
        // Lost before it came here: the FIN is repeated and acknowledged again.
        joined.rig.put_one(&fin);
        joined.acknowledge(first);
        assert_eq!(joined.state(), State::TimeWait);
        // Lost behind us: the same, from memory of the resting connection.
        joined.rig.put_one(&fin);
        joined.acknowledge(first);
        assert_eq!(joined.state(), State::TimeWait);
        let now = joined.rig.datapath.snapshot();
        assert_eq!((now.live, now.time_wait, now.records), (0, 1, 1));
        assert_eq!(joined.rig.datapath.live_connections(), 0);
    }
}

/// Windows may have a GiB (RFC 7323, section 2.3): a sender closes while much is on its way to it.
#[test]
fn spliced_fin_at_the_next_number_counts_however_much_is_not_acknowledged() {
    for side in SIDES {
        for bytes in [&b""[..], b"last"] {
            let mut joined = Joined::usual();
            let early = joined.by(side).flags(FIN).payload(bytes);
            for _ in 0..24 {
                joined.advance(side.other(), 1 << 20);
                let packet = joined.by(side.other()).payload(b"x");
                joined.rig.put_one(&packet);
                joined.advance(side.other(), 1);
            }
            assert_eq!(joined.state(), State::Spliced);
            joined.rig.put_one(&early);
            joined.advance(side, 1 + bytes.len() as u32);
            assert_eq!(joined.state(), State::FinRelayed1);
            joined.acknowledge(side.other());
            assert_eq!(joined.state(), State::AckRelayed1);
            joined.close(side.other());
            joined.acknowledge(side);
            assert_eq!(joined.state(), State::TimeWait);
        }
    }
}

#[test]
fn spliced_fin_that_nobody_can_have_sent_is_passed_on_and_not_believed() {
    for side in SIDES {
        let mut joined = Joined::usual();
        // A number far off; an acknowledgement far off.
        let nxt = match side {
            Side::Client => joined.client_nxt,
            Side::Server => joined.server_nxt,
        };
        let far = joined
            .by(side)
            .flags(FIN)
            .seq(nxt.wrapping_add(0x2000_0000));
        joined.rig.put_one(&far);
        assert_eq!(joined.state(), State::Spliced);
        let odd = joined.by(side).flags(FIN).ack(0x1234_5678);
        joined.rig.put_one(&odd);
        assert_eq!(joined.state(), State::Spliced);
    }
}

#[test]
fn fin_relayed1_of_two_fins_that_differ_the_newer_is_believed() {
    let mut joined = Joined::usual();
    let false_fin = joined.by_client().flags(FIN).seq(joined.client_nxt + 500);
    joined.rig.put_one(&false_fin);
    assert_eq!(joined.state(), State::FinRelayed1);
    // The client lives on and closes in earnest.
    joined.rig.put_one(&joined.by_client().payload(b"more"));
    joined.advance(Side::Client, 4);
    joined.close(Side::Client);
    joined.acknowledge(Side::Server);
    assert_eq!(joined.state(), State::AckRelayed1);
}

#[test]
fn time_wait_late_duplicates_pass_and_change_nothing() {
    let mut joined = Joined::usual();
    let late = joined.by_server().payload(b"late");
    joined.rig.put_one(&late);
    joined.advance(Side::Server, 4);
    close_both(&mut joined, Side::Client);
    joined.rig.wait(Duration::from_secs(30));
    assert_eq!(joined.rig.put_one(&late).payload(), b"late");
    joined.rig.put_one(&joined.by_client().flags(TcpFlags::RST));
    assert_eq!(joined.state(), State::TimeWait);
    // They do not prolong it either.
    joined.rig.wait(Duration::from_secs(32));
    joined.rig.assert_empty();
}

#[test]
fn time_wait_ends_after_two_msl_and_frees_everything() {
    let mut joined = Joined::usual();
    close_both(&mut joined, Side::Server);
    joined.rig.wait(Duration::from_secs(59));
    assert_eq!(joined.state(), State::TimeWait);
    joined.rig.wait(Duration::from_secs(3));
    assert_eq!(joined.rig.state(), None);
    joined.rig.assert_empty();
    // A stray from either side now finds nobody.
    let reset = joined.rig.put_one(&joined.by_server());
    assert_eq!(reset.header.flags, TcpFlags::RST);
    let reset = joined.rig.put_one(&joined.by_client());
    assert_eq!(reset.header.flags, TcpFlags::RST);
}

/// Behind this, what was closed or reset is forgotten.
const RESTED: Duration = Duration::from_secs(62);

#[test]
fn spliced_rst_passes_translated_and_ends_the_connection() {
    for side in SIDES {
        let mut joined = Joined::usual();
        let sent = joined.rig.put_one(&joined.by(side).flags(TcpFlags::RST));
        assert_eq!(sent.header.flags, TcpFlags::RST);
        let seen = match side {
            Side::Client => joined.client_nxt,
            Side::Server => joined.seen_nxt,
        };
        assert_eq!(sent.header.seq, SeqNumber(seen));
        assert_eq!(joined.state(), State::Reset);
        let end = match side {
            Side::Client => End::ResetByClient,
            Side::Server => End::ResetByServer,
        };
        assert_eq!(joined.rig.ends(), [end]);
        assert_eq!(joined.rig.datapath.live_connections(), 0);
        let now = joined.rig.datapath.snapshot();
        assert_eq!((now.live, now.time_wait, now.records), (0, 1, 1));
        joined.rig.wait(Duration::from_secs(58));
        assert_eq!(joined.state(), State::Reset);
        joined.rig.wait(RESTED);
        joined.rig.assert_empty();
    }
}

#[test]
fn spliced_end_by_rst_is_dated_at_the_rst() {
    let mut joined = Joined::usual();
    joined.rig.events();
    joined.rig.wait(Duration::from_secs(7));
    joined.rig.put_one(&joined.by_server().flags(TcpFlags::RST));
    joined.rig.wait(Duration::from_secs(60));
    let events = joined.rig.events();
    let [
        Event::Closed {
            opened, duration, ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!((opened.as_millis(), duration.as_millis()), (1_000, 7_000));
}

/// RFC 5961, section 3.2: what is not exact is for the receiver to judge, and the switch asks it.
#[test]
fn spliced_rst_inexact_passes_and_changes_nothing_while_its_receiver_lives() {
    for side in SIDES {
        for off in [1_000, 1 << 23, u32::MAX << 24, u32::MAX] {
            let mut joined = Joined::usual();
            joined
                .rig
                .put_one(&joined.by(side.other()).payload(b"hello"));
            joined.advance(side.other(), 5);
            let (inexact, asked) = inexact_reset(&mut joined, side, off);
            assert_eq!(inexact.header.flags, TcpFlags::RST);
            assert_eq!(joined.state(), State::Spliced);
            // What is asked is old: one before the first byte, and an acknowledgement of our SYN.
            let (seq, ack) = asked;
            match side {
                Side::Client => assert_eq!((seq, ack), (1_000, 0xffff_ff01)),
                Side::Server => {
                    let dseq = joined.seen_nxt.wrapping_sub(1);
                    assert_eq!((seq, ack), (dseq, 1_001));
                }
            }
            // The receiver lives, and says so.
            joined.acknowledge(side.other());
            assert_eq!(joined.state(), State::Spliced);
            joined.rig.wait(Duration::from_secs(600));
            assert_eq!(joined.rig.ends(), []);
            let data = joined.by(side).payload(b"alive");
            assert_eq!(joined.rig.put_one(&data).payload(), b"alive");
            joined.advance(side, 5);
            // It was in earnest after all: the exact number answers the challenge.
            joined.rig.put_one(&joined.by(side).flags(TcpFlags::RST));
            joined.rig.wait(RESTED);
            joined.rig.assert_empty();
        }
    }
}

/// Sends a RST that is off by so much; the RST as it passed, and by which numbers its receiver is
/// asked whether it accepted it.
#[track_caller]
fn inexact_reset(joined: &mut Joined, side: Side, off: u32) -> (Sent, (u32, u32)) {
    let nxt = match side {
        Side::Client => joined.client_nxt,
        Side::Server => joined.server_nxt,
    };
    let reset = joined.by(side).flags(TcpFlags::RST);
    let mut sent = joined.rig.put(&reset.seq(nxt.wrapping_add(off)));
    assert_eq!(sent.len(), 2, "{sent:?}");
    let (asked, passed) = (sent.remove(1), sent.remove(0));
    assert_eq!(asked.header.key, passed.header.key, "to the receiver");
    assert_eq!(asked.header.flags, TcpFlags::ACK);
    assert!(asked.payload().is_empty() && asked.options().is_empty());
    (passed, (asked.header.seq.0, asked.header.ack.0))
}

/// A RST whose receiver lacks the last that was sent: exact for it, but not for the switch.
#[test]
fn spliced_rst_inexact_ends_the_connection_when_its_receiver_is_gone() {
    for side in SIDES {
        let mut joined = Joined::usual();
        for side in SIDES {
            joined.rig.put_one(&joined.by(side).payload([1; 700]));
            joined.advance(side, 700);
        }
        let (_, (_, ack)) = inexact_reset(&mut joined, side, 300u32.wrapping_neg());
        assert_eq!(joined.state(), State::Spliced);
        let gone = joined.by(side.other()).flags(TcpFlags::RST).seq(ack);
        joined.rig.put_one(&gone);
        assert_eq!(joined.state(), State::Reset);
        joined.rig.wait(RESTED);
        let end = match side {
            Side::Client => End::ResetByClient,
            Side::Server => End::ResetByServer,
        };
        assert_eq!(joined.rig.ends(), [end], "whoever sent the first");
        joined.rig.assert_empty();
    }
}

/// A TCP that has closed resets data that was sent before its FIN arrived with the number that the
/// data acknowledges: its FIN's.
#[test]
fn fin_relayed1_rst_at_the_fin_is_believed_until_the_fin_is_acknowledged() {
    for side in SIDES {
        for acknowledged in [false, true] {
            let mut joined = Joined::usual();
            joined.rig.put_one(&joined.by(side).payload(b"bye"));
            joined.advance(side, 3);
            let at_fin = joined.by(side).flags(TcpFlags::RST);
            joined.close(side);
            if acknowledged {
                joined.acknowledge(side.other());
            }
            joined.rig.put(&at_fin);
            let state = if acknowledged {
                State::AckRelayed1
            } else {
                State::Reset
            };
            assert_eq!(joined.state(), state, "{side:?}");
        }
    }
}

#[test]
fn spliced_rst_out_of_window_is_passed_on_and_changes_nothing() {
    for side in SIDES {
        let mut joined = Joined::usual();
        let wild = joined.by(side).flags(TcpFlags::RST).seq(0x7777_7777);
        joined.rig.put_one(&wild);
        assert_eq!(joined.state(), State::Spliced);
    }
}

#[test]
fn reset_packets_still_pass_both_ways() {
    let mut joined = Joined::usual();
    joined.rig.put_one(&joined.by_client().flags(TcpFlags::RST));
    // Data on its way meets the closed port, whose answer must find its way back.
    let data = joined.by_server().payload(b"on its way");
    assert_eq!(joined.rig.put_one(&data).payload(), b"on its way");
    assert_eq!(joined.state(), State::Reset);
    let answer = joined.by_client().flags(TcpFlags::RST);
    assert_eq!(joined.rig.put_one(&answer).header.key.dst, joined.server);
    joined.rig.wait(RESTED);
    assert_eq!(joined.rig.ends(), [End::ResetByClient]);
    joined.rig.assert_empty();
}

/// A copy of the client's first segment that comes late acknowledges a cookie that is still good,
/// and must not be a second request.
#[test]
fn reset_server_that_has_heard_nothing_is_told_once_more() {
    let mut joined = Joined::usual();
    let ends = Ends::default();
    joined.rig.put_one(&joined.by_client().flags(TcpFlags::RST));
    assert_eq!(joined.state(), State::Reset);
    let again = joined
        .by_server()
        .flags(TcpFlags::SYN | TcpFlags::ACK)
        .seq(ends.server_isn)
        .ack(ends.client_isn + 1)
        .syn_options(&ends.server);
    let sent = joined.rig.put_one(&again);
    assert_eq!(sent.header.flags, TcpFlags::RST);
    assert_eq!(sent.header.seq, SeqNumber(ends.client_isn + 1));
    assert_eq!(sent.header.key.dst, joined.server);
}

#[test]
fn reset_late_copy_of_the_first_segment_begins_nothing() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let (opened, sent) = rig.request(1_000, REQUEST);
    let first = opened.data(0, REQUEST);
    rig.put(&syn_ack(&sent[0], 5, &linux(1)));
    rig.put_one(&opened.at(REQUEST.len() as u32).flags(TcpFlags::RST));
    for _ in 0..11 {
        rig.wait(Duration::from_secs(5));
        // The server, whose connection is gone as well, answers it by a RST.
        let copy = rig.put_one(&first);
        assert_eq!(copy.payload(), REQUEST);
        assert_eq!(copy.header.key, sent[0].header.key);
    }
    let now = rig.datapath.snapshot();
    assert_eq!((now.accepted, now.spliced, now.records), (1, 1, 1));
    rig.wait(Duration::from_secs(10));
    rig.assert_empty();
}

/// The record rests, but its source is another's again soon.
#[test]
fn reset_source_is_used_again_after_three_seconds() {
    const PORTS: u32 = 65_536 - 1_024;
    let mut config = http_config();
    config.snat.truncate(1);
    config.limits.connections = 2 * PORTS;
    let mut rig = Rig::probed(config, &linux(1));
    let mut sources = BTreeSet::new();
    for number in 0..PORTS + 1_000 {
        let [_, third, high, low] = number.to_be_bytes();
        rig.client.addr.0[15] = third;
        rig.client.port = u16::from_be_bytes([high, low]);
        let (opened, sent) = rig.request(number, REQUEST);
        assert_eq!(sent[0].header.flags, TcpFlags::SYN, "number {number}");
        sources.insert(sent[0].header.key.src);
        rig.put(&syn_ack(&sent[0], 5, &linux(1)));
        rig.put(&opened.at(REQUEST.len() as u32).flags(TcpFlags::RST));
        if number % 10 == 0 {
            rig.wait_ms(1);
        }
    }
    assert_eq!(sources.len(), PORTS as usize);
    assert_eq!(rig.datapath.snapshot().records, u64::from(PORTS));
}

/// An acknowledgement that crossed the RST looks like a challenge, and is none.
#[test]
fn reset_acknowledgement_on_its_way_does_not_keep_the_dead_alive() {
    let mut joined = Joined::usual();
    joined.rig.put_one(&joined.by_client().flags(TcpFlags::RST));
    joined.acknowledge(Side::Server);
    assert_eq!(joined.state(), State::Reset);
    joined.rig.wait(RESTED);
    assert_eq!(joined.rig.ends(), [End::ResetByClient]);
    joined.rig.assert_empty();
}

/// A FIN with a number from before the stream: noise that once made its count of bytes wrap.
#[test]
fn spliced_fin_from_before_the_first_byte_is_passed_on_and_not_believed() {
    for side in SIDES {
        for back in [1, 2, 100, 1 << 20, 1 << 24] {
            let mut joined = Joined::usual();
            let first = match side {
                Side::Client => 1_001,
                Side::Server => 0xffff_ff01u32,
            };
            joined.rig.events();
            let fin = joined.by(side).flags(FIN).seq(first.wrapping_sub(back));
            joined.rig.put_one(&fin);
            assert_eq!(joined.state(), State::Spliced, "{side:?} {back}");
            joined.rig.put_one(&joined.by(side).flags(TcpFlags::RST));
            joined.rig.wait(Duration::from_secs(5));
            let events = joined.rig.events();
            let bytes = events.iter().find_map(|event| match event {
                Event::Closed {
                    bytes_in,
                    bytes_out,
                    ..
                } => Some((*bytes_in, *bytes_out)),
                _ => None,
            });
            assert_eq!(bytes, Some((REQUEST.len() as u64, 0)));
        }
    }
}

#[test]
fn spliced_idle_connection_is_reset_at_both_ends_with_the_numbers_they_expect() {
    let mut joined = Joined::usual();
    joined.rig.put_one(&joined.by_server().payload([1; 100]));
    joined.advance(Side::Server, 100);
    // A packet in time buys time.
    assert!(joined.rig.wait(Duration::from_secs(8_090)).is_empty());
    joined.acknowledge(Side::Client);
    assert!(joined.rig.wait(Duration::from_secs(8_099)).is_empty());
    let sent = joined.rig.wait(Duration::from_secs(3));
    assert_eq!(sent.len(), 2);
    let reset = TcpFlags::RST | TcpFlags::ACK;
    assert!(sent.iter().all(|sent| sent.header.flags == reset));
    assert_eq!(sent[0].header.key.dst, joined.rig.client);
    assert_eq!(sent[0].header.seq, SeqNumber(joined.seen_nxt));
    assert_eq!(sent[0].header.ack, SeqNumber(joined.client_nxt));
    assert_eq!(sent[1].header.key.dst, joined.server);
    assert_eq!(sent[1].header.seq, SeqNumber(joined.client_nxt));
    assert_eq!(sent[1].header.ack, SeqNumber(joined.server_nxt));
    // Onlookers know whose they are, though the record is gone.
    for (sent, is_server_leg) in sent.iter().zip([false, true]) {
        let whose = sent.whose.expect("it is of this connection");
        assert_eq!(whose.client, joined.rig.client);
        assert_eq!(whose.is_server_leg, is_server_leg);
    }
    let key = sent[1].header.key.reversed();
    assert_eq!(joined.rig.datapath.whose(&key), None, "they are sent");
    assert_eq!(joined.rig.ends(), [End::IdleTimeout]);
    assert_eq!(joined.rig.drops(DropReason::IdleTimeout), 1);
    joined.rig.assert_empty();
}

#[test]
fn a_connection_of_the_longest_lifetime_is_reset_at_both_ends_though_it_is_active() {
    let mut config = http_config();
    config.services[0].timeouts.lifetime = Some(Duration::from_secs(60));
    let mut joined = Joined::with(config, &Ends::default());
    for _ in 0..5 {
        assert!(joined.rig.wait(Duration::from_secs(11)).is_empty());
        joined.rig.put_one(&joined.by_server().payload([1; 100]));
        joined.advance(Side::Server, 100);
    }
    let sent = joined.rig.wait(Duration::from_secs(7));
    let reset = TcpFlags::RST | TcpFlags::ACK;
    assert!(sent.iter().all(|sent| sent.header.flags == reset));
    let numbers: Vec<_> = sent.iter().map(|sent| sent.header.seq).collect();
    assert_eq!(
        numbers,
        [SeqNumber(joined.seen_nxt), SeqNumber(joined.client_nxt)]
    );
    assert_eq!(joined.rig.ends(), [End::MaxLifetime]);
    assert_eq!(joined.rig.drops(DropReason::MaxLifetime), 1);
    joined.rig.assert_empty();
}

#[test]
fn half_closed_connection_that_falls_silent_is_reset_at_both_ends() {
    for first in SIDES {
        let mut joined = Joined::usual();
        joined.close(first);
        joined.acknowledge(first.other());
        // Linux asks a reader that has paused every 120 s.
        let probed = Duration::from_secs(120);
        assert!(joined.rig.wait(probed).is_empty(), "{first:?}");
        joined.rig.put_one(&joined.by(first.other()).payload(b"x"));
        joined.advance(first.other(), 1);
        assert!(joined.rig.wait(Duration::from_secs(149)).is_empty());
        let sent = joined.rig.wait(Duration::from_secs(3));
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].header.seq, SeqNumber(joined.seen_nxt), "{first:?}");
        assert_eq!(
            sent[1].header.seq,
            SeqNumber(joined.client_nxt),
            "{first:?}"
        );
        assert_eq!(joined.rig.ends(), [End::HalfClosedTimeout]);
        joined.rig.assert_empty();
    }
}

#[test]
fn abort_all_resets_everything_that_lives_in_any_state() {
    let mut joined = Joined::usual();
    let rig = &mut joined.rig;
    let first = rig.client.port;
    // One half-read, one waiting for its server, one being answered, one resting.
    rig.client.port = first + 1;
    let half = rig.open(1, &linux(1));
    rig.put_none(&half.data(0, b"GET /"));
    rig.client.port = first + 2;
    let (_, sent) = rig.request(1, REQUEST);
    assert_eq!(sent.len(), 1);
    rig.client.port = first + 3;
    rig.request(1, b"\0");
    assert_eq!(rig.state(), Some(State::Answering));
    rig.client.port = first;
    joined.rig.events();
    joined.rig.datapath.abort_all(joined.rig.now);
    let mut sent = Vec::new();
    joined.rig.fetch(&mut sent);
    let resets = sent
        .iter()
        .filter(|sent| sent.header.flags.contains(TcpFlags::RST))
        .count();
    // Two ends of the splice, three clients, one server that was asked.
    assert_eq!((sent.len(), resets), (6, 6));
    assert!(
        sent.iter()
            .all(|sent| sent.whose.is_some() || sent.header.key.src == joined.rig.vip)
    );
    let of_servers = sent.iter().filter_map(|sent| sent.whose);
    assert_eq!(of_servers.filter(|whose| whose.is_server_leg).count(), 2);
    assert_eq!(joined.rig.ends(), [End::Aborted]);
    joined.rig.assert_empty();
    assert_eq!(joined.rig.datapath.live_connections(), 0);
    assert_eq!(joined.rig.datapath.poll_timeout(), None);
    let syn = joined.rig.by_client().flags(TcpFlags::SYN).seq(9);
    let refused = joined.rig.put_one(&syn);
    assert!(refused.header.flags.contains(TcpFlags::RST));
}

#[test]
fn spliced_server_syn_is_dropped() {
    let mut joined = Joined::usual();
    joined
        .rig
        .put_none(&joined.by_server().flags(TcpFlags::SYN));
    joined.rig.assert_dropped(DropReason::BadSequence);
    assert_eq!(joined.state(), State::Spliced);
}

#[test]
fn spliced_packet_with_a_wrong_checksum_does_not_close_anything() {
    for flags in [FIN, TcpFlags::RST] {
        let mut joined = Joined::usual();
        let mut damaged = joined.by_client().flags(flags).packet();
        damaged.bytes[36] ^= 1;
        assert!(joined.rig.put_packet(damaged).is_empty());
        joined.rig.assert_dropped(DropReason::BadTcpChecksum);
        assert_eq!(joined.state(), State::Spliced);
    }
}

/// Milliseconds in 32 bits are seven weeks.
#[test]
fn a_connection_of_half_a_year_is_logged_as_that() {
    let mut joined = Joined::usual();
    joined.rig.events();
    let opened = joined.rig.now;
    let lived = Duration::from_secs(180 * 86_400);
    joined.rig.now = opened + lived;
    joined.rig.put(&joined.by_server().flags(TcpFlags::RST));
    let told = joined.rig.events();
    let [
        Event::Closed {
            opened: at,
            duration,
            ..
        },
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!((*at, *duration), (opened, lived));
}
