//! Pairs that move while bytes pass: two ends, a proxy between them that hands off and takes back,
//! and links that lose one packet, at every place of an exchange in turn. Streams must be equal to
//! their ends, or end by exactly one RST at each end. All is drawn by a seed.
//!
//! Ends and proxy are small TCPs with go-back-N; time passes when no packet is on its way.

use std::collections::VecDeque;

use fairlead_base::{Endpoint, Instant, Packet};
use fairlead_datapath::{Config, Datapath, Line, PairKept, Pairing, Verdict};
use fairlead_tcp::pairing::{ESTABLISHED, Leg, Scales, Stamps};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{TcpFlags, options};

const MSS: usize = 100;
const WINDOW: u32 = 500;
/// `TCP_CLOSE_WAIT` of Linux: any state but established.
const CLOSING: u8 = 8;
/// Quiet periods after which a lock ends.
const LEASE: u32 = 3;
const STEPS_MAX: u64 = 20_000;

/// splitmix64
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % most
    }
}

/// One end of one connection.
#[derive(Clone, Debug)]
struct Tcp {
    local: Endpoint,
    peer: Endpoint,
    /// The number of the first byte of `out`, and of the next to send.
    una: u32,
    nxt: u32,
    out: Vec<u8>,
    wants_fin: bool,
    fin_acked: bool,
    rcv_nxt: u32,
    read: Vec<u8>,
    peer_fin: bool,
    resets: u32,
    /// What is added to the time for timestamps, and the peer's last one.
    clock: Option<u32>,
    echo: u32,
}

impl Tcp {
    fn new(ends: [Endpoint; 2], numbers: [u32; 2], clock: Option<u32>) -> Self {
        Self {
            local: ends[0],
            peer: ends[1],
            una: numbers[0],
            nxt: numbers[0],
            out: Vec::new(),
            wants_fin: false,
            fin_acked: false,
            rcv_nxt: numbers[1],
            read: Vec::new(),
            peer_fin: false,
            resets: 0,
            clock,
            echo: 0,
        }
    }

    fn segment(&self, now: u32, seq: u32, payload: &[u8], fin: bool) -> Packet {
        let mut flags = TcpFlags::ACK;
        if fin {
            flags |= TcpFlags::FIN;
        }
        let made = segment(self.local, self.peer)
            .seq(seq)
            .ack(self.rcv_nxt)
            .flags(flags);
        let made = made.window(WINDOW as u16).payload(payload);
        match self.clock {
            Some(clock) => made.timestamps(now.wrapping_add(clock), self.echo).packet(),
            None => made.packet(),
        }
    }

    fn acknowledgement(&self, now: u32) -> Packet {
        self.segment(now, self.nxt, &[], false)
    }

    /// From before the window: the peer answers at once.
    fn question(&self, now: u32) -> Packet {
        self.segment(now, self.una.wrapping_sub(1), &[], false)
    }

    /// What the window allows.
    fn transmit(&mut self, now: u32, to: &mut Vec<Packet>) {
        loop {
            let sent = self.nxt.wrapping_sub(self.una);
            let from = (sent as usize).min(self.out.len());
            let room = (WINDOW.saturating_sub(sent) as usize).min(MSS);
            let until = (from + room).min(self.out.len());
            let is_last = until == self.out.len();
            let is_fin_due = self.wants_fin && !self.fin_acked && sent as usize <= self.out.len();
            let fin = is_last && is_fin_due && room > 0;
            if until == from && !fin {
                return;
            }
            let bytes = self.out[from..until].to_vec();
            to.push(self.segment(now, self.nxt, &bytes, fin));
            self.nxt = self.nxt.wrapping_add(bytes.len() as u32 + u32::from(fin));
        }
    }

    /// Time has passed: sends again what was not acknowledged.
    fn time_out(&mut self, now: u32, to: &mut Vec<Packet>) {
        if self.resets == 0 {
            self.nxt = self.una;
            self.transmit(now, to);
        }
    }

