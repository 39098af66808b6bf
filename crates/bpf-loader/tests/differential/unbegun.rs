//! What a kernel that may begin connections leaves to the engine all the same: the packet as it
//! was, and the ticket for the next one.

use std::sync::Arc;

use fairlead_base::{Instant, SeqNumber};
use fairlead_tcp::{Begun, ConnectOffload, FlowOffload, Preconnect, SynOffload, Ticket};
use fairlead_testkit::{Segment, oracle};
use fairlead_wire::http::plain_hash;

use super::*;

/// Of the endpoints that all tests here share.
const LISTEN: &str = "10.1.0.3:80";
const CLIENT: &str = "10.1.0.9:40000";
pub(super) const HEAD: &[u8] = b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
pub(super) const LANE: u16 = 5;
const ISN: u32 = 0x7fff_fff0;

pub(super) const PROMISE: Promise = Promise {
    mss: 1_460,
    window_scale: Some(9),
    sack: true,
    scale_parity: OFFER.scale_parity,
};

/// A kernel that may begin connections, and has tickets of its own.
pub(super) struct Stage {
    pub(super) kernel: Arc<Kernel>,
    pub(super) table: FlowTable,
    pub(super) interface: u32,
}

impl Stage {
    /// With so many records, and [`HEAD`] learnt.
    pub(super) fn new(mode: Mode, records: u32, interface: u32) -> Self {
        let origin = fairlead_bpf_loader::monotonic_ns() - 1_000_000_000;
        let loaded = Kernel::load(mode, records, &endpoints(), COOKIE, origin);
        let (mut kernel, mut table) = loaded.unwrap();
        tell_interfaces(&mut kernel);
        offer(&mut table, |_| {});
        table.learn_head(plain_hash(HEAD, 0, COOKIE).unwrap(), LANE);
        Self {
            kernel: Arc::new(kernel),
            table,
            interface,
        }
    }

    /// Issues a ticket for a line, at a place of the same number.
    pub(super) fn issue(&mut self, lane: u16, line: u32) {
        let record = ticket_of(line);
        let ticket = Ticket {
            lane,
            line: Line(line),
            place: line,
            record: &record,
            server: &record.server_key(&endpoints()),
            syn_mss: 1_460,
            device_mss: 1_460,
        };
        assert!(self.table.issue(&ticket));
    }

    fn fate(&self, packet: &Packet) -> Fate {
        let frame = frame_of(packet);
        let trial = self.kernel.try_frame(&frame, self.interface, 1).unwrap();
        if trial.fate == Fate::Pass {
            assert_eq!(trial.frame, frame, "left as it was");
        }
        trial.fate
    }

    /// A packet goes to the engine as it was, and takes nothing.
    #[track_caller]
    fn leaves(&mut self, packet: &Packet, why: &str) {
        assert_eq!(self.fate(packet), Fate::Pass, "{why}");
        assert_eq!(self.table.next_taken(LANE), None, "{why}");
    }

    /// A packet takes the ticket for a line.
    #[track_caller]
    fn begins(&mut self, packet: &Packet, line: u32) {
        assert_eq!(self.fate(packet), Fate::Redirect);
        let begun = self.table.next_taken(LANE).expect("a ticket was taken");
        assert_eq!((begun.line, begun.place), (Line(line), line));
        let taker = begun.taker.expect("by somebody");
        let header = tcp(packet);
        assert_eq!(taker.client, header.key.src);
        assert_eq!(taker.client_isn, header.seq - 1);
    }

    /// The server's SYN-ACK joins the connection of a line; then its client's ACK is forwarded.
    pub(super) fn joins(&mut self, line: u32, request: &Packet) {
        let header = tcp(request);
        let server = ticket_of(line).server_key(&endpoints());
        let told = SynOptions {
            mss: Some(1_460),
            ..SynOptions::default()
        };
        let answer = told_apart(|isn| {
            let answer = segment(server.src, server.dst).seq(isn).ack(header.seq.0);
            let answer = answer.flags(TcpFlags::SYN | TcpFlags::ACK).window(29_000);
            answer.syn_options(&told).packet()
        });
        assert_eq!(self.fate(&answer), Fate::Redirect, "line {line}");
        assert!(self.table.joined(Line(line)).is_some());
        assert!(self.forwards(request), "line {line}");
    }

