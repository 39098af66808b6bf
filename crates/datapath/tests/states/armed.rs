//! Splices that are left to a fast path outside: one that does what a test tells it.

use core::time::Duration;

use fairlead_base::SeqNumber;
use fairlead_datapath::config::{Balance, Config, Protocol, Source, Treatment};
use fairlead_datapath::{End, State, Verdict};
use fairlead_testkit::{FastPathDouble, Kept, endpoint};
use fairlead_wire::{SynOptions, TcpFlags};

use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, refusal, server, simple_config, syn_ack,
};

/// The connection that the double has, and its line.
fn kept<T>(double: &FastPathDouble, look: impl FnOnce(&mut Kept) -> T) -> T {
    double.told(|told| {
        assert_eq!(told.lines.len(), 1, "{:?}", told.lines);
        look(told.lines.values_mut().next().expect("one"))
    })
}

/// Joins what is armed, as a SYN-ACK with this number would have it.
fn join(double: &FastPathDouble, isn: u32) {
    let line = double.told(|told| *told.lines.keys().next().expect("armed"));
    double.join(line, isn);
}

/// What was joined has ended.
fn end(double: &FastPathDouble) {
    kept(double, |kept| kept.record.state = State::TimeWait);
}

fn is_armed(double: &FastPathDouble) -> bool {
    double.told(|told| told.lines.values().any(|kept| kept.terms.is_some()))
}

/// A client whose request has led to a SYN, and whose splice is left to the double.
fn armed_with(config: Config) -> (Rig, FastPathDouble, Opened, Sent) {
    let mut rig = Rig::probed(config, &linux(1));
    let double = FastPathDouble::connecting();
    rig.datapath
        .set_fast_path(rig.now, Box::new(double.clone()));
    let (opened, mut sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent.len(), 1);
    (rig, double, opened, sent.remove(0))
}

fn armed() -> (Rig, FastPathDouble, Opened, Sent) {
    let (rig, double, opened, syn) = armed_with(http_config());
    assert!(is_armed(&double));
    (rig, double, opened, syn)
}

#[test]
fn the_fast_path_is_told_all_but_the_servers_answer() {
    let (rig, double, opened, _) = armed();
    kept(&double, |kept| {
        let terms = kept.terms.unwrap();
        assert_eq!(kept.first.0, REQUEST);
        assert_eq!(terms.dseq, SeqNumber(opened.dseq));
        assert_eq!((terms.asked_scale, terms.offered_scale), (Some(7), Some(7)));
        let end = 1_001 + REQUEST.len() as u32;
        assert_eq!(
            (kept.record.client_isn, kept.record.client_nxt),
            (1_000, end)
        );
    });
    assert_eq!(kept(&double, |kept| kept.first.1), 1_460);
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn the_fast_path_is_told_how_long_a_segment_the_way_to_the_server_takes() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let image = http_config().pools[0].servers[0].endpoint;
    rig.datapath.set_mtu_to(rig.now, image, Some(1_300));
    let double = FastPathDouble::connecting();
    let fast_path = Box::new(double.clone());
    rig.datapath.set_fast_path(rig.now, fast_path);
    rig.request(1_000, REQUEST);
    assert_eq!(kept(&double, |kept| kept.first.1), 1_260);
}

#[test]
fn what_is_joined_outside_is_counted_when_it_is_asked_for() {
    let (mut rig, double, ..) = armed();
    join(&double, 70_000);
    rig.datapath.catch_up_with_fast_path(rig.now);
    let now = rig.datapath.snapshot();
    assert_eq!((now.spliced, now.live, now.setups), (1, 1, 0));
}

#[test]
fn what_is_joined_outside_is_counted_within_a_sweep() {
    let (mut rig, double, ..) = armed();
    join(&double, 70_000);
    assert!(rig.wait_ms(60).is_empty(), "nothing is left to send");
    let now = rig.datapath.snapshot();
    assert_eq!((now.spliced, now.live, now.setups), (1, 1, 0));
    assert_eq!(now.buffered_bytes, 0);
    assert_eq!(rig.state(), Some(State::Spliced));
    assert!(rig.wait_ms(3_000).is_empty(), "its timers are gone");
}

