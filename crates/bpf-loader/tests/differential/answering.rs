//! Connections that the kernel answers (`bpf/lib/hits.h`) against their twin in Rust: packet by
//! packet the verdict, each byte that is sent, and what is known of the connection then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use fairlead_bpf_loader::{HitMaps, HitObject, HostPrograms, has_host_function, monotonic_ns};
use fairlead_tcp::{Hit, HitListen, HitVerdict, Hits};
use fairlead_wire::http::hit_head;

use super::*;

const CONNECTIONS: usize = 500;
const AGE_AT: u16 = 20;
const KEEP_AT: u16 = 44;
/// Within a segment, exactly one with and without timestamps, two, and too many.
const SIZES: [usize; 6] = [300, 1_448, 1_460, 2_500, 2_896, 2_920];
/// The test's clock and the program's may differ by this.
const SKEW_NS: u64 = 50_000;
const SECOND: u64 = 1_000_000_000;

/// What leaves by an interface, at its far end.
struct Sniffer(OwnedFd);

impl Sniffer {
    fn new(interface: u32) -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: makes a descriptor, touches no memory of ours.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
        assert!(fd >= 0, "a packet socket");
        // SAFETY: a descriptor that was just made and that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain old data of integers and a byte array; all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = interface as i32;
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an open socket, and an address of the length given.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        assert_eq!(bound, 0);
        Self(socket)
    }

    /// The next packet of a service, from its IP header on, if one has come or comes soon.
    fn next(&self, waits: bool) -> Option<Vec<u8>> {
        let mut frame = vec![0; 4_096];
        loop {
            let mut poll = libc::pollfd {
                fd: self.0.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, which is valid.
            let ready = unsafe { libc::poll(&raw mut poll, 1, if waits { 1_000 } else { 0 }) };
            if ready != 1 {
                return None;
            }
            // SAFETY: an open socket, and as many writable bytes as are named.
            let count = unsafe { libc::recv(poll.fd, frame.as_mut_ptr().cast(), frame.len(), 0) };
            let packet = frame.get(14..usize::try_from(count).unwrap_or(0));
            let is_ours = |packet: &&[u8]| {
                let Ok(fairlead_wire::Classified::Tcp(tcp)) = fairlead_wire::classify(packet)
                else {
                    return false;
                };
                tcp.key.src.port == 80
            };
            if let Some(packet) = packet.filter(is_ours) {
                return Some(packet.to_vec());
            }
        }
    }
}

fn request(number: usize, closes: bool) -> Vec<u8> {
    let field = if closes { "Connection: close\r\n" } else { "" };
    format!("GET /{number} HTTP/1.1\r\nHost: x\r\n{field}\r\n").into_bytes()
}

fn response(bytes: usize) -> Vec<u8> {
    let mut response: Vec<u8> = (0..bytes).map(|at| b'a' + (at % 23) as u8).collect();
    for at in [AGE_AT, KEEP_AT].map(usize::from) {
        response[at..at + 10].fill(0);
    }
    response
}

/// Program and twin, and what both know.
struct Pair {
    programs: HostPrograms,
    maps: HitMaps,
    twin: Hits,
    sniffer: Sniffer,
    interface: u32,
    origin: u64,
    listen: Endpoint,
    index: u16,
    /// What is offered, and what was.
    numbers: BTreeMap<usize, u64>,
    former: VecDeque<u64>,
    seen: BTreeMap<&'static str, u64>,
}

impl Pair {
    fn now(&self) -> u64 {
        monotonic_ns() - self.origin
    }