    /// An ACK of the client behind its first segment is forwarded.
    pub(super) fn forwards(&mut self, request: &Packet) -> bool {
        let header = tcp(request);
        let nxt = header.seq + header.payload_len() as u32;
        let next = told_apart(|window| {
            let next = segment(header.key.src, header.key.dst).seq(nxt.0);
            let next = next.ack(header.ack.0).window(100 + window as u16);
            next.flags(TcpFlags::ACK).packet()
        });
        self.fate(&next) == Fate::Redirect
    }
}

/// Whether a checksum is what one of 65,536 is: such that XDP must take it for one that a device is
/// to complete, and leaves the packet to the engine.
pub(super) fn looks_open(packet: &Packet) -> bool {
    let header = tcp(packet);
    let (from, to) = (header.key.src.addr, header.key.dst.addr);
    let open = oracle::pseudo_header(&from, &to, u32::from(header.end - header.tcp_at));
    packet.bytes[usize::from(header.tcp_at) + 16..][..2] == open.to_be_bytes()
}

/// The first of many packets with another checksum than that.
fn told_apart(of: impl Fn(u32) -> Packet) -> Packet {
    let mut all = (0..).map(of);
    all.find(|packet| !looks_open(packet)).unwrap()
}

/// Publishes the offer, with a change.
fn offer(table: &mut FlowTable, change: impl FnOnce(&mut ListenOffer)) {
    let mut offer = ListenOffer {
        begin: true,
        host: false,
        ..OFFER
    };
    change(&mut offer);
    table.set_offer(endpoint(LISTEN), &offer);
}

/// What the engine has chosen for a line.
pub(super) fn ticket_of(line: u32) -> Record {
    Record {
        client_port: line as u16,
        nat_port: 30_000 + line as u16,
        state: State::SynSent,
        ..Record::default()
    }
}

/// The segment that a client sends behind a handshake with this promise, but for its payload.
pub(super) fn behind(client: Endpoint, isn: u32, promise: Promise) -> Segment {
    let to = endpoint(LISTEN);
    let key = FlowKey {
        src: client,
        dst: to,
    };
    let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
    let now = Instant::from_millis(1_000);
    let cookie = cookies.make(&key, SeqNumber(isn), now, promise);
    let built = segment(client, to).seq(isn.wrapping_add(1));
    let built = built.ack((cookie + 1).0).window(501);
    built.flags(TcpFlags::ACK | TcpFlags::PSH)
}

fn first() -> Segment {
    behind(endpoint(CLIENT), ISN, PROMISE)
}

/// Segments that say something else than the usual one.
fn odd_segments() -> Vec<(&'static str, Packet)> {
    let of = |built: Segment| built.payload(HEAD).packet();
    let good = tcp(&of(first()));
    let (seq, ack) = (good.seq.0, good.ack.0);
    let mut all = vec![
        ("another number", of(first().seq(seq + 1))),
        ("a guessed cookie", of(first().ack(ack ^ 1 << 30))),
        ("another promise", of(first().ack(ack ^ 2))),
        ("the last hop", of(first().ttl(1))),
        (
            "no payload but a FIN",
            first().flags(TcpFlags::ACK | TcpFlags::FIN).packet(),
        ),
    ];
    for (name, flags) in [
        ("FIN", TcpFlags::ACK | TcpFlags::FIN),
        ("SYN", TcpFlags::ACK | TcpFlags::SYN),
        ("SYN alone", TcpFlags::SYN),
        ("URG", TcpFlags::ACK | TcpFlags::URG),
        ("no ACK", TcpFlags::PSH),
        ("nothing", TcpFlags::default()),
    ] {
        all.push((name, of(first().flags(flags))));
    }
    for (name, options) in [
        ("NOPs", &[1, 1, 1, 1][..]),
        ("an end", &[0, 0, 0, 0]),
        ("NOPs for timestamps", &[1; 12]),
        ("no NOPs", &[8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1]),
        ("one NOP", &[1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1]),
        ("SACK", &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
        ("more", &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 1, 1]),
    ] {
        all.push((name, of(first().options(options))));
    }
    for flip in [0x01, 0x80, 0xff] {
        let mut packet = of(first());
        let at = usize::from(good.tcp_at) + 16;
        packet.bytes[at] ^= flip;
        all.push(("a wrong checksum", packet));
        let mut packet = of(first().timestamps(7, 8));
        *packet.bytes.last_mut().unwrap() ^= flip;
        all.push(("a byte that has changed", packet));
    }
    all
}

