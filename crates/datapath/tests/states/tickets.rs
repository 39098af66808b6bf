//! Connections that a fast path outside begins by itself, by tickets: one that does what a test
//! tells it.

mod beside;
mod outside;
mod through;

use core::time::Duration;

use fairlead_base::{Endpoint, Packet};
use fairlead_datapath::config::{
    Balance, Config, HashOn, Matcher, Protocol, ProxyVersion, Source, Treatment, ValuePattern,
};
use fairlead_datapath::{End, Event, State};
use fairlead_testkit::{IssuedTicket, Told, endpoint, segment};
use fairlead_wire::{SynOptions, TcpFlags, build};

use self::outside::{Outside, Taken, sent_as};
use crate::head::client_hello;
use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, payload, refusal, server, simple_config,
    syn_ack, v6_config,
};

/// Of a route's connections between two sweeps, from which on there are tickets for it.
const BUSY: u16 = 8;

/// Tickets for a route that is busy.
const WANTED: usize = 16;

/// A table that keeps more free than the tickets of two lanes.
fn roomy(mut config: Config) -> Config {
    config.limits.connections = 1_024;
    config
}

fn under(mut rig: Rig) -> (Rig, Outside) {
    let outside = Outside::default();
    let fast_path = outside.fast_path();
    rig.datapath.set_fast_path(rig.now, fast_path);
    rig.events();
    (rig, outside)
}

/// Clients ask, and leave again: nothing stays of them. Gives the servers that were asked.
fn come(rig: &mut Rig, count: u16, bytes: &[u8]) -> Vec<Endpoint> {
    let one = |_| {
        rig.client.port += 1;
        let (opened, sent) = rig.request(1_000, bytes);
        assert_eq!(sent[0].header.flags, TcpFlags::SYN, "{sent:?}");
        let end = bytes.len() as u32;
        let reset = opened.at(end).flags(TcpFlags::RST);
        assert_eq!(rig.put_one(&reset).header.flags, TcpFlags::RST);
        sent[0].header.key.dst
    };
    (0..count).map(one).collect()
}

/// The time for the next sweep comes.
fn sweep(rig: &mut Rig) -> Vec<Sent> {
    rig.now = rig.now + Duration::from_millis(50);
    rig.datapath.handle_timeout(rig.now);
    let mut sent = Vec::new();
    rig.fetch(&mut sent);
    sent
}

/// A switch with tickets out for `*.jpg`, and nothing else.
fn busy_with(config: Config) -> (Rig, Outside) {
    let (mut rig, outside) = under(Rig::probed(roomy(config), &linux(1)));
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), WANTED);
    rig.events();
    (rig, outside)
}

fn busy() -> (Rig, Outside) {
    busy_with(http_config())
}

/// A client takes the next ticket; the engine has not looked yet.
#[track_caller]
fn begin(rig: &mut Rig, outside: &Outside) -> (Opened, Taken) {
    rig.client.port += 1;
    let opened = rig.open(1_000, &linux(5_000));
    outside.told(|told| told.now_ms = rig.now.as_millis() as u32);
    let taken = outside.begin(0, &opened, REQUEST).expect("a ticket");
    (opened, taken)
}

fn look(rig: &mut Rig) {
    rig.datapath.catch_up_with_fast_path(rig.now);
}

/// What is counted, but for packets.
fn counts(rig: &Rig) -> String {
    let live = rig.datapath.live_connections();
    let now = rig.datapath.snapshot();
    let gauges = (now.live, now.setups, now.half_read, now.buffered_bytes);
    let counters = (now.accepted, now.spliced, now.retries, now.time_wait);
    let of = (now.ended, now.services, now.pools, now.drops);
    format!("{live} {gauges:?} {counters:?} {of:?}")
}

/// Events, without the source of which each connection has its own.
fn events(rig: &mut Rig) -> Vec<Event> {
    let mut events = rig.events();
    for event in &mut events {
        if let Event::Closed { source, .. } = event {
            *source = endpoint("0.0.0.0:0");
        }
    }
    events
}

