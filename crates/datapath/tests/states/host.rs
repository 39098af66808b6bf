//! A connection becomes a socket of this machine: what the listener learns and gets, and what
//! becomes of clients that it cannot have.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use fairlead_base::{DropReason, Endpoint, FlowKey, SeqNumber};
use fairlead_datapath::config::{Config, Listeners, Matcher, PoolId, Protocol, Treatment};
use fairlead_datapath::{Event, Held, HostHandoff, HostTerms, Offers, Progress, Sleeper};
use fairlead_testkit::endpoint;
use fairlead_wire::{SynOptions, TcpFlags};

use crate::head::client_hello;
use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, payload, simple_config, v6_config,
};

/// The beginning of a request, and how long it waits for a listener.
type Woken = ([u8; 4], Duration);

/// The numbers of a request, and its packet.
type Kept = ((u32, u32), Vec<u8>);

/// A packet, and how long it waits for a listener.
type Waiting = (Vec<u8>, Duration);

/// Notes what it learns.
#[derive(Clone, Debug, Default)]
struct Desk {
    told: Arc<Mutex<Vec<(FlowKey, HostTerms)>>>,
    progress: Arc<Mutex<Option<Progress>>>,
    sleeper: Arc<Mutex<Option<Sleeper>>>,
    woken: Arc<Mutex<Vec<Woken>>>,
    expired: Arc<Mutex<Vec<(FlowKey, Sleeper)>>>,
    closed: bool,
    /// Nobody listens.
    deserted: Arc<Mutex<bool>>,
    /// Requests that sockets may leave unread, and their numbers.
    kept: Arc<Mutex<Vec<Kept>>>,
    /// What waits for a listener, and how long.
    waiting: Arc<Mutex<Vec<Waiting>>>,
    /// What waits no longer.
    ready: Arc<Mutex<Vec<Held>>>,
    /// Nothing more can be held.
    full: Arc<Mutex<bool>>,
}

impl HostHandoff for Desk {
    fn give(&mut self, client: &FlowKey, terms: &HostTerms, progress: Option<&Progress>) -> bool {
        self.told.lock().unwrap().push((*client, *terms));
        *self.progress.lock().unwrap() = progress.copied();
        !self.closed
    }

    fn listens(&mut self, _: Endpoint) -> bool {
        !*self.deserted.lock().unwrap()
    }

    fn listens_now(&mut self, listener: Endpoint) -> bool {
        self.listens(listener)
    }

    fn keep(&mut self, _: &FlowKey, numbers: (u32, u32), packet: &[u8]) {
        self.kept.lock().unwrap().push((numbers, packet.to_vec()));
    }

    fn hold(&mut self, _: &FlowKey, _: Endpoint, wait: Duration, packet: &[u8]) -> bool {
        let is_full = *self.full.lock().unwrap();
        if !is_full {
            self.waiting.lock().unwrap().push((packet.to_vec(), wait));
        }
        !is_full
    }

    fn next_held(&mut self) -> Option<Held> {
        self.ready.lock().unwrap().pop()
    }

    fn sleeper(&self, _: &FlowKey) -> Option<Sleeper> {
        *self.sleeper.lock().unwrap()
    }

    fn wake(&mut self, _: &FlowKey, client_nxt: u32, method: [u8; 4], wait: Duration) -> bool {
        let mut sleeper = self.sleeper.lock().unwrap();
        let Some(sleeper) = sleeper.as_mut() else {
            return false;
        };
        sleeper.is_asleep = false;
        sleeper.client_nxt = client_nxt;
        self.woken.lock().unwrap().push((method, wait));
        !self.closed
    }

    fn end(&mut self, _: &FlowKey) {
        *self.sleeper.lock().unwrap() = None;
    }

    fn next_expired(&mut self) -> Option<(FlowKey, Sleeper)> {
        self.expired.lock().unwrap().pop()
    }
}