fn odd_segments_are_left(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut stage = Stage::new(mode, 64, interface);
        let good = first().payload(HEAD).packet();
        stage.leaves(&good, "no ticket");
        stage.issue(LANE + 1, 1);
        stage.leaves(&good, "a ticket of another lane");
        stage.issue(LANE, 2);
        for (why, packet) in odd_segments() {
            stage.leaves(&packet, why);
        }
        let reset = first().flags(TcpFlags::ACK | TcpFlags::RST).payload(HEAD);
        assert_eq!(stage.fate(&reset.packet()), Fate::Drop, "of no connection");
        assert_eq!(stage.table.next_taken(LANE), None);
        for unknown in [
            &b"GET /b HTTP/1.1\r\nHost: a.example\r\n\r\n"[..],
            b"GET /a HTTP/1.1\r\nHost: b.example\r\n\r\n",
            &HEAD[..HEAD.len() - 1],
            b"\x16\x03\x01",
        ] {
            stage.leaves(&first().payload(unknown).packet(), "a head not learnt");
        }
        let of = |bytes: usize| {
            let mut payload = HEAD.to_vec();
            payload.resize(bytes, b'x');
            first().payload(payload).packet()
        };
        stage.leaves(&of(1_505), "too long");
        stage.leaves(&of(1_600), "too long");
        stage.begins(&of(1_504), 2);
        assert_eq!(stage.kernel.counters().unwrap().begun, 1);
    });
}

#[test]
fn tc_leaves_odd_first_segments_to_the_engine() {
    run(|| odd_segments_are_left(Mode::Tc));
}

#[test]
fn xdp_leaves_odd_first_segments_to_the_engine() {
    run(|| odd_segments_are_left(Mode::XdpNative));
}

/// Nothing is begun at an endpoint that does not say so, or for a client that was promised what is
/// promised no more.
fn what_was_offered_decides(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut stage = Stage::new(mode, 64, interface);
        stage.issue(LANE, 2);
        let other = Promise {
            scale_parity: !PROMISE.scale_parity,
            ..PROMISE
        };
        let of = |promise| {
            behind(endpoint(CLIENT), ISN, promise)
                .payload(HEAD)
                .packet()
        };
        stage.leaves(&of(other), "the scale before this one");
        offer(&mut stage.table, |offer| offer.begin = false);
        stage.leaves(&of(PROMISE), "nothing is begun here");
        offer(&mut stage.table, |offer| offer.answer = false);
        stage.leaves(&of(PROMISE), "the engine answers all");
        offer(&mut stage.table, |offer| offer.listen = 1);
        stage.leaves(&of(PROMISE), "learnt for another endpoint");
        offer(&mut stage.table, |offer| offer.window_scale = None);
        stage.leaves(&of(PROMISE), "no scale is offered any more");
        offer(&mut stage.table, |_| {});
        // Who does not scale was promised none of the two.
        let unscaled = Promise {
            window_scale: None,
            ..other
        };
        stage.begins(&of(unscaled), 2);
    });
}

#[test]
fn tc_begins_only_what_is_offered() {
    run(|| what_was_offered_decides(Mode::Tc));
}

