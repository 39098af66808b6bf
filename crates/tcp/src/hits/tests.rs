//! A client, a lossy line, the kernel's part, and the front behind it: every byte arrives as it was
//! meant, or the connection ends by a RST, and nobody waits forever.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::Rng;
use fairlead_wire::{Classified, classify};

use super::*;
use crate::cookie::Promise;

const KEYS: (u64, u64) = (11, 13);
const LISTEN: HitListen = HitListen {
    index: 3,
    mss: 1_460,
    window_scale: Some(7),
    scale_parity: true,
};
const MILLISECOND: u64 = 1_000_000;
/// Long enough for any number of repetitions here.
const TOO_LONG: u64 = 100_000 * MILLISECOND;
const AGE_AT: usize = 20;
const KEEP_AT: usize = 44;
const SIZES: [usize; 3] = [700, 1_448, 2_500];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// The response of this number.
    Hit(usize),
    /// The same, and it is the last one.
    Last(usize),
    /// One that only the front has.
    Other,
}

/// What goes wrong, and when: by the number of a packet on the line.
#[derive(Clone, Debug, Default)]
struct Mishaps {
    lost: BTreeSet<usize>,
    purged: Option<usize>,
    removed: Option<usize>,
    stale: Option<usize>,
    /// So often the front does not take the connection.
    refusals: usize,
    /// Of a million packets: lost, sent twice, held up.
    random: Option<(Rng, [u32; 3])>,
}

fn request(ask: Ask) -> Vec<u8> {
    let (path, field) = match ask {
        Ask::Hit(number) => (format!("/{number}"), ""),
        Ask::Last(number) => (format!("/{number}"), "Connection: close\r\n"),
        Ask::Other => ("/other".to_owned(), "Range: bytes=0-\r\n"),
    };
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n{field}\r\n").into_bytes()
}

fn stored(number: usize) -> Vec<u8> {
    let bytes = 0..SIZES[number];
    let mut all: Vec<u8> = bytes.map(|at| b'a' + ((at + number) % 23) as u8).collect();
    all[AGE_AT..AGE_AT + FIELD].fill(0);
    all[KEEP_AT..KEEP_AT + FIELD].fill(0);
    all
}

/// What a client gets, with the digits of `Age` as zeros.
fn response(ask: Ask) -> Vec<u8> {
    let (number, keep) = match ask {
        Ask::Hit(number) => (number, b"keep-alive"),
        Ask::Last(number) => (number, b"close     "),
        Ask::Other => return vec![b'o'; 900],
    };
    let mut all = stored(number);
    all[AGE_AT..AGE_AT + FIELD].fill(b'0');
    all[KEEP_AT..KEEP_AT + FIELD].copy_from_slice(keep);
    all
}

/// One end of a TCP connection: sends what it is given until that is acknowledged, and puts what it
/// hears in order.
struct End {
    key: FlowKey,
    una: u32,
    /// Not acknowledged yet, from `una` on.
    out: Vec<u8>,
    /// A FIN was sent, and is not acknowledged.
    has_finished: bool,
    finishes: bool,
    nxt: u32,
    early: BTreeMap<u32, (Vec<u8>, bool)>,
    got: Vec<u8>,
    got_from: u32,
    heard_end: bool,
    timer: Option<(u64, u64)>,
    stamps: Option<u32>,
}

impl End {
    fn new(key: FlowKey, una: u32, nxt: u32, stamps: bool) -> Self {
        Self {
            key,
            una,
            out: Vec::new(),
            has_finished: false,
            finishes: false,
            nxt,
            early: BTreeMap::new(),
            got: Vec::new(),
            got_from: nxt,
            heard_end: false,
            timer: None,
            stamps: stamps.then_some(0),
        }
    }

    fn finish(&mut self) {
        self.has_finished |= !self.finishes;
        self.finishes = true;
    }

    fn is_all_acked(&self) -> bool {
        self.out.is_empty() && !self.has_finished
    }