impl Desk {
    #[track_caller]
    fn only(&self) -> (FlowKey, HostTerms) {
        let told = self.told.lock().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        told[0]
    }

    /// Somebody listens, or it is too late for those that wait.
    fn release(&self, rig: &mut Rig, is_late: bool) -> Vec<Sent> {
        *self.deserted.lock().unwrap() = is_late;
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        let held = |(packet, _)| Held { packet, is_late };
        self.ready
            .lock()
            .unwrap()
            .extend(waiting.into_iter().map(held));
        let mut sent = Vec::new();
        rig.datapath.hear_held(rig.now);
        rig.fetch(&mut sent);
        sent
    }
}

fn offers() -> Offers {
    Offers {
        mss: 1_460,
        window_scale: Some(9),
        sack: true,
        timestamps: true,
    }
}

/// Leads a route to this machine.
fn lead(config: &mut Config, route: usize, fallback: Option<u16>) {
    let route = &mut config.services[0].routes[route];
    route.treatment = Treatment::Host;
    route.listeners = Listeners::of(["127.0.0.1:8081", "[::1]:8081"].map(endpoint));
    route.pool = fallback.map(PoolId);
}

/// A switch whose routes lead to this machine alone.
fn hosted(mut config: Config) -> (Rig, Desk) {
    for route in 0..config.services[0].routes.len() {
        lead(&mut config, route, None);
    }
    with_desk(config, Desk::default())
}

fn with_desk(config: Config, desk: Desk) -> (Rig, Desk) {
    let mut rig = Rig::probed(config, &linux(1));
    let now = rig.now;
    rig.datapath.set_host(now, Box::new(desk.clone()), offers());
    (rig, desk)
}

/// The segments go to the listening address as the client sent them, and nothing is kept.
#[track_caller]
fn assert_given(rig: &mut Rig, sent: &[Sent], isn: u32, dseq: u32, bytes: &[u8]) {
    assert!(!sent.is_empty(), "{:?}", rig.last);
    let mut next = SeqNumber(isn) + 1;
    for one in sent {
        assert_eq!(
            (one.header.key.src, one.header.key.dst),
            (rig.client, rig.vip)
        );
        assert_eq!(one.header.seq, next);
        assert_eq!(one.header.ack, SeqNumber(dseq) + 1);
        next += one.payload().len() as u32;
    }
    assert_eq!(payload(sent), bytes);
    assert_eq!(rig.state(), None);
    rig.assert_empty();
}