    /// Makes a response known to both, and offers it for so long.
    fn offer(&mut self, which: usize, fresh_ns: u64) {
        let bytes = response(SIZES[which]);
        let age_ns = 77 * SECOND;
        let object = HitObject {
            bytes: &bytes,
            age_at: AGE_AT,
            keep_at: KEEP_AT,
            age_ns,
        };
        let number = self.maps.add(&object).unwrap();
        let now = self.now();
        let twin = fairlead_tcp::HitObject {
            bytes: bytes.clone(),
            age_at: AGE_AT,
            keep_at: KEEP_AT,
            born_ns: now.wrapping_sub(age_ns),
        };
        self.twin.add(number, twin);
        let head = request(which, false);
        let key = self.maps.key(self.listen, &head).unwrap();
        self.maps.offer(key, number, fresh_ns).unwrap();
        let hash = hit_head(&head, self.index, COOKIE).unwrap().hash;
        self.twin.offer(hash, number, now + fresh_ns);
        let former = self.numbers.insert(which, number);
        self.former.extend(former);
        while self.former.len() > 100 {
            let oldest = self.former.pop_front().unwrap();
            self.forget(oldest);
        }
    }

    fn forget(&mut self, number: u64) {
        self.maps.remove(number);
        self.twin.remove(number);
    }

    fn remove(&mut self, which: usize) {
        if let Some(number) = self.numbers.remove(&which) {
            self.forget(number);
        }
    }

    fn known(&self, client: &FlowKey) -> Option<Hit> {
        let known = self.maps.connection(client)?;
        Some(Hit {
            since_ns: known.since_ns.wrapping_sub(self.origin),
            sent_ns: known.sent_ns.wrapping_sub(self.origin),
            ..known
        })
    }

    /// Both hear a segment.
    fn hear(&mut self, packet: &Packet, case: &str) -> &'static str {
        let frame = frame_of(packet);
        let before = self.now();
        let trial = self.programs.try_answer(&frame, self.interface).unwrap();
        let after = self.now();
        let Ok(fairlead_wire::Classified::Tcp(told)) = fairlead_wire::classify(&packet.bytes)
        else {
            panic!("no TCP");
        };
        let mut sent = Vec::new();
        let (what, wanted) = match trial.fate {
            Fate::Pass => ("pass", HitVerdict::Pass),
            Fate::Drop => ("drop", HitVerdict::Drop),
            Fate::Redirect => ("send", HitVerdict::Send(Vec::new())),
            other => panic!("{other:?}: {case}"),
        };
        if trial.fate == Fate::Redirect {
            let link = [&ETHERNET[6..], &ETHERNET[..6]].concat();
            assert_eq!(trial.frame[..12], link, "{case}");
            sent.push(trial.frame[14..].to_vec());
        } else if trial.fate == Fate::Pass {
            assert_eq!(trial.frame, frame, "left as it was: {case}");
        }
        // Some moment of the run must give the same.
        let mut moments = vec![before, before.saturating_sub(SKEW_NS)];
        moments.extend((before..after).step_by(1_000_000).skip(1));
        moments.extend([after, after + SKEW_NS]);
        let attempt = |now: u64| {
            let mut twin = self.twin.clone();
            let verdict = twin.handle(now, &told, &packet.bytes, false);
            (now, twin, verdict)
        };
        let (_, _, first) = attempt(before);
        // The first of two went out as a copy.
        if let (HitVerdict::Send(packets), Fate::Redirect) = (&first, trial.fate)
            && packets.len() == 2
        {
            sent.insert(0, self.sniffer.next(true).unwrap_or_default());
        }
        let wanted = match wanted {
            HitVerdict::Send(_) => HitVerdict::Send(sent),
            other => other,
        };
        let mut all = moments.into_iter().map(attempt);
        let Some((now, twin, _)) = all.find(|(_, _, verdict)| *verdict == wanted) else {
            panic!("{case}: {}\n{}", shown(&first), shown(&wanted));
        };
        drop(all);
        self.twin = twin;
        self.compare(&told.key, now, (before, after), case);
        what
    }

    /// What is known must be the same, but for how exactly times are.
    fn compare(&mut self, key: &FlowKey, now: u64, run: (u64, u64), case: &str) {
        let known = self.known(key);
        let (Some(real), Some(twin)) = (known, self.twin.connection(key).copied()) else {
            let twin = self.twin.connection(key);
            assert!(
                known.is_none() && twin.is_none(),
                "{case}: {known:?} {twin:?}"
            );
            return;
        };
        let during = run.0 - SKEW_NS..run.1 + SKEW_NS;
        for (real, twin) in [(real.since_ns, twin.since_ns), (real.sent_ns, twin.sent_ns)] {
            match twin == now {
                true => assert!(during.contains(&real), "{case}"),
                false => assert_eq!(real, twin, "{case}"),
            }
        }
        let expected = Hit {
            since_ns: real.since_ns,
            sent_ns: real.sent_ns,
            ..twin
        };
        assert_eq!(real, expected, "{case}");
        self.twin.set_connection(*key, real);
    }

    /// A connection gets older.
    fn age(&mut self, key: &FlowKey, by: u64) {
        let (Some(known), Some(mut raw)) = (self.known(key), self.maps.connection(key)) else {
            return;
        };
        raw.since_ns -= by;
        raw.sent_ns = raw.sent_ns.saturating_sub(by);
        self.maps.set_connection(key, &raw);
        let older = Hit {
            since_ns: known.since_ns.wrapping_sub(by),
            sent_ns: known.sent_ns.wrapping_sub(by),
            ..known
        };
        self.twin.set_connection(*key, older);
    }

    /// Both look for what is late.
    fn tend(&mut self, key: &FlowKey, case: &str) {
        let before = self.now();
        self.maps.tend().unwrap();
        let run = (before, self.now());
        let wanted = self.twin.tend(before);
        for packet in &wanted {
            let sent = self.sniffer.next(true).unwrap_or_default();
            let tcp = Packet::from_bytes(&sent);
            assert!(
                sent.len() == packet.len() && super::tcp(&tcp).checksum_valid(&sent),
                "{case}"
            );
            assert_eq!(without_clock(&sent), without_clock(packet), "{case}");
        }
        if !wanted.is_empty() {
            *self.seen.entry("tended").or_default() += 1;
        }
        assert_eq!(self.sniffer.next(false), None, "{case}");
        self.compare(key, before, run, case);
    }
}