    fn receive(&mut self, now: u32, packet: &Packet, to: &mut Vec<Packet>) {
        if self.resets > 0 {
            return; // its user has heard of it
        }
        let header = tcp(packet);
        assert!(header.checksum_valid(&packet.bytes), "{header:?}");
        if header.flags.contains(TcpFlags::RST) {
            match header.seq.0.wrapping_sub(self.rcv_nxt) {
                0 => self.resets += 1,
                // RFC 5961, section 3.2: it is challenged.
                1..=WINDOW => to.push(self.acknowledgement(now)),
                _ => {} // of an older packet
            }
            return;
        }
        let payload = &packet.bytes[packet.bytes.len() - header.payload_len()..];
        if self.clock.is_some() {
            let stamps = options::timestamps(header.options(&packet.bytes));
            let value = stamps.expect("they were agreed").value;
            let is_older = (value.wrapping_sub(self.echo) as i32) < 0;
            assert!(!is_older || self.echo == 0, "{value} after {}", self.echo);
            self.echo = value;
        }
        let acked = header.ack.0.wrapping_sub(self.una);
        assert!(
            acked as i32 <= self.limit() as i32,
            "never sent: {acked} {self:?}"
        );
        if acked as i32 > 0 {
            let bytes = (acked as usize).min(self.out.len());
            self.fin_acked |= acked as usize > self.out.len();
            self.out.drain(..bytes);
            self.una = header.ack.0;
            if (self.nxt.wrapping_sub(self.una) as i32) < 0 {
                self.nxt = self.una;
            }
        }
        let fin = header.flags.contains(TcpFlags::FIN);
        let ahead = self.rcv_nxt.wrapping_sub(header.seq.0);
        let in_order = ahead as usize <= payload.len();
        if in_order && !self.peer_fin {
            let new = &payload[ahead as usize..];
            self.read.extend(new);
            self.rcv_nxt = self.rcv_nxt.wrapping_add(new.len() as u32);
            if fin {
                self.peer_fin = true;
                self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
            }
        }
        // An empty one from before the window is a question.
        let is_question = ahead as i32 > 0;
        if !payload.is_empty() || fin || is_question {
            to.push(self.acknowledgement(now));
        }
        self.transmit(now, to);
    }

    /// The most that a peer may acknowledge.
    fn limit(&self) -> u32 {
        self.out.len() as u32 + u32::from(self.wants_fin && !self.fin_acked)
    }

    fn leg(&self, now: u32, peer_clock: Option<u32>) -> Leg {
        let is_open = !self.wants_fin && !self.peer_fin;
        Leg {
            local: self.local,
            peer: self.peer,
            state: if is_open { ESTABLISHED } else { CLOSING },
            rcv_nxt: self.rcv_nxt,
            write_seq: self.una.wrapping_add(self.out.len() as u32),
            unread: self.read.len() as u32,
            unacknowledged: self.out.len() as u32,
            timestamps: self.clock.zip(peer_clock).map(|(clock, peer)| Stamps {
                own: now.wrapping_add(clock),
                peer,
            }),
            sack: false,
            scales: Some(Scales { peer: 0, own: 0 }),
            ecn: false,
            mss: 1_460,
            own_mss: 1_460,
            window: WINDOW,
            window_max: WINDOW,
            promised: WINDOW,
        }
    }
}

/// Who carries the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carrier {
    Proxy,
    /// Data is dropped until all is acknowledged.
    Locked {
        quiet: u32,
    },
    Record {
        line: Line,
        number: u64,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    adopted: u32,
    refused: u32,
    given_back: u32,
    resets: u32,
    packets: u64,
}

/// The client, the server, and the proxy's legs towards them; what was sent by each end.
struct World {
    ends: [Tcp; 2],
    legs: [Tcp; 2],
    before: [Leg; 2],
    streams: [Vec<u8>; 2],
    datapath: Datapath,
    carrier: Carrier,
    /// While it is locked: clocks of both ends.
    seen: [Option<u32>; 2],
    /// True for packets to the box in the middle.
    flying: VecDeque<(bool, Packet)>,
    /// The packet that is lost.
    lost: u64,
    /// When it moves next, in packets.
    moves: Vec<u64>,
    /// The record is ended by then.
    aborts: Option<u64>,
    now: u32,
    tally: Tally,
}

impl World {
    fn new(seed: u64, lost: u64) -> Self {
        let mut dice = Dice(seed);
        let [client, listen, source, server] = [
            "10.1.0.10:4000",
            "10.1.0.2:80",
            "10.2.0.254:5000",
            "10.2.0.1:8080",
        ]
        .map(endpoint);
        let mut number = || match dice.below(3) {
            0 => (dice.below(2_000) as u32).wrapping_sub(1_000), // wraps
            1 => (1 << 31) - dice.below(1_000) as u32,
            _ => dice.below(1 << 32) as u32,
        };
        let numbers = [number(), number(), number(), number()];
        let has_clocks = dice.below(3) > 0;
        let mut clock = || has_clocks.then(|| dice.below(1 << 32) as u32 | 1);
        let clocks = [clock(), clock(), clock(), clock()];
        let [c, to_c, to_s, s] = numbers;
        let mut ends = [
            Tcp::new([client, listen], [c, to_c], clocks[0]),
            Tcp::new([server, source], [s, to_s], clocks[1]),
        ];
        let legs = [
            Tcp::new([listen, client], [to_c, c], clocks[2]),
            Tcp::new([source, server], [to_s, s], clocks[3]),
        ];
        let mut stream = || {
            let bytes = 1_500 + dice.below(3_000);
            (0..bytes)
                .map(|_| dice.below(256) as u8)
                .collect::<Vec<u8>>()
        };
        let streams = [stream(), stream()];
        for (end, stream) in ends.iter_mut().zip(&streams) {
            end.out = stream.clone();
            end.wants_fin = true;
        }
        let mut at = dice.below(30);
        let mut moves = Vec::new();
        for _ in 0..dice.below(8) + 1 {
            moves.insert(0, at);
            at += dice.below(90);
        }
        let aborts = (dice.below(5) == 0).then(|| 20 + dice.below(60));
        let config = Config {
            pairs: 2,
            ..Config::new(Vec::new(), Vec::new())
        };
        let before = [legs[0].leg(0, None), legs[1].leg(0, None)];
        Self {
            ends,
            legs,
            before,
            streams,
            datapath: Datapath::new(config, seed.into(), Instant::from_millis(0)).unwrap(),
            carrier: Carrier::Proxy,
            seen: [None; 2],
            flying: VecDeque::new(),
            lost,
            moves,
            aborts,
            now: 1,
            tally: Tally::default(),
        }
    }