#[test]
fn established_whole_head_is_given_with_what_the_cookie_promised() {
    for mut config in [http_config(), v6_config()] {
        config.services[0].routes.truncate(1);
        let (mut rig, desk) = hosted(config);
        let opened = rig.open(0xffff_fff0, &linux(5_000));
        assert_eq!(opened.offered.window_scale, Some(9), "this machine's");
        let sent = rig.put(&opened.data(0, REQUEST));
        assert_given(&mut rig, &sent, opened.isn, opened.dseq, REQUEST);
        assert_eq!(sent[0].header.flags, TcpFlags::ACK | TcpFlags::PSH);
        let stamps = sent[0].timestamps().unwrap();
        assert_eq!(Some((stamps.value, stamps.echo)), opened.stamps);
        let (client, terms) = desk.only();
        assert_eq!((client.src, client.dst), (rig.client, rig.vip));
        let v4 = rig.client.addr.is_v4();
        let listener = if v4 { "127.0.0.1:8081" } else { "[::1]:8081" };
        let expected = HostTerms {
            listener: endpoint(listener),
            mss: 1_460,
            scales: Some((7, 9)),
            sack: true,
            timestamps: true,
            first: opened.isn.wrapping_add(1),
            again: false,
        };
        assert_eq!(terms, expected);
        assert_eq!(rig.datapath.snapshot().given, 1);
        let events = rig.events();
        let [
            Event::Given {
                route: 0, subject, ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(subject.as_str(), "GET example.com/a.jpg");
    }
}

#[test]
fn established_head_in_pieces_is_given_whole_with_its_end() {
    let (mut rig, _) = hosted(http_config());
    let head = [
        b"GET /",
        &[b'a'; 4_000][..],
        b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    .concat();
    let opened = rig.open(0xffff_f000, &linux(5_000));
    let cut = |from: usize, to: usize| opened.data(from as u32, &head[from..to]);
    rig.put_none(&cut(0, 1_000));
    rig.put_none(&cut(2_000, 3_000));
    rig.put_none(&cut(1_000, 2_000));
    let fin = cut(3_000, head.len()).flags(TcpFlags::ACK | TcpFlags::FIN);
    let sent = rig.put(&fin);
    assert_eq!(sent.len(), 3, "segments of at most 1,448 bytes");
    let flags: Vec<TcpFlags> = sent.iter().map(|one| one.header.flags).collect();
    let last = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN;
    assert_eq!(flags, [TcpFlags::ACK, TcpFlags::ACK, last]);
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, &head);
}

#[test]
fn given_first_segment_again_is_given_again() {
    let (mut rig, desk) = hosted(http_config());
    let (opened, first) = rig.request(1_000, REQUEST);
    let again = rig.put(&opened.data(0, REQUEST));
    assert_given(&mut rig, &first, opened.isn, opened.dseq, REQUEST);
    assert_given(&mut rig, &again, opened.isn, opened.dseq, REQUEST);
    assert_eq!(desk.told.lock().unwrap().len(), 2);
}

#[test]
fn given_client_without_options_has_none() {
    let (mut rig, desk) = hosted(http_config());
    let plain = SynOptions {
        mss: Some(1_400),
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
    };
    let opened = rig.open(1_000, &plain);
    let sent = rig.put(&opened.data(0, REQUEST));
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, REQUEST);
    assert!(sent[0].options().is_empty());
    let (_, terms) = desk.only();
    assert_eq!((terms.mss, terms.scales), (1_400, None));
    assert!(!terms.sack && !terms.timestamps);
}

/// A connection that cannot be given, one way with a pool that stands in and one way without.
fn cannot(reason: DropReason, prepare: impl Fn(&mut Rig, &mut Desk), segment: u16, wait: bool) {
    for fallback in [None, Some(0)] {
        let mut config = http_config();
        lead(&mut config, 0, fallback);
        lead(&mut config, 1, fallback);
        let (mut rig, mut desk) = with_desk(config, Desk::default());
        prepare(&mut rig, &mut desk);
        let options = SynOptions {
            mss: Some(segment),
            ..linux(5_000)
        };
        let opened = rig.open(1_000, &options);
        let (begin, end) = REQUEST.split_at(20);
        let sent = match wait {
            false => rig.put(&opened.data(0, REQUEST)),
            true => {
                rig.put_none(&opened.data(0, begin));
                let acked = rig.wait_ms(50);
                assert_eq!(acked[0].header.ack, SeqNumber(opened.isn + 21));
                rig.put(&opened.data(20, end))
            }
        };
        assert_eq!(sent.len(), 1, "{sent:?}");
        match fallback {
            Some(_) => {
                assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.1:8081"));
                assert_eq!(sent[0].header.flags, TcpFlags::SYN);
                assert_eq!(rig.datapath.snapshot().host_fallbacks, 1);
            }
            None => {
                assert!(sent[0].header.flags.contains(TcpFlags::RST));
                assert_eq!(rig.refusals(), [(reason, None)]);
                rig.assert_empty();
            }
        }
        assert_eq!(rig.datapath.snapshot().given, 0);
    }
}

#[test]
fn established_goes_to_the_pool_while_nobody_listens() {
    let mut config = http_config();
    lead(&mut config, 0, Some(0));
    lead(&mut config, 1, Some(0));
    let (mut rig, desk) = with_desk(config, Desk::default());
    *desk.deserted.lock().unwrap() = true;
    let opened = rig.open(1_000, &linux(5_000));
    let sent = rig.put(&opened.data(0, REQUEST));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.1:8081"));
    let counted = rig.datapath.snapshot();
    assert_eq!((counted.host_unattended, counted.host_fallbacks), (1, 1));
    assert!(desk.told.lock().unwrap().is_empty());
    // Somebody does again. Where the kernel finds nobody after all, the client asks again.
    *desk.deserted.lock().unwrap() = false;
    let opened = rig.open(1_001, &linux(5_000));
    rig.put(&opened.data(0, REQUEST));
    assert!(desk.only().1.again);
    assert_eq!(rig.datapath.snapshot().host_unattended, 1);
}

#[test]
fn established_that_no_socket_can_have_takes_the_pool_or_is_reset() {
    let closed = |rig: &mut Rig, _: &mut Desk| {
        let desk = Desk {
            closed: true,
            ..Desk::default()
        };
        rig.datapath.set_host(rig.now, Box::new(desk), offers());
    };
    cannot(DropReason::HostUnavailable, closed, 1_460, false);
    cannot(DropReason::HostHeadAcknowledged, |_, _| {}, 1_460, true);
    // Below what the kernel accepts of a cookie.
    cannot(DropReason::HostMismatch, |_, _| {}, 400, false);
    let old = |rig: &mut Rig, _: &mut Desk| {
        // A cookie of before this machine gave up window scaling.
        let offers = Offers {
            window_scale: None,
            ..offers()
        };
        let opened = rig.open(1_000, &linux(5_000));
        assert!(opened.offered.window_scale.is_some());
        rig.datapath
            .set_host(rig.now, Box::new(Desk::default()), offers);
        let sent = rig.put(&opened.data(0, REQUEST));
        assert!(!sent.is_empty());
    };
    let mut config = http_config();
    lead(&mut config, 0, None);
    let (mut rig, mut desk) = with_desk(config, Desk::default());
    old(&mut rig, &mut desk);
    assert_eq!(rig.refusals(), [(DropReason::HostMismatch, None)]);
}

#[test]
fn established_without_any_way_to_sockets_is_reset() {
    let mut config = http_config();
    lead(&mut config, 0, None);
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    assert_eq!(rig.refusals(), [(DropReason::HostUnavailable, None)]);
}

/// TLS by name to a pool; SSH to this machine; what else is not TLS to another pool.
fn shared_port() -> Config {
    let mut config = simple_config(Protocol::Tls, &["10.2.0.1:443"]);
    let plain = config.services[0].routes[0].clone();
    let with = |matcher: Matcher| fairlead_datapath::config::Route {
        matchers: vec![matcher],
        ..plain.clone()
    };
    config.services[0].routes = vec![
        with(Matcher::FirstBytes(vec![
            b"SSH-".to_vec(),
            b"\0\0\0\x08".to_vec(),
        ])),
        with(Matcher::NotTls),
        plain.clone(),
    ];
    config
        .pools
        .push(crate::rig::pool("other", &["10.2.0.2:25"]));
    config.services[0].routes[1].pool = Some(PoolId(1));
    lead(&mut config, 0, None);
    config
}

#[test]
fn established_bytes_that_are_not_tls_go_where_they_say() {
    for (bytes, to_host, server) in [
        (&b"SSH-2.0-x\r\n"[..], true, ""),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", true, ""),
        (b"SSX", false, "10.2.0.2:25"),
        (b"GET / HTTP/1.1\r\n", false, "10.2.0.2:25"),
    ] {
        for piece in [1, 2, bytes.len()] {
            let (mut rig, _) = with_desk(shared_port(), Desk::default());
            let opened = rig.open(1_000, &linux(5_000));
            let mut sent = Vec::new();
            let mut put = 0;
            for part in bytes.chunks(piece) {
                sent = rig.put(&opened.data(put, part));
                put += part.len() as u32;
                if !sent.is_empty() {
                    break;
                }
            }
            if to_host {
                let got = &bytes[..put as usize];
                assert!(got.len() >= 4, "decided by {got:?}");
                assert_given(&mut rig, &sent, opened.isn, opened.dseq, got);
            } else {
                assert_eq!(
                    sent[0].header.key.dst,
                    endpoint(server),
                    "{bytes:?} by {piece}"
                );
            }
        }
    }
    let (mut rig, _) = with_desk(shared_port(), Desk::default());
    let (_, sent) = rig.request(1_000, &client_hello("a.example", 300, 16_384));
    assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.1:443"));
}

#[test]
fn established_client_that_waits_for_the_server_is_given_to_it() {
    let mut config = shared_port();
    config.services[0].timeouts.first_bytes = Some(Duration::from_millis(300));
    config.limits.silent_clients = 1;
    lead(&mut config, 1, None);
    let (mut rig, _) = with_desk(config, Desk::default());
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.at(0));
    // Another one is over the limit, and costs nothing until it speaks.
    let first = rig.client;
    rig.client.port += 1;
    let other = rig.open(9_000, &linux(5_000));
    rig.put_none(&other.at(0));
    rig.assert_dropped(DropReason::SilentClientsFull);
    assert_eq!(rig.state(), None);
    let sent = rig.put(&other.data(0, b"SSH-2.0-x\r\n"));
    assert_eq!(payload(&sent), b"SSH-2.0-x\r\n");
    rig.client = first;
    assert!(rig.wait_ms(299).is_empty());
    let sent = rig.wait_ms(2);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.flags, TcpFlags::ACK);
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, b"");
    // Its bytes reach the socket without the switch; those that do not are given again.
    let late = rig.put(&opened.data(0, b"SSH-2.0-y\r\n"));
    assert_given(&mut rig, &late, opened.isn, opened.dseq, b"SSH-2.0-y\r\n");
}