/// There is nothing but tickets, if any.
#[track_caller]
fn assert_over(rig: &mut Rig, outside: &Outside) {
    assert_eq!(rig.datapath.live_connections(), 0);
    rig.datapath.drain(rig.now);
    assert_eq!(rig.datapath.live_connections(), 0);
    rig.assert_empty();
    outside.told(|told| assert!(told.places.is_empty(), "{:?}", told.places));
}

#[test]
fn tickets_are_for_routes_that_are_busy() {
    let (mut rig, outside) = under(Rig::probed(roomy(http_config()), &linux(1)));
    for _ in 0..3 {
        come(&mut rig, BUSY - 1, REQUEST);
        sweep(&mut rig);
    }
    assert_eq!(outside.told(|told| told.issued), 0);
    come(&mut rig, BUSY, REQUEST);
    assert_eq!(outside.told(|told| told.issued), 0, "not before the sweep");
    sweep(&mut rig);
    assert_eq!((outside.out(0), outside.out(1)), (WANTED, 0));
    outside.told(|told| {
        for issued in &told.lanes[0] {
            assert_eq!(issued.server.src, endpoint("10.2.0.1:8081"));
            assert_eq!((issued.record.route, issued.record.listen), (0, 0));
            assert_eq!(issued.mss, (1_460, 1_460));
        }
    });
    come(&mut rig, BUSY, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    sweep(&mut rig);
    assert_eq!(outside.out(1), WANTED, "the other route");
    assert_over(&mut rig, &outside);
}

#[test]
fn a_lane_of_which_a_quarter_is_taken_is_filled_again_before_the_sweep() {
    let (mut rig, outside) = busy();
    for left in [15, 14, 13, 12, WANTED] {
        begin(&mut rig, &outside);
        look(&mut rig);
        assert_eq!(outside.out(0), left);
    }
}

#[test]
fn a_head_is_told_when_it_comes_again_and_once() {
    let (mut rig, outside) = under(Rig::probed(roomy(http_config()), &linux(1)));
    let learnt = |outside: &Outside| outside.told(|told| told.learnt.clone());
    assert!(!outside.told(offers_to_begin));
    come(&mut rig, 1, REQUEST);
    assert!(outside.told(offers_to_begin), "its endpoint may begin");
    assert_eq!(learnt(&outside), []);
    come(&mut rig, 1, REQUEST);
    let first = learnt(&outside);
    assert_eq!((first.len(), first[0].1), (1, 0));
    let keys = rig.datapath.cookie_words();
    let hash = fairlead_wire::http::plain_hash(REQUEST, 0, keys);
    assert_eq!(Some(first[0].0), hash);
    come(&mut rig, 5, REQUEST);
    assert_eq!(learnt(&outside), first, "once");
    let other = b"GET /b HTTP/1.1\r\nHost: example.com\r\n\r\n";
    come(&mut rig, 3, other);
    assert_eq!(learnt(&outside)[1].1, 1, "to the other route's lane");
    let odd = b"GET /c HTTP/1.1\r\nHost: example.com\r\nContent-Length: 0\r\n\r\n";
    come(&mut rig, 3, odd);
    assert_eq!(learnt(&outside).len(), 2, "not plain");
}

/// Some endpoint was offered as one where connections may begin.
fn offers_to_begin(told: &mut Told) -> bool {
    told.offer.is_some_and(|offer| offer.begin)
}

/// What clients of this switch ask leads to tickets, or to nothing at all that a fast path is told.
#[track_caller]
fn assert_begins(what: &str, begins: bool, config: Config, bytes: &[u8]) {
    let (mut rig, outside) = under(Rig::probed(roomy(config), &linux(1)));
    come(&mut rig, 2 * BUSY, bytes);
    sweep(&mut rig);
    outside.told(|told| {
        let seen = (
            told.issued > 0,
            !told.learnt.is_empty(),
            offers_to_begin(told),
        );
        assert_eq!(seen, (begins, begins, begins), "{what}");
    });
}

#[test]
fn only_what_a_plain_head_alone_decides_is_begun() {
    let with = |change: fn(&mut Config)| {
        let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
        change(&mut config);
        config
    };
    let present = || ("x".to_owned(), ValuePattern::Present);
    assert_begins("HTTP", true, with(|_| {}), REQUEST);
    let weighted = with(|config| config.pools[0].balance = Balance::Weighted);
    assert_begins("by weight", true, weighted, REQUEST);
    for (what, change) in [
        (
            "its own source",
            (|config| config.services[0].source = Source::Transparent) as fn(&mut Config),
        ),
        ("one-shot", |config| {
            config.services[0].routes[0].treatment = Treatment::OneShot;
        }),
        ("PROXY", |config| {
            config.pools[0].proxy_protocol = Some(ProxyVersion::V2);
        }),
        ("maglev", |config| {
            config.pools[0].balance = Balance::Maglev(HashOn::ClientAddress);
        }),
        ("least connections", |config| {
            config.pools[0].balance = Balance::LeastConnections;
        }),
        ("random two", |config| {
            config.pools[0].balance = Balance::RandomTwo;
        }),
        ("short heads", |config| {
            config.services[0].head_bytes_max = 1_503;
        }),
    ] {
        assert_begins(what, false, with(change), REQUEST);
    }
    // A condition of any route of the service: that one may be the first that fits.
    for matcher in [
        Matcher::Header(present().0, present().1),
        Matcher::Cookie(present().0, present().1),
    ] {
        let mut config = http_config();
        config.services[0].routes[1].matchers = vec![matcher];
        assert_begins("header or cookie", false, config, REQUEST);
    }
    let tls = simple_config(Protocol::Tls, &["10.2.0.1:8081"]);
    assert_begins("TLS", false, tls, &client_hello("a.example", 100, 16_384));
    let tcp = simple_config(Protocol::Tcp, &["10.2.0.1:8081"]);
    assert_begins("TCP", false, tcp, REQUEST);
}

#[test]
fn tickets_are_for_servers_of_the_family_that_are_known_to_be_up() {
    let first = endpoint("10.2.0.1:8081");
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081", "10.2.0.3:8081"]);
    config.pools[0].servers.push(server("[2001:db8:2::1]:8081"));
    let answers = |at: Endpoint| at != endpoint("10.2.0.3:8081");
    let rig = Rig::probed_each(roomy(config.clone()), |at| answers(at).then_some(linux(1)));
    let (mut rig, outside) = under(rig);
    let asked = come(&mut rig, BUSY, REQUEST);
    assert!(asked.iter().any(|one| *one != first), "{asked:?}");
    sweep(&mut rig);
    outside.told(|told| {
        assert_eq!(told.lanes[0].len(), WANTED);
        let of = |issued: &IssuedTicket| issued.server.src;
        assert!(told.lanes[0].iter().map(of).all(|server| server == first));
    });
    let (mut rig, outside) = under(Rig::probed_each(roomy(config), |_| None));
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.told(|told| told.issued), 0);
}