#[test]
fn what_is_joined_outside_is_no_setup_any_more_when_another_wants_its_place() {
    let mut config = http_config();
    config.limits.setups = 1;
    let (mut rig, double, ..) = armed_with(config);
    join(&double, 70_000);
    rig.client.port += 1;
    let (_, sent) = rig.request(2_000, REQUEST);
    assert_eq!(
        sent[0].header.flags,
        TcpFlags::SYN,
        "to a server, no refusal"
    );
    let now = rig.datapath.snapshot();
    assert_eq!((now.spliced, now.live, now.setups), (1, 1, 1));
}

#[test]
fn what_was_joined_and_has_ended_since_is_told_by_its_tracking() {
    let (mut rig, double, ..) = armed();
    join(&double, 70_000);
    end(&double);
    rig.wait_ms(60);
    let now = rig.datapath.snapshot();
    assert_eq!((now.spliced, now.live, now.time_wait), (1, 0, 1));
    assert_eq!(rig.ends().len(), 1);
}

/// Who chooses by open connections learns of an end before the sweep comes by.
#[test]
fn what_has_ended_outside_counts_in_the_next_choice_by_load() {
    for (balance, known) in [
        (Balance::LeastConnections, 1),
        (Balance::RandomTwo, 1),
        (Balance::RoundRobin, 0),
    ] {
        let mut config = http_config();
        for pool in &mut config.pools {
            pool.balance = balance.clone();
        }
        let (mut rig, double, ..) = armed_with(config);
        join(&double, 70_000);
        rig.datapath.catch_up_with_fast_path(rig.now);
        assert_eq!(rig.datapath.snapshot().live, 1);
        end(&double);
        assert_eq!(rig.datapath.snapshot().time_wait, 0, "nobody has looked");
        rig.client.port += 1;
        rig.request(2_000, REQUEST);
        let now = rig.datapath.snapshot();
        assert_eq!((now.live, now.time_wait), (1 - known, known), "{balance:?}");
    }
}

#[test]
fn a_packet_finds_the_connection_joined() {
    let (mut rig, double, opened, _) = armed();
    join(&double, 70_000);
    let more = rig.put_one(&opened.data(REQUEST.len() as u32, b"more"));
    assert_eq!(rig.state(), Some(State::Spliced));
    assert_eq!(more.payload(), b"more");
    assert_eq!(rig.datapath.snapshot().spliced, 1);
    assert_eq!(
        kept(&double, |kept| kept.record.client_nxt),
        1_001 + REQUEST.len() as u32 + 4
    );
}

#[test]
fn more_from_the_client_takes_it_back_and_all_is_sent_by_the_engine() {
    let (mut rig, double, opened, syn) = armed();
    rig.put_none(&opened.data(REQUEST.len() as u32, b"more"));
    assert!(!is_armed(&double));
    let sent = rig.put_one(&syn_ack(&syn, 70_000, &linux(900_000)));
    assert_eq!(sent.payload(), [REQUEST, b"more"].concat());
    assert_eq!(double.told(|told| told.arms), 1, "not armed anew");
}

#[test]
fn a_silent_server_is_asked_again_by_the_engine() {
    let (mut rig, double, ..) = armed();
    let again = rig.wait_ms(300);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].header.flags, TcpFlags::SYN);
    assert!(!is_armed(&double));
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn a_silent_server_is_asked_until_shortly_before_the_timeout() {
    let mut config = http_config();
    config.pools[0].connect_timeout = Duration::from_secs(3);
    let (mut rig, ..) = armed_with(config);
    assert_eq!(rig.wait_ms(2_499).len(), 3, "after 250, 750 and 1,750 ms");
    let last = rig.wait_ms(1);
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].header.flags, TcpFlags::SYN);
}

#[test]
fn a_refusal_takes_it_back_and_the_next_server_is_armed() {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.pools[0].servers.push(server("10.2.0.2:8081"));
    let (mut rig, double, _, syn) = armed_with(config);
    let second = rig.put_one(&refusal(&syn));
    assert_ne!(second.header.key.dst, syn.header.key.dst);
    double.told(|told| {
        assert_eq!((told.arms, told.released), (2, 1));
    });
    assert!(is_armed(&double));
}

#[test]
fn a_client_that_resets_takes_it_back_and_the_server_is_told() {
    let (mut rig, double, opened, syn) = armed();
    let end = REQUEST.len() as u32;
    let reset = opened.at(end).flags(TcpFlags::RST).payload(b"");
    let to_server = rig.put_one(&reset);
    assert_eq!(to_server.header.key, syn.header.key);
    assert_eq!(to_server.header.flags, TcpFlags::RST);
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(double.told(|told| told.removed), 1);
    rig.assert_empty();
}