#[test]
fn established_client_that_speaks_in_time_is_read_as_ever() {
    let mut config = shared_port();
    config.services[0].timeouts.first_bytes = Some(Duration::from_millis(300));
    let (mut rig, _) = with_desk(config, Desk::default());
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.at(0));
    rig.wait_ms(200);
    let hello = client_hello("a.example", 300, 16_384);
    rig.put_none(&opened.data(0, &hello[..100]));
    let acked = rig.wait_ms(1_000);
    assert_eq!(acked.len(), 1, "the delayed acknowledgement alone");
    let sent = rig.put(&opened.data(100, &hello[100..]));
    assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.1:443"));
}

#[test]
fn tcp_service_is_given_with_the_last_segment_of_the_handshake() {
    let (mut rig, desk) = hosted(simple_config(Protocol::Tcp, &["10.2.0.1:22"]));
    let opened = rig.open(1_000, &linux(5_000));
    let sent = rig.put(&opened.at(0));
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, b"");
    // Its data, had it been lost for the socket, is no refused client's.
    let sent = rig.put(&opened.data(0, b"hello"));
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, b"hello");
    assert_eq!(desk.told.lock().unwrap().len(), 2);
}

/// A switch whose connections may sleep, and one of them that does; the client's next number and
/// the server's.
fn with_a_sleeper() -> (Rig, Desk, Opened, (u32, u32)) {
    let mut config = http_config();
    for route in 0..config.services[0].routes.len() {
        lead(&mut config, route, None);
        config.services[0].routes[route].sleep = true;
    }
    let (mut rig, desk) = with_desk(config, Desk::default());
    let (opened, _) = rig.request(0xffff_fff0, REQUEST);
    let progress = desk.progress.lock().unwrap().unwrap();
    let client_nxt = opened.isn.wrapping_add(1 + REQUEST.len() as u32);
    assert_eq!(progress.client_nxt, client_nxt);
    assert_eq!(progress.server_nxt, opened.dseq.wrapping_add(1));
    assert_eq!((progress.method, progress.sleep_max_s), (*b"GET ", 3_600));
    // The server has answered with 500 bytes, and is gone.
    let server_nxt = progress.server_nxt.wrapping_add(500);
    *desk.sleeper.lock().unwrap() = Some(Sleeper {
        is_asleep: true,
        client_nxt,
        server_nxt,
        listener: endpoint("127.0.0.1:8081"),
    });
    rig.events();
    (rig, desk, opened, (client_nxt, server_nxt))
}