/// The pause after which a server that is down gets one connection on trial is not spent on a
/// ticket: whom the engine asks is the same with tickets and without.
#[test]
fn a_ticket_is_no_trial_of_a_server_that_is_down() {
    let second = endpoint("10.2.0.2:8081");
    let asked = |with: bool| {
        let config = simple_config(Protocol::Http, &["10.2.0.1:8081", "10.2.0.2:8081"]);
        let mut rig = Rig::probed(roomy(config), &linux(1));
        let mut outside = None;
        if with {
            let (under, its) = under(rig);
            (rig, outside) = (under, Some(its));
        }
        for client in ["192.0.2.8:1000", "192.0.2.9:1000"] {
            rig.client = endpoint(client);
            loop {
                rig.client.port += 1;
                let (opened, sent) = rig.request(1_000, REQUEST);
                let found = sent[0].header.key.dst == second;
                if found {
                    rig.put_one(&refusal(&sent[0]));
                }
                let end = REQUEST.len() as u32;
                rig.put_one(&opened.at(end).flags(TcpFlags::RST));
                if found {
                    break;
                }
            }
        }
        let mut asked = Vec::new();
        for _ in 0..100 {
            asked.extend(come(&mut rig, BUSY, REQUEST));
            // So that servers are chosen for others at the next moment.
            while let Some(outside) = outside.as_ref().filter(|one| one.out(0) > 4) {
                outside.spoil(0);
            }
            sweep(&mut rig);
        }
        let issued = outside.map(|one| one.told(|told| told.issued));
        assert!(issued.is_none_or(|issued| issued > 1_000), "{issued:?}");
        asked
    };
    let without = asked(false);
    let trials = without.iter().filter(|one| **one == second).count();
    assert!((1..10).contains(&trials), "{trials}");
    assert_eq!(asked(true), without);
}

