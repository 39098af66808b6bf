//! A ticket is taken where the client is known already: to the engine, which has admitted it or is
//! about to, to what rests on its tuple, or by a head that leads elsewhere.

use fairlead_datapath::State;
use fairlead_wire::TcpFlags;

use super::{Asked, BUSY, asked, assert_over, begin, busy, come, counts, look, sweep};
use crate::rig::{REQUEST, http_config, linux, payload, syn_ack};

#[test]
fn a_ticket_taken_by_a_client_that_the_engine_has_admitted_is_given_up() {
    for joined in [false, true] {
        let Asked {
            mut rig,
            outside,
            opened,
            syn,
        } = asked(false, http_config());
        rig.events();
        let before = counts(&rig);
        let taken = outside.begin(0, &opened, REQUEST).expect("a ticket");
        if joined {
            outside.join(taken.line, 70_000);
        }
        look(&mut rig);
        let mut sent = Vec::new();
        rig.fetch(&mut sent);
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].header.flags, TcpFlags::RST);
        assert_eq!(sent[0].header.key, taken.syn.header.key);
        // What its server expects: behind the request where it has that.
        let had = if joined { REQUEST.len() as u32 } else { 0 };
        assert_eq!(sent[0].header.seq, taken.syn.header.seq + 1 + had);
        assert_eq!((counts(&rig), rig.events()), (before, vec![]));
        // The other one goes on.
        let answer = rig.put(&syn_ack(&syn, 70_000, &linux(900_000)));
        assert_eq!(payload(&answer), REQUEST);
        let late = rig.put(&syn_ack(&taken.syn, 70_000, &linux(900_000)));
        assert_eq!(late[0].header.flags, TcpFlags::RST, "nobody's");
        let end = REQUEST.len() as u32;
        assert_eq!(rig.put(&opened.data(end, b"more")).len(), 1);
        rig.datapath.abort_all(rig.now);
        assert_over(&mut rig, &outside);
    }
}

/// One copy of a client's first segment waits for the engine, another takes a ticket: one server is
/// asked.
#[test]
fn a_client_whose_copy_has_taken_a_ticket_is_not_admitted_beside_it() {
    for joined in [false, true] {
        let (mut rig, outside) = busy();
        rig.client.port += 1;
        let opened = rig.open(1_000, &linux(5_000));
        let before = rig.datapath.snapshot();
        outside.begin_by_copy(&opened, REQUEST, joined);
        let sent = rig.put(&opened.data(0, REQUEST));
        let taken = outside.copied(&opened).expect("a ticket");
        let now = rig.datapath.snapshot();
        assert_eq!(
            (now.accepted, now.records),
            (before.accepted + 1, before.records)
        );
        if joined {
            // Its server has the request, and gets it again as from any client.
            assert_eq!(sent.len(), 1, "{sent:?}");
            assert_eq!(sent[0].header.key, taken.syn.header.key);
            assert_eq!(payload(&sent), REQUEST);
        } else {
            assert!(sent.is_empty(), "{sent:?}");
            let answer = rig.put(&syn_ack(&taken.syn, 70_000, &linux(900_000)));
            assert_eq!(payload(&answer), REQUEST);
        }
        assert_eq!(rig.state(), Some(State::Spliced));
        rig.datapath.abort_all(rig.now);
        assert_over(&mut rig, &outside);
    }
}

#[test]
fn a_client_whose_copy_has_taken_a_ticket_and_was_turned_away_is_not_admitted() {
    let (mut rig, outside) = busy();
    rig.client.port += 1;
    let opened = rig.open(1_000, &linux(5_000));
    outside.begin_by_copy(&opened, b"nonsense\r\n\r\n", false);
    let sent = rig.put(&opened.data(0, REQUEST));
    let taken = outside.copied(&opened).expect("a ticket");
    assert_eq!(
        sent.len(),
        3,
        "the segment's own answer, and both ends': {sent:?}"
    );
    assert!(
        sent.iter()
            .all(|sent| sent.header.flags.contains(TcpFlags::RST))
    );
    let server = taken.syn.header.key.dst;
    let to_server = sent.iter().filter(|sent| sent.header.key.dst == server);
    assert_eq!(to_server.count(), 1);
    assert_eq!(rig.state(), None);
    assert_over(&mut rig, &outside);
}

#[test]
fn a_ticket_taken_on_a_tuple_at_rest_succeeds_what_rests_there() {
    // Whether or not the engine knows that it rests.
    for known in [false, true] {
        let (mut rig, outside) = busy();
        let (_, old) = begin(&mut rig, &outside);
        outside.join(old.line, 70_000);
        look(&mut rig);
        let now_ms = rig.now.as_millis() as u32;
        outside.follow(old.line, State::TimeWait, now_ms);
        if known {
            come(&mut rig, 1, REQUEST);
            rig.client.port -= 1;
            sweep(&mut rig);
            come(&mut rig, BUSY, REQUEST);
            rig.client.port -= BUSY;
            sweep(&mut rig);
            assert_eq!(rig.state(), Some(State::TimeWait));
        }
        rig.events();
        let opened = rig.open(9_000_000, &linux(6_000));
        let new = outside.begin(0, &opened, REQUEST).expect("a ticket");
        look(&mut rig);
        assert_eq!(rig.state(), Some(State::SynSent));
        assert_eq!(outside.told(|told| told.superseded.clone()), [old.line]);
        let now = rig.datapath.snapshot();
        assert_eq!((now.live, now.time_wait, now.setups), (0, 0, 1));
        let closed = rig.ends().len();
        assert_eq!(closed, usize::from(!known));
        outside.join(new.line, 70_000);
        look(&mut rig);
        assert_eq!(rig.state(), Some(State::Spliced));
        rig.datapath.abort_all(rig.now);
        assert_over(&mut rig, &outside);
    }
}

#[test]
fn a_head_that_leads_elsewhere_ends_what_it_began() {
    for (head, joined) in [
        (&b"GET /b.html HTTP/1.1\r\nHost: x\r\n\r\n"[..], false),
        (b"GET /b.html HTTP/1.1\r\nHost: x\r\n\r\n", true),
        (b"GET /a.jpg HTTP/1.1\r\n", false),
        (b"nonsense\r\n\r\n", true),
    ] {
        let (mut rig, outside) = busy();
        rig.client.port += 1;
        let opened = rig.open(1_000, &linux(5_000));
        let taken = outside.begin(0, &opened, head).expect("a ticket");
        if joined {
            outside.join(taken.line, 70_000);
        }
        look(&mut rig);
        let mut sent = Vec::new();
        rig.fetch(&mut sent);
        let to: Vec<_> = sent.iter().map(|sent| sent.header.key.dst).collect();
        assert_eq!(to.len(), 2, "{sent:?}");
        assert!(to.contains(&opened.client) && to.contains(&taken.syn.header.key.dst));
        let resets = sent.iter().map(|sent| sent.header.flags);
        assert!(
            resets
                .into_iter()
                .all(|flags| flags.contains(TcpFlags::RST))
        );
        assert_eq!(rig.state(), None);
        assert_eq!(rig.ends().len(), usize::from(joined));
        assert_over(&mut rig, &outside);
    }
}