#[test]
fn asleep_request_with_exact_numbers_is_given_and_others_are_not() {
    let (mut rig, desk, _, (client_nxt, server_nxt)) = with_a_sleeper();
    let request = |rig: &Rig, ahead: u32, acked: u32| {
        let segment = rig.by_client().flags(TcpFlags::ACK | TcpFlags::PSH);
        let segment = segment.seq(client_nxt.wrapping_add(ahead));
        segment.ack(server_nxt.wrapping_add(acked)).payload(REQUEST)
    };
    for bit in 0..32 {
        for off in [1u32 << bit, (1u32 << bit).wrapping_neg()] {
            let ahead = request(&rig, off, 0);
            rig.put_none(&ahead);
            let acked = request(&rig, 0, off);
            rig.put_none(&acked);
        }
    }
    assert!(desk.woken.lock().unwrap().is_empty());
    let exact = request(&rig, 0, 0).timestamps(70, 80);
    let sent = rig.put(&exact);
    assert_eq!(payload(&sent), REQUEST);
    assert_eq!(
        (sent[0].header.key.src, sent[0].header.key.dst),
        (rig.client, rig.vip)
    );
    assert_eq!(sent[0].header.seq, SeqNumber(client_nxt));
    assert_eq!(
        sent[0].timestamps().map(|one| (one.value, one.echo)),
        Some((70, 80))
    );
    let woken = desk.woken.lock().unwrap().clone();
    assert_eq!(woken, [(*b"GET ", Duration::from_secs(10))]);
    assert_eq!(rig.datapath.snapshot().woken, 1);
    // What follows while the socket is being made goes the same way.
    let more = request(&rig, REQUEST.len() as u32, 0);
    assert_eq!(rig.put_one(&more).payload(), REQUEST);
    rig.assert_empty();
}