/// Servers are asked in the order that they would have been, had there been no tickets; servers of
/// the other family neither gain nor lose.
#[test]
fn the_turns_of_tickets_that_are_taken_back_are_not_lost() {
    let asked = |with: bool| {
        let servers = ["10.2.0.1:8081", "10.2.0.2:8081", "10.2.0.3:8081"];
        let mut config = simple_config(Protocol::Http, &servers);
        config.pools[0].servers[0].weight = 3;
        config.pools[0].servers.push(server("[2001:db8:2::1]:8081"));
        let mut rig = Rig::probed(roomy(config), &linux(1));
        let mut outside = None;
        if with {
            let (under, its) = under(rig);
            (rig, outside) = (under, Some(its));
        }
        let mut asked = Vec::new();
        for _ in 0..20 {
            asked.extend(come(&mut rig, BUSY, REQUEST));
            sweep(&mut rig);
            sweep(&mut rig);
        }
        let counts = outside.map(|one| one.told(|told| (told.issued, told.revoked)));
        assert!(
            counts.is_none_or(|counts| counts == (320, 320)),
            "{counts:?}"
        );
        asked
    };
    assert_eq!(asked(true), asked(false));
}

#[test]
fn tickets_are_taken_back_when_it_is_quiet() {
    let (mut rig, outside) = busy();
    come(&mut rig, BUSY - 1, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.told(|told| (told.issued, told.revoked)), (16, 16));
    assert_eq!(rig.datapath.snapshot().records, 0);
    assert_over(&mut rig, &outside);
}

#[test]
fn tickets_are_taken_back_when_a_servers_state_changes() {
    let (mut rig, outside) = busy();
    for client in ["192.0.2.8:1000", "192.0.2.9:1000"] {
        assert_eq!(outside.out(0), WANTED);
        rig.client = endpoint(client);
        let (_, sent) = rig.request(1_000, REQUEST);
        rig.put_one(&refusal(&sent[0]));
    }
    assert_eq!(outside.out(0), 0);
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), 0, "it is down");
    // The way to a server takes less than the tickets say.
    let (mut rig, outside) = busy();
    let at = http_config().pools[0].servers[0].endpoint;
    rig.datapath.set_mtu_to(rig.now, at, Some(1_300));
    assert_eq!(outside.out(0), 0);
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    outside.told(|told| assert_eq!(told.lanes[0][0].mss, (1_460, 1_260)));
}

#[test]
fn tickets_are_no_connections_and_gone_when_all_is_to_end() {
    for abort in [false, true] {
        let (mut rig, outside) = busy();
        assert_eq!(rig.datapath.snapshot().records, WANTED as u64);
        assert_eq!(rig.datapath.live_connections(), 0);
        let (_, one) = begin(&mut rig, &outside);
        let (opened, other) = begin(&mut rig, &outside);
        look(&mut rig);
        assert_eq!(rig.datapath.live_connections(), 2);
        let (_, unknown) = begin(&mut rig, &outside);
        if abort {
            rig.datapath.abort_all(rig.now);
            let mut sent = Vec::new();
            rig.fetch(&mut sent);
            assert_eq!(sent.len(), 6, "a RST to each end: {sent:?}");
            assert_eq!(outside.out(0), 0);
            assert_over(&mut rig, &outside);
            continue;
        }
        rig.datapath.drain(rig.now);
        assert_eq!(outside.out(0), 0);
        assert_eq!(rig.datapath.live_connections(), 3, "one not learnt of yet");
        let end = REQUEST.len() as u32;
        rig.put_one(&opened.at(end).flags(TcpFlags::RST));
        let gone = outside.told(|told| !told.places.values().any(|line| *line == other.line));
        assert!(gone, "its place");
        for taken in [one, unknown] {
            outside.join(taken.line, 70_000);
            look(&mut rig);
            let now_ms = rig.now.as_millis() as u32;
            outside.follow(taken.line, State::TimeWait, now_ms);
        }
        sweep(&mut rig);
        assert_eq!(rig.datapath.live_connections(), 0);
        assert_eq!(outside.told(|told| told.issued), 16, "none since");
        rig.wait_ms(62_000);
        assert_over(&mut rig, &outside);
    }
}