#[test]
fn what_the_switch_must_send_itself_is_not_armed() {
    let is_left = |config: Config, options: &SynOptions, bytes: &[u8]| {
        let mut rig = Rig::probed(config, options);
        let double = FastPathDouble::connecting();
        rig.datapath
            .set_fast_path(rig.now, Box::new(double.clone()));
        let (_, sent) = rig.request(1_000, bytes);
        assert_eq!(sent.len(), 1);
        is_armed(&double)
    };
    assert!(is_left(http_config(), &linux(1), REQUEST));
    let mut once = http_config();
    once.services[0].routes[0].treatment = Treatment::OneShot;
    assert!(
        !is_left(once, &linux(1), REQUEST),
        "a head that is rewritten"
    );
    let mut proxied = http_config();
    proxied.pools[0].proxy_protocol = Some(fairlead_datapath::config::ProxyVersion::V2);
    assert!(!is_left(proxied, &linux(1), REQUEST), "a preamble");
    // Of a server that has not been heard of its answer tells more than the splice.
    let mut rig = Rig::new(http_config());
    rig.wait_ms(0);
    let double = FastPathDouble::connecting();
    rig.datapath
        .set_fast_path(rig.now, Box::new(double.clone()));
    rig.request(1_000, REQUEST);
    assert!(!is_armed(&double));
}

/// In transparent mode a client's port has room for one connection to a server. What the fast path
/// has seen end gives way, whether or not the engine has heard of the end, or of the splice.
#[test]
fn a_source_in_use_by_what_has_ended_outside_is_free() {
    for heard in [true, false] {
        let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
        config.services[0].source = Source::Transparent;
        config.services[0].listen.push(endpoint("10.1.0.3:8080"));
        let (mut rig, double, ..) = armed_with(config);
        join(&double, 70_000);
        if heard {
            rig.datapath.catch_up_with_fast_path(rig.now);
            assert_eq!(rig.state(), Some(State::Spliced));
        }
        end(&double);
        rig.vip = endpoint("10.1.0.3:8080");
        let (_, sent) = rig.request(9_000, REQUEST);
        assert_eq!(sent[0].header.flags, TcpFlags::SYN, "heard: {heard}");
        let now = rig.datapath.snapshot();
        assert_eq!((now.records, now.live, now.time_wait), (1, 0, 0));
        assert_eq!(rig.ends(), [End::Finished]);
    }
}

/// A full table looks for what is over by what the fast path has seen.
#[test]
fn what_has_ended_outside_gives_its_line_up() {
    let mut config = http_config();
    config.limits.connections = 1;
    let (mut rig, double, ..) = armed_with(config);
    join(&double, 70_000);
    rig.datapath.catch_up_with_fast_path(rig.now);
    rig.client.port += 1;
    let (_, sent) = rig.request(2_000, REQUEST);
    assert!(sent[0].header.flags.contains(TcpFlags::RST), "it lives");
    end(&double);
    let (_, sent) = rig.request(2_000, REQUEST);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN);
    assert_eq!(double.told(|told| told.removed), 1);
    assert_eq!(rig.ends(), [End::Finished]);
    let now = rig.datapath.snapshot();
    assert_eq!(
        (now.records, now.time_wait, now.time_wait_evicted),
        (1, 0, 1)
    );
}

/// The last look of a run that leaves its connections to the next, which finds them at rest and
/// tells no end of them.
#[test]
fn the_last_look_learns_what_has_ended_outside() {
    let (mut rig, double, ..) = armed_with(http_config());
    join(&double, 70_000);
    end(&double);
    rig.datapath.learn_all_ends(rig.now);
    assert_eq!(rig.ends(), [End::Finished]);
    end(&double);
    rig.datapath.learn_all_ends(rig.now);
    assert_eq!(rig.ends(), []);
}

#[test]
fn aborting_takes_back_what_is_armed() {
    let (mut rig, double, ..) = armed();
    rig.datapath.abort_all(rig.now);
    let mut sent = Vec::new();
    rig.fetch(&mut sent);
    assert_eq!(sent.len(), 2, "a RST to each end: {sent:?}");
    assert!(!is_armed(&double));
    rig.assert_empty();
}