#[test]
fn asleep_request_waits_for_a_listener_and_is_given_then() {
    let (mut rig, desk, _, (client_nxt, server_nxt)) = with_a_sleeper();
    *desk.deserted.lock().unwrap() = true;
    desk.kept.lock().unwrap().clear();
    let request = rig.by_client().flags(TcpFlags::ACK | TcpFlags::PSH);
    let request = request.seq(client_nxt).ack(server_nxt).payload(REQUEST);
    let request = request.timestamps(70, 80);
    *desk.full.lock().unwrap() = true;
    rig.put_none(&request);
    rig.assert_dropped(DropReason::HeldFull);
    *desk.full.lock().unwrap() = false;
    rig.put_none(&request);
    assert_eq!(
        desk.waiting.lock().unwrap()[0].1,
        Duration::from_secs(10),
        "wake_wait"
    );
    assert!(desk.woken.lock().unwrap().is_empty());
    assert_eq!(rig.datapath.snapshot().host_held, 1);
    let sent = desk.release(&mut rig, false);
    assert_eq!(payload(&sent), REQUEST);
    assert_eq!(sent[0].header.seq, SeqNumber(client_nxt));
    assert_eq!(
        sent[0].timestamps().map(|one| (one.value, one.echo)),
        Some((70, 80))
    );
    let counted = rig.datapath.snapshot();
    assert_eq!((counted.woken, counted.host_held_late), (1, 0));
    // Its socket may leave it unread in turn.
    let kept = desk.kept.lock().unwrap();
    let behind = client_nxt.wrapping_add(REQUEST.len() as u32);
    assert_eq!(kept[0].0, (client_nxt, behind));
    assert!(kept[0].1.ends_with(REQUEST));
}