fn shown(verdict: &HitVerdict) -> String {
    let HitVerdict::Send(packets) = verdict else {
        return format!("{verdict:?}");
    };
    let shown = packets
        .iter()
        .map(|bytes| format!("{:?} {} bytes", fairlead_wire::classify(bytes), bytes.len()));
    shown.collect::<Vec<_>>().join("; ")
}

/// A packet whose timestamp and checksum do not matter.
fn without_clock(bytes: &[u8]) -> Vec<u8> {
    let tcp = super::tcp(&Packet::from_bytes(bytes));
    let mut bytes = bytes.to_vec();
    let at = usize::from(tcp.tcp_at);
    bytes[at + 16..at + 18].fill(0);
    if tcp.payload_at - tcp.tcp_at == 32 {
        bytes[at + 24..at + 28].fill(0);
    }
    bytes
}

/// The beginning of a connection.
struct Peer {
    key: FlowKey,
    isn: u32,
    ack: u32,
    stamps: bool,
}

fn some_payload(rng: &mut Rng) -> Vec<u8> {
    let which = rng.below(SIZES.len() as u32) as usize;
    let mut bytes = request(which, rng.chance(150_000));
    match rng.below(12) {
        0 => b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        1 => bytes[..rng.below(bytes.len() as u32) as usize].to_vec(),
        2 => [bytes.clone(), bytes].concat(),
        3 => {
            let at = rng.below(bytes.len() as u32) as usize;
            bytes[at] = rng.next_u64() as u8;
            bytes
        }
        _ => bytes,
    }
}