    fn time(&self) -> Instant {
        Instant::from_millis(self.now.into())
    }

    /// Puts packets on their way: those of ends come to the box, others to the ends.
    fn send(&mut self, to_box: bool, packets: Vec<Packet>) {
        for packet in packets {
            let is_lost = self.tally.packets == self.lost;
            self.tally.packets += 1;
            if !is_lost {
                self.flying.push_back((to_box, packet));
            }
        }
    }

    fn is_over(&self) -> bool {
        let is_done = |end: &Tcp| end.fin_acked && end.peer_fin;
        self.ends.iter().all(|end| is_done(end) || end.resets > 0)
    }

    fn run(mut self) -> Tally {
        let mut steps = 0;
        while !self.is_over() {
            steps += 1;
            assert!(
                steps < STEPS_MAX,
                "it hangs: {:?} {:?}",
                self.carrier,
                self.tally
            );
            self.now += 1;
            match self.flying.pop_front() {
                Some((true, packet)) => self.at_the_box(packet),
                Some((false, packet)) => {
                    let at = usize::from(tcp(&packet).key.dst == self.ends[1].local);
                    let mut answers = Vec::new();
                    self.ends[at].receive(self.now, &packet, &mut answers);
                    self.send(true, answers);
                }
                None => self.quiet(),
            }
            self.proceed();
            self.datapath.check_invariants();
        }
        for (at, end) in self.ends.iter().enumerate() {
            let sent = &self.streams[1 - at];
            match end.resets {
                0 => assert!(end.read == *sent, "another stream"),
                once => {
                    assert_eq!(once, 1);
                    assert!(sent.starts_with(&end.read), "another stream");
                    self.tally.resets += 1;
                }
            }
        }
        self.tally
    }

    /// Nothing is on its way: all time out.
    fn quiet(&mut self) {
        self.now += 200;
        let mut packets = Vec::new();
        self.ends
            .iter_mut()
            .for_each(|end| end.time_out(self.now, &mut packets));
        self.send(true, packets);
        let mut packets = Vec::new();
        match &mut self.carrier {
            Carrier::Record { .. } => return,
            Carrier::Locked { quiet } => {
                *quiet += 1;
                if *quiet == LEASE {
                    self.carrier = Carrier::Proxy;
                    self.tally.refused += 1;
                }
                self.legs
                    .iter()
                    .for_each(|leg| packets.push(leg.question(self.now)));
            }
            Carrier::Proxy => {}
        }
        self.legs
            .iter_mut()
            .for_each(|leg| leg.time_out(self.now, &mut packets));
        self.send(false, packets);
    }

    fn at_the_box(&mut self, mut packet: Packet) {
        let header = tcp(&packet);
        let at = usize::from(header.key.src == self.ends[1].local);
        match self.carrier {
            Carrier::Record { .. } => {
                let now = self.time();
                if self.datapath.handle_packet(now, &mut packet) == Verdict::Transmit {
                    self.send(false, vec![packet]);
                } else if self.datapath.pair_count() == 0 {
                    // The kernel of the box knows no such connection.
                    let reset = segment(header.key.dst, header.key.src).flags(TcpFlags::RST);
                    self.send(false, vec![reset.seq(header.ack.0).packet()]);
                }
                let mut own = Packet::default();
                while self.datapath.poll_transmit(&mut own) {
                    self.send(false, vec![own.clone()]);
                }
                return;
            }
            Carrier::Locked { .. } => {
                let stamps = options::timestamps(header.options(&packet.bytes));
                self.seen[at] = stamps.map(|stamps| stamps.value).or(self.seen[at]);
                if header.payload_len() > 0 || header.flags.contains(TcpFlags::FIN) {
                    return;
                }
            }
            Carrier::Proxy => {}
        }
        let mut answers = Vec::new();
        self.legs[at].receive(self.now, &packet, &mut answers);
        self.send(false, answers);
    }