/// A client whose request has led to a SYN: the engine's, or that of a ticket.
struct Asked {
    rig: Rig,
    outside: Outside,
    opened: Opened,
    syn: Sent,
}

fn asked(begun: bool, config: Config) -> Asked {
    let (mut rig, outside) = busy_with(config);
    rig.client.port += 1;
    let opened = rig.open(1_000, &linux(5_000));
    let syn = if begun {
        let taken = outside.begin(0, &opened, REQUEST).expect("a ticket");
        look(&mut rig);
        taken.syn
    } else {
        rig.put_one(&opened.data(0, REQUEST))
    };
    Asked {
        rig,
        outside,
        opened,
        syn,
    }
}

/// All that counts of a packet but its source towards a server.
fn told_by(sent: &[Sent]) -> Vec<String> {
    let one = |sent: &Sent| {
        let header = &sent.header;
        let numbers = (header.seq, header.ack, header.flags, header.window);
        let (options, bytes) = (sent.options(), sent.payload());
        format!("{} {numbers:?} {options:?} {bytes:?}", header.key.dst)
    };
    sent.iter().map(one).collect()
}

/// Whatever comes next leads to the same packets, events and counters.
#[track_caller]
fn assert_same(then: impl Fn(&mut Asked) -> Vec<Sent>) {
    assert_same_of(http_config, &then);
    assert_same_of(v6_config, &then);
}

#[track_caller]
fn assert_same_of(config: fn() -> Config, then: impl Fn(&mut Asked) -> Vec<Sent>) {
    let [alone, begun] = [false, true].map(|begun| {
        let mut asked = asked(begun, config());
        let first = (events(&mut asked.rig), counts(&asked.rig));
        assert_eq!(first.0.len(), 1, "decided");
        let sent = told_by(&then(&mut asked));
        let kept = asked.rig.state();
        let last = (events(&mut asked.rig), counts(&asked.rig));
        (told_by(&[asked.syn]), first, sent, kept, last)
    });
    assert_eq!(begun, alone);
}

#[test]
fn a_begun_connection_hears_its_client() {
    let end = REQUEST.len() as u32;
    let answer = |asked: &mut Asked| {
        let answer = syn_ack(&asked.syn, 70_000, &linux(900_000));
        asked.rig.put(&answer)
    };
    assert_same(|_| Vec::new());
    assert_same(|asked| asked.rig.put(&asked.opened.data(0, REQUEST)));
    assert_same(|asked| {
        asked.rig.put_none(&asked.opened.data(0, REQUEST));
        let sent = answer(asked);
        assert_eq!(payload(&sent), REQUEST);
        sent
    });
    assert_same(|asked| {
        asked.rig.put_none(&asked.opened.data(end, b"more"));
        let sent = answer(asked);
        assert_eq!(payload(&sent), [REQUEST, b"more"].concat());
        sent
    });
    for at in [0, end, end + 5] {
        assert_same(|asked| {
            let reset = asked.opened.at(at).flags(TcpFlags::RST);
            asked.rig.put(&reset)
        });
    }
    // A new SYN, and the new connection behind it.
    assert_same(|asked| {
        let opened = asked.rig.open(9_000_000, &linux(6_000));
        asked.rig.put(&opened.data(0, REQUEST))
    });
    // The SYN once more, which is an old one.
    assert_same(|asked| {
        let syn = asked.rig.by_client().flags(TcpFlags::SYN).seq(1_000);
        asked.rig.put(&syn)
    });
}