/// A segment that a client may send, or somebody else in its name.
fn some_segment(rng: &mut Rng, peer: &Peer, known: Option<&Hit>) -> Packet {
    let fresh = Hit {
        rcv_nxt: peer.isn.wrapping_add(1),
        asked_at: peer.isn.wrapping_add(1),
        snd_nxt: peer.ack,
        answer_at: peer.ack,
        acked: peer.ack,
        ..Hit::default()
    };
    let hit = known.unwrap_or(&fresh);
    let near = rng.below(40);
    let seq = match rng.below(20) {
        0 | 1 => hit.asked_at,
        2 => peer.isn.wrapping_add(1),
        3 => hit.rcv_nxt.wrapping_add(near),
        4 => hit.rcv_nxt.wrapping_sub(1),
        5 => hit.rcv_nxt.wrapping_sub(near),
        6 if rng.chance(500_000) => rng.next_u64() as u32,
        _ => hit.rcv_nxt,
    };
    let ack = match rng.below(20) {
        0 => hit.answer_at,
        1 | 2 => hit.answer_at.wrapping_add(hit.segment.into()),
        3 => hit.acked,
        4 => hit.snd_nxt.wrapping_sub(1),
        5 => hit.answer_at.wrapping_add(rng.below(2_000)),
        6 => hit.snd_nxt.wrapping_add(1),
        7 => peer.ack,
        8 if rng.chance(300_000) => rng.next_u64() as u32,
        _ => hit.snd_nxt,
    };
    let flags = match rng.below(24) {
        0 | 1 => TcpFlags::FIN | TcpFlags::ACK,
        2 => TcpFlags::RST,
        3 => TcpFlags::RST | TcpFlags::ACK,
        4 => TcpFlags::SYN,
        5 => TcpFlags::PSH,
        6 => TcpFlags::ACK | TcpFlags::URG,
        7..14 => TcpFlags::ACK,
        _ => TcpFlags::ACK | TcpFlags::PSH,
    };
    let mut built = segment(peer.key.src, peer.key.dst)
        .seq(seq)
        .ack(ack)
        .flags(flags);
    if rng.chance(50_000) {
        built = built.window(rng.below(3_000) as u16);
    }
    let plain = flags == TcpFlags::ACK || flags == TcpFlags::ACK | TcpFlags::PSH;
    if rng.chance(if plain { 600_000 } else { 100_000 }) {
        built = built.payload(some_payload(rng));
    }
    let stamps = peer.stamps != rng.chance(20_000);
    if stamps {
        built = built.timestamps(rng.next_u64() as u32, rng.next_u64() as u32);
    } else if rng.chance(20_000) {
        built = built.sack(&[(hit.answer_at, hit.snd_nxt)]);
    }
    let mut packet = built.packet();
    if rng.chance(20_000) {
        let at = packet.bytes.len() - 1 - rng.below(4) as usize;
        packet.bytes[at] ^= 1 << rng.below(8);
    }
    packet
}

fn agree(interface: u32, seed: u64, (from, listen): (Endpoint, Endpoint)) {
    let origin = monotonic_ns() - 1_000 * SECOND;
    let (kernel, mut table) = kernel(Mode::Tc, origin);
    let index = u16::from(!listen.addr.is_v4());
    let offer = ListenOffer {
        listen: index,
        // Two headers and this are a packet of 1,500 bytes, which the far end takes.
        mss: 1_460 - 20 * index,
        ..OFFER
    };
    table.set_offer(listen, &offer);
    let (mut programs, _gives, _shown) = HostPrograms::load(None, 0).unwrap();
    let fronts = BTreeMap::from([(listen, endpoint("127.0.0.1:9"))]);
    let maps = programs.answer(&kernel, fronts).unwrap();
    programs
        .set(&[], "s", &BTreeSet::from([listen]), false)
        .unwrap();
    let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
    let mut twin = Hits::new(cookies, 65_536);
    let at = HitListen {
        index,
        mss: offer.mss,
        window_scale: OFFER.window_scale,
        scale_parity: OFFER.scale_parity,
    };
    twin.listen(listen, at);
    let mut pair = Pair {
        programs,
        maps,
        twin,
        sniffer: Sniffer::new(interface_index(c"cx")),
        interface,
        origin,
        listen,
        index,
        numbers: BTreeMap::new(),
        former: VecDeque::new(),
        seen: BTreeMap::new(),
    };
    let mut rng = Rng::new(seed);
    for number in 0..CONNECTIONS {
        for which in 0..SIZES.len() {
            if !pair.numbers.contains_key(&which) || rng.chance(20_000) {
                pair.remove(which);
                pair.offer(which, 600 * SECOND);
            }
        }
        let src = Endpoint {
            port: 1_024 + number as u16,
            ..from
        };
        converse(&mut pair, &mut rng, (src, &cookies), seed);
    }
    let seen = &pair.seen;
    for what in ["pass", "drop", "send", "tended"] {
        assert!(seen.get(what) >= Some(&20), "{seen:?}");
    }
}