    /// What the proxy and the switch do by themselves.
    fn proceed(&mut self) {
        let is_due = self
            .moves
            .last()
            .is_some_and(|at| *at <= self.tally.packets);
        match self.carrier {
            Carrier::Record { line, number } => {
                if self.aborts.is_some_and(|at| at <= self.tally.packets) {
                    self.abort(line, number);
                } else if is_due {
                    self.give_back(line, number);
                }
            }
            Carrier::Locked { .. } => {
                self.pass_on();
                self.adopt();
            }
            Carrier::Proxy => {
                self.pass_on();
                if is_due {
                    self.moves.pop();
                    self.carrier = Carrier::Locked { quiet: 0 };
                    self.seen = [None; 2];
                    let questions = self.legs.iter().map(|leg| leg.question(self.now));
                    let questions = questions.collect();
                    self.send(false, questions);
                }
            }
        }
    }

    /// The proxy copies, as far as the other leg takes it.
    fn pass_on(&mut self) {
        let mut packets = Vec::new();
        for from in [0, 1] {
            let bytes = std::mem::take(&mut self.legs[from].read);
            let ends = self.legs[from].peer_fin;
            let to = &mut self.legs[1 - from];
            to.out.extend(bytes);
            to.wants_fin |= ends;
            to.transmit(self.now, &mut packets);
        }
        self.send(false, packets);
    }

    fn adopt(&mut self) {
        let is_empty = |leg: &Tcp| leg.read.is_empty() && leg.out.is_empty();
        let knows = |at: usize| self.legs[at].clock.is_none() || self.seen[at].is_some();
        if !self.legs.iter().all(is_empty) || !knows(0) || !knows(1) {
            return;
        }
        let legs = [0, 1].map(|at| self.legs[at].leg(self.now, self.seen[at]));
        let now = self.time();
        let Ok(pairing) = Pairing::of(&legs[0], &legs[1]) else {
            self.carrier = Carrier::Proxy; // an end has closed
            self.tally.refused += 1;
            return;
        };
        let (line, number) = self.datapath.adopt_pair(now, &pairing, &[]).unwrap();
        self.before = legs;
        self.carrier = Carrier::Record { line, number };
        self.tally.adopted += 1;
    }

    fn give_back(&mut self, line: Line, number: u64) {
        let released = match self.datapath.release_pair(self.time(), line, number) {
            Ok(released) => released,
            Err(PairKept::Busy) => return, // at the next packet
            Err(PairKept::Gone) => return self.moves.clear(),
        };
        self.moves.pop();
        let pair = released.pair;
        let legs = Pairing::returned(self.before, &released.record, &pair.second, pair.seen);
        for (leg, state) in self.legs.iter_mut().zip(legs) {
            let stamps = state.timestamps;
            let clock = stamps.map(|stamps| stamps.own.wrapping_sub(self.now));
            let numbers = [state.write_seq, state.rcv_nxt];
            *leg = Tcp::new([state.local, state.peer], numbers, clock);
        }
        self.carrier = Carrier::Proxy;
        self.tally.given_back += 1;
        let questions = self.legs.iter().map(|leg| leg.question(self.now));
        let questions = questions.collect();
        self.send(false, questions);
    }

    fn abort(&mut self, line: Line, number: u64) {
        self.aborts = None;
        if !self.datapath.end_pair(self.time(), line, number) {
            return;
        }
        // What it says, nobody loses: nothing would repeat it.
        let mut own = Packet::default();
        while self.datapath.poll_transmit(&mut own) {
            self.flying.push_back((false, own.clone()));
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let one = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    match one("FAIRLEAD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..one("FAIRLEAD_SIM_SEEDS").unwrap_or(10).min(300),
    }
}

#[test]
fn streams_are_whole_whichever_packet_is_lost() {
    let (mut adopted, mut refused, mut back, mut resets, mut worlds) = (0, 0, 0, 0, 0);
    for seed in seeds() {
        let mut lost = u64::MAX; // none, at first
        let mut packets = 0;
        loop {
            let ran = std::panic::catch_unwind(|| World::new(seed, lost).run());
            let tally = ran.unwrap_or_else(|_| panic!("seed {seed}, packet {lost} lost"));
            adopted += tally.adopted;
            refused += tally.refused;
            back += tally.given_back;
            resets += tally.resets;
            worlds += 1;
            packets = packets.max(tally.packets);
            lost = lost.wrapping_add(1);
            if lost >= packets {
                break;
            }
        }
    }
    println!("{worlds} worlds: {adopted} adopted, {refused} refused, {back} back, {resets} resets");
    assert!(adopted > worlds && back > worlds / 2, "they moved");
    assert!(seeds().count() < 100 || (refused > 0 && resets > 0));
}