#[test]
fn a_begun_connection_hears_its_server() {
    assert_same(|asked| {
        let answer = syn_ack(&asked.syn, 70_000, &linux(900_000));
        let sent = asked.rig.put(&answer);
        assert_eq!(payload(&sent), REQUEST);
        sent
    });
    // It does not honour what the client was promised.
    assert_same(|asked| {
        let answer = syn_ack(&asked.syn, 70_000, &SynOptions::default());
        asked.rig.put(&answer)
    });
    assert_same(|asked| asked.rig.put(&refusal(&asked.syn)));
    assert_same(|asked| asked.rig.put_packet(unreachable(&asked.syn)));
    assert_same(|asked| {
        let again = asked.rig.wait_ms(300);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].header.flags, TcpFlags::SYN);
        again
    });
    assert_same(|asked| {
        asked.rig.datapath.abort_all(asked.rig.now);
        let mut sent = Vec::new();
        asked.rig.fetch(&mut sent);
        sent
    });
}

fn unreachable(sent: &Sent) -> Packet {
    let mut packet = Packet::default();
    let (from, to) = (sent.header.key.dst.addr, sent.header.key.src.addr);
    build::emit_icmp_unreachable(&from, &to, 1, &sent.packet.bytes, &mut packet.bytes);
    packet
}

#[test]
fn a_begun_connection_that_its_server_does_not_take_is_offered_to_the_next() {
    let config = || {
        let mut config = http_config();
        config.pools[0].servers.push(server("10.2.0.3:8081"));
        config
    };
    for failure in ["refused", "unreachable", "silent"] {
        let mut asked = asked(true, config());
        let arms = asked.outside.told(|told| told.arms);
        let sent = match failure {
            "refused" => asked.rig.put(&refusal(&asked.syn)),
            "unreachable" => asked.rig.put_packet(unreachable(&asked.syn)),
            _ => asked.rig.wait_ms(2_100),
        };
        // Beside it there may be the old server's SYN once more, and a probe.
        let other = |sent: &&Sent| {
            let header = &sent.header;
            header.flags == TcpFlags::SYN && header.key.dst != asked.syn.header.key.dst
        };
        let second = sent.iter().find(other).expect("another server");
        let again = asked.outside.told(|told| told.arms) - arms;
        assert_eq!(again, 1, "{failure}: armed with the next");
        let now = asked.rig.datapath.snapshot();
        assert_eq!((now.accepted, now.retries), (1 + u64::from(BUSY), 1));
        assert_eq!(now.services[0].routes[0].decisions, 1 + u64::from(BUSY));
        let answer = syn_ack(second, 70_000, &linux(900_000));
        assert_eq!(payload(&asked.rig.put(&answer)), REQUEST, "{failure}");
        assert_eq!(asked.rig.state(), Some(State::Spliced));
    }
}

#[test]
fn a_begun_connection_with_a_silent_server_is_asked_for_until_shortly_before_the_timeout() {
    let config = || {
        let mut config = http_config();
        config.pools[0].connect_timeout = core::time::Duration::from_secs(3);
        config
    };
    let mut asked = asked(true, config());
    let mut syns = asked.rig.wait_ms(2_600);
    syns.retain(|sent| sent.header.key == asked.syn.header.key);
    assert_eq!(syns.len(), 4, "after 250, 750, 1,750 and 2,500 ms");
}