/// One connection.
fn converse(pair: &mut Pair, rng: &mut Rng, (src, cookies): (Endpoint, &CookieKey), seed: u64) {
    let key = FlowKey {
        src,
        dst: pair.listen,
    };
    let classes = fairlead_tcp::cookie::MSS_CLASSES;
    let promise = Promise {
        mss: match rng.chance(600_000) {
            true => 1_460,
            false => classes[rng.below(classes.len() as u32) as usize],
        },
        window_scale: rng.chance(800_000).then(|| rng.below(15) as u8),
        sack: rng.chance(500_000),
        scale_parity: OFFER.scale_parity != rng.chance(20_000),
    };
    let isn = match rng.chance(300_000) {
        true => u32::MAX - rng.below(200),
        false => rng.next_u64() as u32,
    };
    let now = Instant::from_nanos(pair.now());
    let cookie = cookies.make(&key, SeqNumber(isn), now, promise);
    let peer = Peer {
        key,
        isn,
        ack: cookie.0.wrapping_add(1 + u32::from(rng.chance(20_000))),
        stamps: rng.chance(500_000),
    };
    let mut last: Option<Packet> = None;
    for step in 0..16 {
        let case = format!("seed {seed}, {key}, step {step}");
        match rng.below(40) {
            0 => {
                pair.maps.purge().unwrap();
                pair.twin.purge();
                let all = core::mem::take(&mut pair.numbers);
                pair.former.extend(all.into_values());
            }
            1 => pair.remove(rng.below(SIZES.len() as u32) as usize),
            2 => pair.offer(rng.below(SIZES.len() as u32) as usize, 0),
            3..6 => {
                let ages = [
                    SECOND / 10,
                    SECOND / 2,
                    5 * SECOND,
                    11 * SECOND,
                    59 * SECOND,
                ];
                let all = ages.iter().chain(&[61 * SECOND]);
                let by = all.copied().nth(rng.below(6) as usize).unwrap_or_default();
                pair.age(&key, by);
                pair.tend(&key, &case);
            }
            _ => {}
        }
        let known = pair.twin.connection(&key).copied();
        let packet = match last.take().filter(|_| rng.chance(100_000)) {
            Some(same) => same,
            None => some_segment(rng, &peer, known.as_ref()),
        };
        let what = pair.hear(&packet, &case);
        *pair.seen.entry(what).or_default() += 1;
        last = Some(packet);
    }
    // Nothing stays for the next one.
    if let Some(known) = pair.twin.connection(&key).copied() {
        let reset = segment(key.src, key.dst).seq(known.rcv_nxt);
        pair.hear(&reset.flags(TcpFlags::RST).packet(), "the end");
    }
}

#[test]
fn program_and_twin_hold_the_same_conversations() {
    run(|| {
        if has_host_function() != Some(true) {
            return skip("answering", "this kernel makes no sockets of cookies");
        }
        for (seed, client, listen) in [
            (1, "10.1.0.9:40000", "10.1.0.3:80"),
            (2, "[fd01::9]:40000", "[fd01::3]:80"),
        ] {
            on_a_switch(|_, interface| {
                agree(interface, seed, (endpoint(client), endpoint(listen)));
            });
        }
    });
}