    fn segment(&self, now: u64, seq: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(echo) = self.stamps {
            options.extend([1, 1, 8, 10]);
            options.extend(((now / MILLISECOND) as u32).to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        let mut bytes = Vec::new();
        TcpRepr {
            key: self.key,
            seq: SeqNumber(seq),
            ack: SeqNumber(self.nxt),
            flags,
            window: 5_000,
            options: &options,
            payload,
            ttl: 64,
        }
        .emit(&mut bytes);
        bytes
    }

    /// All that is not acknowledged, in segments.
    fn outstanding(&mut self, now: u64) -> Vec<Vec<u8>> {
        let (_, patience) = self.timer.unwrap_or((0, 150 * MILLISECOND));
        let patience = (2 * patience).min(3_000 * MILLISECOND);
        self.timer = (!self.is_all_acked()).then_some((now + patience, patience));
        let mut sent = Vec::new();
        for (at, piece) in self.out.chunks(1_400).enumerate() {
            let flags = TcpFlags::ACK | TcpFlags::PSH;
            sent.push(self.segment(now, self.una + 1_400 * at as u32, flags, piece));
        }
        if self.has_finished {
            let seq = self.una + self.out.len() as u32;
            sent.push(self.segment(now, seq, FIN_ACK, &[]));
        }
        sent
    }

    /// Takes what a segment says; whether it is to be acknowledged.
    fn hear(&mut self, tcp: &TcpPacket, payload: &[u8], stamp: Option<u32>) -> bool {
        if let Some(stamps) = &mut self.stamps {
            *stamps = stamp.expect("timestamps, as agreed");
        }
        let acked = tcp.ack.0.wrapping_sub(self.una) as usize;
        let all = self.out.len() + usize::from(self.has_finished);
        if (1..=all).contains(&acked) {
            self.has_finished &= acked <= self.out.len();
            self.out.drain(..acked.min(self.out.len()));
            self.una = tcp.ack.0;
            self.timer = self.timer.filter(|_| !self.is_all_acked());
        }
        let is_end = tcp.flags.intersects(TcpFlags::FIN);
        if payload.is_empty() && !is_end {
            return false;
        }
        // What came before must be the same bytes.
        let from = tcp.seq.0.wrapping_sub(self.got_from) as usize;
        if let Some(known) = self.got.get(from..) {
            let both = known.len().min(payload.len());
            assert_eq!(known[..both], payload[..both], "other bytes at {from}");
        }
        self.early.insert(tcp.seq.0, (payload.to_vec(), is_end));
        let behind = |nxt: u32, seq: &u32| nxt.wrapping_sub(*seq).cast_signed();
        while let Some(seq) = self
            .early
            .keys()
            .copied()
            .find(|seq| behind(self.nxt, seq) >= 0)
        {
            let (bytes, ends) = self.early.remove(&seq).unwrap_or_default();
            let known = behind(self.nxt, &seq) as usize;
            let fresh = bytes.get(known..).unwrap_or_default();
            self.nxt = self.nxt.wrapping_add(fresh.len() as u32);
            self.got.extend_from_slice(fresh);
            if ends && !self.heard_end {
                self.heard_end = true;
                self.nxt = self.nxt.wrapping_add(1);
            }
        }
        true
    }
}

struct World {
    now: u64,
    hits: Hits,
    client: End,
    front: Option<End>,
    front_read: usize,
    /// The number of the client's first byte.
    first: u32,
    is_reset: bool,
    /// The client acknowledges what comes in order with its next request.
    delays: bool,
    /// By when they arrive, and their number: to the client, or from it.
    line: BTreeMap<(u64, usize), (bool, Vec<u8>)>,
    sent: usize,
    mishaps: Mishaps,
}

fn endpoint(text: &str) -> Endpoint {
    text.parse::<core::net::SocketAddr>().unwrap().into()
}

impl World {
    fn new(v4: bool, stamps: bool, mishaps: Mishaps) -> Self {
        let key = FlowKey {
            src: endpoint(if v4 {
                "10.1.0.9:4000"
            } else {
                "[fd01::9]:4000"
            }),
            dst: endpoint(if v4 { "10.1.0.3:80" } else { "[fd01::3]:80" }),
        };
        let cookies = CookieKey::new(KEYS.0, KEYS.1);
        let mut hits = Hits::new(cookies, 10);
        hits.listen(key.dst, LISTEN);
        let now = 5_000 * MILLISECOND;
        for number in 0..SIZES.len() {
            let object = HitObject {
                bytes: stored(number),
                age_at: AGE_AT as u16,
                keep_at: KEEP_AT as u16,
                born_ns: 0,
            };
            hits.add(1 + number as u64, object);
            let head = hit_head(&request(Ask::Hit(number)), LISTEN.index, KEYS).unwrap();
            hits.offer(head.hash, 1 + number as u64, u64::MAX);
        }
        let promise = Promise {
            mss: 1_460,
            window_scale: Some(2),
            sack: true,
            scale_parity: LISTEN.scale_parity,
        };
        let isn = u32::MAX - 300;
        let at = Instant::from_nanos(now);
        let cookie = cookies.make(&key, SeqNumber(isn), at, promise);
        Self {
            now,
            hits,
            client: End::new(key, isn.wrapping_add(1), cookie.0.wrapping_add(1), stamps),
            front: None,
            front_read: 0,
            first: isn.wrapping_add(1),
            is_reset: false,
            delays: false,
            line: BTreeMap::new(),
            sent: 0,
            mishaps,
        }
    }

    fn send(&mut self, to_client: bool, packets: Vec<Vec<u8>>) {
        for packet in packets {
            // A client that misses it is left to its own timers.
            let Ok(Classified::Tcp(tcp)) = classify(&packet) else {
                panic!("no TCP");
            };
            self.is_reset |= tcp.flags.intersects(TcpFlags::RST);
            let number = self.sent;
            self.sent += 1;
            let (mut copies, mut delay) = (1, MILLISECOND);
            if let Some((rng, [lost, twice, held])) = &mut self.mishaps.random {
                copies += usize::from(rng.chance(*twice));
                copies *= usize::from(!rng.chance(*lost));
                delay += u64::from(rng.chance(*held)) * u64::from(rng.below(40)) * MILLISECOND;
            }
            if self.mishaps.purged == Some(number) {
                self.hits.purge();
            }
            if self.mishaps.removed == Some(number) {
                self.hits.purge();
                (1..=SIZES.len()).for_each(|object| self.hits.remove(object as u64));
            }
            if self.mishaps.stale == Some(number) {
                for object in 0..SIZES.len() {
                    let head = request(Ask::Hit(object));
                    let hash = hit_head(&head, LISTEN.index, KEYS).unwrap().hash;
                    self.hits.offer(hash, 1 + object as u64, self.now);
                }
            }
            if self.mishaps.lost.contains(&number) {
                continue;
            }
            for copy in 0..copies {
                let at = (self.now + delay + copy as u64, number);
                self.line.insert(at, (to_client, packet.clone()));
            }
        }
    }

    fn arrive(&mut self, to_client: bool, bytes: &[u8]) {
        let Ok(Classified::Tcp(tcp)) = classify(bytes) else {
            panic!("no TCP");
        };
        assert!(tcp.checksum_valid(bytes));
        let options = tcp.options(bytes);
        let stamp = options.get(4..8);
        let stamp = stamp.map(|four| u32::from_be_bytes(*four.first_chunk().unwrap()));
        if to_client {
            if self.is_reset {
                return;
            }
            let is_next = tcp.seq.0 == self.client.nxt && self.delays;
            if self.client.hear(&tcp, tcp.payload(bytes), stamp) && !is_next {
                let (una, out) = (self.client.una, self.client.out.len() as u32);
                let seq = una.wrapping_add(out + u32::from(self.client.has_finished));
                let ack = self.client.segment(self.now, seq, TcpFlags::ACK, &[]);
                self.send(false, vec![ack]);
            }
            return;
        }
        if self.front.is_none() {
            let is_taken = self.mishaps.refusals == 0;
            match self.hits.handle(self.now, &tcp, bytes, is_taken) {
                // The engine has the front serve whoever has proved itself.
                HitVerdict::Pass if tcp.seq.0 != self.first || tcp.payload(bytes).is_empty() => {
                    return;
                }
                HitVerdict::Drop => {
                    let asks = !tcp.payload(bytes).is_empty();
                    self.mishaps.refusals -= usize::from(asks && !is_taken);
                    return;
                }
                HitVerdict::Send(packets) => return self.send(true, packets),
                HitVerdict::Give | HitVerdict::Pass => {
                    let key = FlowKey {
                        src: tcp.key.dst,
                        dst: tcp.key.src,
                    };
                    let stamps = self.client.stamps.is_some();
                    self.front = Some(End::new(key, tcp.ack.0, tcp.seq.0, stamps));
                }
            }
        }
        self.front_hears(&tcp, bytes, stamp);
    }

    fn front_hears(&mut self, tcp: &TcpPacket, bytes: &[u8], stamp: Option<u32>) {
        self.hits.taken(&tcp.key);
        let now = self.now;
        let Some(front) = &mut self.front else { return };
        if !front.hear(tcp, tcp.payload(bytes), stamp) {
            return;
        }
        let got = front.got[self.front_read..].to_vec();
        let known = [0, 1, 2].into_iter();
        let known = known.flat_map(|number| [Ask::Hit(number), Ask::Last(number)]);
        for ask in known.chain([Ask::Other]).filter(|ask| request(*ask) == got) {
            self.front_read += got.len();
            front.out.extend(response(ask));
            if matches!(ask, Ask::Last(_)) {
                front.finish();
            }
        }
        if front.heard_end {
            front.finish();
        }
        let mut packets = front.outstanding(now);
        packets.push(front.segment(now, front.una, TcpFlags::ACK, &[]));
        self.send(true, packets);
    }

    /// Lets time pass until the line is silent, or something is to be sent once more.
    fn step(&mut self) {
        let tick = self.now / (100 * MILLISECOND) * 100 * MILLISECOND + 100 * MILLISECOND;
        let arrives = self.line.keys().next().map(|(at, _)| *at);
        let front = self.front.as_ref().and_then(|one| one.timer);
        let timers = [self.client.timer, front].into_iter().flatten();
        let next = timers.map(|(at, _)| at).chain(arrives).chain([tick]);
        self.now = next.min().unwrap_or(tick).max(self.now);
        while let Some(entry) = self.line.first_entry()
            && entry.key().0 <= self.now
        {
            let (to_client, bytes) = entry.remove();
            self.arrive(to_client, &bytes);
        }
        let now = self.now;
        let is_due = |end: &End| end.timer.is_some_and(|(at, _)| at <= now);
        if is_due(&self.client) && !self.is_reset {
            let packets = self.client.outstanding(now);
            self.send(false, packets);
        }
        if let Some(front) = self.front.as_mut().filter(|one| is_due(one)) {
            let packets = front.outstanding(now);
            self.send(true, packets);
        }
        if now == tick {
            let packets = self.hits.tend(now);
            self.send(true, packets);
        }
    }

    /// Both have closed. A client whose last FIN is not answered gives up by itself: nobody has a
    /// record of its connection for longer than a second.
    fn has_ended(&self) -> bool {
        let known = self.hits.connection(&self.client.key);
        let is_heard = self.client.is_all_acked() || known.is_none() && self.front.is_none();
        is_heard && self.client.heard_end || self.is_reset
    }

    /// Asks for all of it, one after the other, and closes. Whether the client has it all.
    fn run(&mut self, asks: &[Ask], case: &str) -> bool {
        let begun = self.now;
        let mut wanted = Vec::new();
        for ask in asks {
            wanted.extend(response(*ask));
            self.client.out.extend(request(*ask));
            let packets = self.client.outstanding(self.now);
            self.send(false, packets);
            while self.client.got.len() < wanted.len() && !self.is_reset {
                assert!(self.now - begun < TOO_LONG, "hangs: {case}");
                self.step();
            }
        }
        let got = without_ages(&self.client.got, asks);
        assert!(wanted.starts_with(&got), "other bytes: {case}");
        if self.is_reset {
            return false;
        }
        self.client.finish();
        let packets = self.client.outstanding(self.now);
        self.send(false, packets);
        while !self.has_ended() {
            assert!(self.now - begun < TOO_LONG, "does not end: {case}");
            self.step();
        }
        if self.is_reset {
            return false;
        }
        assert_eq!(self.client.got.len(), wanted.len(), "more bytes: {case}");
        while self.hits.connection(&self.client.key).is_some() {
            assert!(self.now - begun < 2 * TOO_LONG, "stays: {case}");
            self.step();
        }
        true
    }
}

/// With zeros for the digits of `Age`.
fn without_ages(got: &[u8], asks: &[Ask]) -> Vec<u8> {
    let (mut got, mut at) = (got.to_vec(), 0);
    for ask in asks {
        let age = at + AGE_AT..at + AGE_AT + FIELD;
        if let Some(digits) = got.get_mut(age).filter(|_| *ask != Ask::Other) {
            assert!(digits.iter().all(u8::is_ascii_digit));
            digits.fill(b'0');
        }
        at += response(*ask).len();
    }
    got
}

const ASKS: [&[Ask]; 6] = [
    &[Ask::Hit(0), Ask::Hit(2), Ask::Hit(1), Ask::Hit(2)],
    &[Ask::Hit(2), Ask::Last(2)],
    &[Ask::Last(1)],
    &[Ask::Hit(0), Ask::Last(0)],
    &[Ask::Hit(2), Ask::Other, Ask::Hit(2)],
    &[Ask::Hit(0), Ask::Other, Ask::Last(2)],
];

/// Runs all exchanges, with clients of all kinds, for what `mishaps` makes of the number of packets
/// that an exchange takes where nothing goes wrong. How many ended well, and by a RST.
fn run_all(mishaps: impl Fn(usize) -> Vec<Mishaps>) -> (usize, usize) {
    let (mut whole, mut reset) = (0, 0);
    for kind in 0..8 {
        let (v4, stamps, delays) = (kind & 1 == 0, kind & 2 == 0, kind & 4 == 0);
        for asks in ASKS {
            let world = |mishaps| World {
                delays,
                ..World::new(v4, stamps, mishaps)
            };
            let mut plain = world(Mishaps::default());
            assert!(plain.run(asks, "nothing goes wrong"));
            for mishaps in mishaps(plain.sent) {
                let case = format!("{v4} {stamps} {delays} {asks:?} {mishaps:?}");
                match world(mishaps).run(asks, &case) {
                    true => whole += 1,
                    false => reset += 1,
                }
            }
        }
    }
    (whole, reset)
}

/// One packet is lost, or two that are near each other.
fn losses(packets: usize) -> Vec<BTreeSet<usize>> {
    let pairs = |first| (0..6).map(move |more| BTreeSet::from([first, first + more]));
    (0..packets + 6).flat_map(pairs).collect()
}

#[test]
fn every_byte_arrives_wherever_packets_are_lost() {
    let (whole, reset) = run_all(|packets| {
        let losses = losses(packets).into_iter();
        let refused = |lost| {
            [0, 2].map(|refusals| Mishaps {
                lost: BTreeSet::clone(&lost),
                refusals,
                ..Mishaps::default()
            })
        };
        losses.flat_map(refused).collect()
    });
    assert!(whole > 5_000 && reset == 0, "{whole} {reset}");
}

#[test]
fn what_was_begun_ends_though_it_was_purged_or_stale_meanwhile() {
    let (whole, reset) = run_all(|packets| {
        let losses = losses(packets).into_iter();
        let purged = losses.flat_map(|lost| {
            let first = *lost.first().unwrap();
            let last = *lost.last().unwrap();
            [
                (Some(first), None),
                (Some(last), None),
                (None, Some(last + 1)),
            ]
            .map(|(purged, stale)| Mishaps {
                lost: lost.clone(),
                purged,
                stale,
                ..Mishaps::default()
            })
        });
        purged.collect()
    });
    assert!(whole > 5_000 && reset == 0, "{whole} {reset}");
}

#[test]
fn bytes_of_two_responses_are_never_mixed() {
    let (whole, reset) = run_all(|packets| {
        let losses = losses(packets).into_iter();
        let removed = losses.map(|lost| Mishaps {
            removed: lost.last().map(|last| last + 1),
            lost,
            ..Mishaps::default()
        });
        removed.collect()
    });
    assert!(whole > 1_000 && reset > 100, "{whole} {reset}");
}

#[test]
fn every_byte_arrives_over_bad_lines() {
    let (whole, reset) = run_all(|packets| {
        let seeds = 0..30;
        let random = seeds.map(|seed| Mishaps {
            random: Some((Rng::new(seed + packets as u64), [150_000, 100_000, 200_000])),
            ..Mishaps::default()
        });
        random.collect()
    });
    assert!(whole > 1_000 && reset == 0, "{whole} {reset}");
}