#[test]
fn what_is_begun_and_joined_is_counted_and_given_back() {
    let (mut rig, outside) = busy();
    let before = rig.datapath.newcomers();
    let (opened, taken) = begin(&mut rig, &outside);
    outside.join(taken.line, 70_000);
    assert_eq!(rig.datapath.snapshot().spliced, 0, "nobody has looked");
    look(&mut rig);
    let now = rig.datapath.snapshot();
    assert_eq!((now.accepted, now.spliced, now.live), (9, 1, 1));
    assert_eq!((now.setups, now.buffered_bytes), (0, 0));
    assert_eq!(now.pools[0].servers[0].active, 1);
    assert_eq!(rig.datapath.newcomers() - before, 1, "its SYN only");
    let decided = rig.events();
    assert!(
        matches!(&decided[..], [Event::Decided { client, server, attempt: 0, .. }]
            if *client == opened.client && *server == taken.syn.header.key.dst),
        "{decided:?}"
    );
    let end = REQUEST.len() as u32;
    let more = rig.put_one(&opened.data(end, b"more"));
    assert_eq!(more.payload(), b"more");
    rig.now = rig.now + Duration::from_millis(30);
    let now_ms = rig.now.as_millis() as u32;
    outside.follow(taken.line, State::TimeWait, now_ms);
    sweep(&mut rig);
    let closed = rig.events();
    let [
        Event::Closed {
            client,
            source,
            bytes_in,
            duration,
            end,
            ..
        },
    ] = &closed[..]
    else {
        panic!("{closed:?}");
    };
    assert_eq!((*client, *end), (opened.client, End::Finished));
    assert_eq!(*source, taken.syn.header.key.src);
    assert_eq!(*bytes_in, REQUEST.len() as u64 + 4);
    assert_eq!(*duration, Duration::from_millis(30));
    let now = rig.datapath.snapshot();
    assert_eq!((now.live, now.time_wait), (0, 1));
    assert_eq!(now.pools[0].servers[0].active, 0);
}

#[test]
fn what_was_begun_and_has_ended_before_anybody_looked_is_counted() {
    let (mut rig, outside) = busy();
    let (_, taken) = begin(&mut rig, &outside);
    outside.join(taken.line, 70_000);
    rig.now = rig.now + Duration::from_millis(8);
    let now_ms = rig.now.as_millis() as u32;
    outside.follow(taken.line, State::TimeWait, now_ms);
    rig.now = rig.now + Duration::from_millis(20);
    look(&mut rig);
    let now = rig.datapath.snapshot();
    assert_eq!((now.spliced, now.live, now.time_wait), (1, 0, 1));
    assert_eq!(now.pools[0].servers[0].active, 0);
    let events = rig.events();
    assert!(
        matches!(&events[..], [Event::Decided { .. }, Event::Closed { duration, .. }]
            if *duration == Duration::from_millis(8)),
        "{events:?}"
    );
    assert_eq!(rig.datapath.live_connections(), 0);
}

#[test]
fn a_spoilt_ticket_is_nobodys() {
    let (mut rig, outside) = busy();
    let before = counts(&rig);
    outside.spoil(0);
    look(&mut rig);
    assert_eq!(counts(&rig), before);
    assert_eq!(rig.datapath.snapshot().records, WANTED as u64 - 1);
    assert_eq!(rig.events(), []);
    assert_over(&mut rig, &outside);
}

/// A server that still has a connection from a ticket's source hears that nobody has, as from any
/// other source of the switch's.
#[test]
fn what_comes_to_a_tickets_source_is_nobodys() {
    let (mut rig, outside) = busy();
    let key = outside.told(|told| told.lanes[0][0].server);
    let other = Endpoint {
        port: key.dst.port ^ 1,
        ..key.dst
    };
    for to in [key.dst, other] {
        let left_over = segment(key.src, to).seq(5).ack(77);
        let reset = rig.put_one(&left_over.clone().payload(b"late"));
        assert_eq!(reset.header.flags, TcpFlags::RST);
        assert_eq!((reset.header.key.dst, reset.header.seq.0), (key.src, 77));
        rig.put_none(&left_over.flags(TcpFlags::RST));
    }
    rig.put_packet(unreachable(&sent_as(&segment(key.dst, key.src))));
    let (_, taken) = begin(&mut rig, &outside);
    look(&mut rig);
    let answer = rig.put(&syn_ack(&taken.syn, 70_000, &linux(900_000)));
    assert_eq!(payload(&answer), REQUEST);
}