#[test]
fn xdp_begins_only_what_is_offered() {
    run(|| what_was_offered_decides(Mode::XdpNative));
}

/// A bucket of the index without room: the ticket is nobody's, the packet the engine's.
#[test]
fn a_full_bucket_spoils_a_ticket() {
    run(|| {
        on_a_switch(|_, interface| {
            for mode in [Mode::Tc, Mode::XdpNative] {
                // So few records have one bucket, of eight entries.
                let mut stage = Stage::new(mode, 2, interface);
                stage.issue(LANE, 1);
                fill(&mut stage, 7);
                let good = first().payload(HEAD).packet();
                assert_eq!(stage.fate(&good), Fate::Pass);
                let begun = Begun {
                    line: Line(1),
                    place: 1,
                    taker: None,
                };
                assert_eq!(stage.table.next_taken(LANE), Some(begun));
                assert_eq!(stage.table.next_taken(LANE), None);
                assert_eq!(stage.kernel.counters().unwrap().begun, 0);
            }
        });
    });
}

/// Takes entries of the only bucket, for keys that lead to line 0.
fn fill(stage: &mut Stage, entries: u16) {
    for number in 0..entries {
        let key = FlowKey {
            src: endpoint(&format!("10.1.0.8:{}", 1_000 + number)),
            dst: endpoint(LISTEN),
        };
        stage.table.register(Line(0), &key);
        stage.table.client_key_superseded(Line(0));
    }
}

/// A connection at rest, whose client begins anew.
fn at_rest(stage: &mut Stage, isn: u32) -> [FlowKey; 2] {
    let client = endpoint(CLIENT);
    let record = Record {
        client_addr: client.addr,
        client_port: client.port,
        nat_port: 29_999,
        client_isn: isn,
        client_nxt: isn.wrapping_add(100),
        server_nxt: 100,
        state: State::TimeWait,
        ..Record::default()
    };
    let keys = [
        record.client_key(&endpoints()),
        record.server_key(&endpoints()),
    ];
    assert!(stage.table.offload(Line(0), &record, &keys[0], &keys[1]));
    keys
}

fn a_client_begins_anew(mode: Mode) {
    on_a_switch(|_, interface| {
        let good = first().payload(HEAD).packet();
        let mut stage = Stage::new(mode, 2, interface);
        stage.issue(LANE, 1);
        let keys = at_rest(&mut stage, ISN);
        stage.leaves(&good, "a late copy of its first bytes");
        stage.table.remove(Line(0), &keys[0], &keys[1]);
        // A full bucket: there is room for nothing, so the entry is the old one's.
        fill(&mut stage, 5);
        let keys = at_rest(&mut stage, ISN - 1);
        stage.begins(&good, 1);
        stage.table.client_key_superseded(Line(0));
        assert_eq!(stage.fate(&good), Fate::Pass, "on record");
        stage.joins(1, &good);
        // The old connection takes nothing with it.
        stage.table.remove(Line(0), &keys[0], &keys[1]);
        stage.table.flush();
        assert!(stage.forwards(&good));
        // And the new one leaves nothing behind: its entry is free for another.
        let record = Record {
            client_addr: endpoint(CLIENT).addr,
            client_port: endpoint(CLIENT).port,
            ..ticket_of(1)
        };
        let keys = [
            record.client_key(&endpoints()),
            record.server_key(&endpoints()),
        ];
        stage.table.remove(Line(1), &keys[0], &keys[1]);
        assert!(!stage.forwards(&good));
        stage.issue(LANE, 1);
        stage.begins(&good, 1);
        stage.joins(1, &good);
        assert_eq!(stage.kernel.counters().unwrap().begun, 2);
    });
}

#[test]
fn tc_begins_anew_for_a_client_at_rest() {
    run(|| a_client_begins_anew(Mode::Tc));
}

#[test]
fn xdp_begins_anew_for_a_client_at_rest() {
    run(|| a_client_begins_anew(Mode::XdpNative));
}