#[test]
fn asleep_request_for_which_nobody_comes_to_listen_is_reset() {
    let (mut rig, desk, _, (client_nxt, server_nxt)) = with_a_sleeper();
    *desk.deserted.lock().unwrap() = true;
    let request = rig.by_client().seq(client_nxt).ack(server_nxt);
    rig.put_none(&request.payload(REQUEST));
    let sent = desk.release(&mut rig, true);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.flags, TcpFlags::RST);
    assert_eq!(sent[0].header.seq, SeqNumber(server_nxt));
    assert_eq!(sent[0].header.key.dst, rig.client);
    assert_eq!(*desk.sleeper.lock().unwrap(), None);
    assert_eq!(rig.datapath.snapshot().host_held_late, 1);
}

#[test]
fn held_packet_that_was_changed_is_not_heard() {
    let (mut rig, desk, _, (client_nxt, server_nxt)) = with_a_sleeper();
    *desk.deserted.lock().unwrap() = true;
    let request = rig.by_client().seq(client_nxt).ack(server_nxt);
    rig.put_none(&request.payload(REQUEST));
    let last = |waiting: &mut Vec<Waiting>| *waiting[0].0.last_mut().unwrap() ^= 1;
    last(&mut desk.waiting.lock().unwrap());
    assert!(desk.release(&mut rig, false).is_empty());
    let drops = rig.datapath.snapshot().drops;
    assert_eq!(drops.of(DropReason::BadTcpChecksum), 1);
    desk.ready.lock().unwrap().push(Held {
        packet: vec![0x45; 7],
        is_late: true,
    });
    assert!(desk.release(&mut rig, false).is_empty());
    assert_eq!(rig.datapath.snapshot().woken, 0);
}

#[test]
fn established_newcomer_to_a_route_with_sleep_waits_for_a_listener() {
    let mut config = http_config();
    for route in 0..config.services[0].routes.len() {
        lead(&mut config, route, None);
        config.services[0].routes[route].sleep = true;
    }
    let (mut rig, desk) = with_desk(config, Desk::default());
    *desk.deserted.lock().unwrap() = true;
    let (begin, end) = REQUEST.split_at(20);
    let opened = rig.open(0xffff_fff0, &linux(5_000));
    rig.put_none(&opened.data(0, begin));
    rig.put_none(&opened.data(20, end));
    assert_eq!(rig.state(), None);
    rig.assert_empty();
    assert!(desk.told.lock().unwrap().is_empty());
    let sent = desk.release(&mut rig, false);
    assert_given(&mut rig, &sent, opened.isn, opened.dseq, REQUEST);
    assert!(desk.only().1.again);
    let kept = desk.kept.lock().unwrap().clone();
    let first = opened.isn.wrapping_add(1);
    let behind = first.wrapping_add(REQUEST.len() as u32);
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].0, (first, behind));
}

/// Clocks of timestamps turn over after 2^31 ms, and an older value is refused before (RFC 7323,
/// section 5.5). A sleeper compares none: its new socket begins with those of the client.
#[test]
fn asleep_for_weeks_is_woken_whatever_its_clients_clock_says() {
    for value in [0, 70, 71, 70 + (1 << 31), u32::MAX] {
        let (mut rig, _, _, (client_nxt, server_nxt)) = with_a_sleeper();
        rig.now = rig.now + Duration::from_secs(30 * 24 * 3_600);
        let by_client = rig.by_client().timestamps(value, 80);
        let probe = by_client.clone().seq(client_nxt.wrapping_sub(1));
        let answer = rig.put_one(&probe.ack(server_nxt));
        let stamps = |one: &Sent| one.timestamps().map(|both| (both.value, both.echo));
        // Its client has seen the first, so it does not find it old.
        assert_eq!(stamps(&answer), Some((80, value)));
        let request = by_client.seq(client_nxt).ack(server_nxt);
        let sent = rig.put(&request.payload(REQUEST));
        assert_eq!(payload(&sent), REQUEST);
        assert_eq!(stamps(&sent[0]), Some((value, 80)));
    }
}

#[test]
fn asleep_at_a_watched_address_is_heard_and_all_else_is_not_ours() {
    let watched = endpoint("10.1.0.9:8080");
    let mut config = http_config();
    config.watched = vec![watched];
    let (mut rig, desk) = with_desk(config, Desk::default());
    rig.vip = watched;
    let request = rig.by_client().seq(1_000).ack(2_000).payload(REQUEST);
    rig.put_none(&request);
    rig.assert_dropped(DropReason::NotOurs);
    *desk.sleeper.lock().unwrap() = Some(Sleeper {
        is_asleep: true,
        client_nxt: 1_000,
        server_nxt: 2_000,
        listener: watched,
    });
    *desk.deserted.lock().unwrap() = true;
    rig.put_none(&request);
    assert_eq!(
        desk.waiting.lock().unwrap()[0].1,
        Duration::from_secs(10),
        "the wait"
    );
    let sent = desk.release(&mut rig, false);
    assert_eq!(payload(&sent), REQUEST);
    assert_eq!(sent[0].header.key.dst, watched);
    assert_eq!(rig.datapath.snapshot().woken, 1);
}

#[test]
fn asleep_long_request_is_given_in_segments() {
    let (mut rig, _, _, (client_nxt, server_nxt)) = with_a_sleeper();
    let body = vec![b'a'; 9_000];
    let segment = rig.by_client().flags(TcpFlags::ACK | TcpFlags::PSH);
    let long = segment.seq(client_nxt).ack(server_nxt).payload(&body);
    let sent = rig.put(&long);
    assert_eq!(payload(&sent), body);
    assert!(sent.iter().all(|one| one.payload().len() <= 1_448) && sent.len() == 7);
}

#[test]
fn asleep_probe_is_answered_and_a_fin_ends_it() {
    let (mut rig, desk, _, (client_nxt, server_nxt)) = with_a_sleeper();
    for byte in [&b""[..], b"x"] {
        let probe = rig
            .by_client()
            .seq(client_nxt.wrapping_sub(1))
            .ack(server_nxt);
        let answer = rig.put_one(&probe.timestamps(70, 80).payload(byte));
        assert_eq!(answer.header.flags, TcpFlags::ACK);
        assert_eq!(answer.header.seq, SeqNumber(server_nxt));
        assert_eq!(answer.header.ack, SeqNumber(client_nxt));
        assert_eq!(
            answer.timestamps().map(|one| (one.value, one.echo)),
            Some((80, 70))
        );
    }
    let fin = rig.by_client().flags(TcpFlags::FIN | TcpFlags::ACK);
    let answer = rig.put_one(&fin.seq(client_nxt).ack(server_nxt));
    assert_eq!(answer.header.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!(answer.header.ack, SeqNumber(client_nxt) + 1);
    assert_eq!(*desk.sleeper.lock().unwrap(), None);
    assert_eq!(rig.datapath.snapshot().sleepers_closed, 1);
}

#[test]
fn asleep_too_long_gets_a_fin() {
    let (mut rig, desk, opened, _) = with_a_sleeper();
    let sleeper = desk.sleeper.lock().unwrap().take().unwrap();
    let client = FlowKey {
        src: opened.client,
        dst: opened.vip,
    };
    desk.expired.lock().unwrap().push((client, sleeper));
    let mut sent = Vec::new();
    rig.datapath.handle_timeout(rig.now);
    rig.fetch(&mut sent);
    let fins: Vec<&Sent> = sent
        .iter()
        .filter(|one| one.header.key.dst == opened.client)
        .collect();
    assert_eq!(fins.len(), 1, "{sent:?}");
    assert_eq!(fins[0].header.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!(fins[0].header.seq, SeqNumber(sleeper.server_nxt));
}
