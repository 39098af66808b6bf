//! Requests that the kernel answers (`bpf/lib/hit.h`, `bpf/lib/answer.h`) against their twin in
//! Rust: which requests are answered, and each byte of the answers.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_bpf_loader::{HitMaps, HitObject, HostPrograms, has_host_function, monotonic_ns};
use fairlead_wire::http::hit_head;

use super::*;

const REQUESTS: usize = 6_000;
const AGE_S: u64 = 4_321;
const AGE_AT: usize = 20;
const KEEP_AT: usize = 44;

const FIELDS: [&str; 24] = [
    "Accept: */*",
    "Cookie: a=b",
    "Connection: keep-alive",
    "connection:  CLOSE",
    "Connection: close",
    "Connection: upgrade",
    "Connection: close ",
    "Connection:",
    "Range: bytes=0-",
    "Ranges: x",
    "If-None-Match: x",
    "IF-: x",
    "if: x",
    "Iff-Match: x",
    "Cache-Control: x",
    "xache-Control: x",
    "Pragma: x",
    "Authorization: x",
    "Proxy-Authorization: x",
    "Expect: x",
    "Upgrade: x",
    "Content-Length: 0",
    "Host: y",
    "Connection: xxep-alive",
];

fn response(bytes: usize) -> Vec<u8> {
    let mut response: Vec<u8> = (0..bytes).map(|at| b'a' + (at % 23) as u8).collect();
    response[AGE_AT..AGE_AT + 10].fill(0);
    response[KEEP_AT..KEEP_AT + 10].fill(0);
    response
}

fn sent(response: &[u8], closes: bool) -> Vec<u8> {
    let mut sent = response.to_vec();
    sent[AGE_AT..AGE_AT + 10].copy_from_slice(format!("{AGE_S:010}").as_bytes());
    let keep = if closes { b"close     " } else { b"keep-alive" };
    sent[KEEP_AT..KEEP_AT + 10].copy_from_slice(keep);
    sent
}

fn offer(maps: &mut HitMaps, listen: Endpoint, head: &str, response: &[u8]) {
    let key = maps.key(listen, head.as_bytes()).expect("a plain head");
    let object = HitObject {
        bytes: response,
        age_at: AGE_AT as u16,
        keep_at: KEEP_AT as u16,
        // In the middle of a second, for as long as the test takes.
        age_ns: AGE_S * 1_000_000_000,
    };
    let number = maps.add(&object).unwrap();
    maps.offer(key, number, 600_000_000_000).unwrap();
}

/// A request, usual for the most part.
fn some_request(rng: &mut Rng) -> Vec<u8> {
    let target = ["/short", "/long", "/other"][rng.below(3) as usize];
    let mut text = format!("GET {target} HTTP/1.1\r\nHost: x\r\n");
    for _ in 0..rng.below(3) {
        text += FIELDS[rng.below(FIELDS.len() as u32) as usize];
        text += "\r\n";
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    match rng.below(12) {
        0 => drop(bytes.pop()),
        1 => bytes.push(b'x'),
        2 => {
            let at = rng.below(bytes.len() as u32) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        _ => {}
    }
    bytes
}

fn agree(interface: u32, (from, listen): (Endpoint, Endpoint)) {
    let origin = monotonic_ns() - 1_000_000_000;
    let (kernel, mut table) = kernel(Mode::Tc, origin);
    let index = u16::from(!listen.addr.is_v4());
    table.set_offer(
        listen,
        &ListenOffer {
            listen: index,
            ..OFFER
        },
    );
    let (mut programs, _gives, _shown) = HostPrograms::load(None, 0).unwrap();
    let fronts = BTreeMap::from([(listen, endpoint("127.0.0.1:9"))]);
    let mut maps = programs.answer(&kernel, fronts).unwrap();
    let listens = BTreeSet::from([listen]);
    programs.set(&[], "s", &listens, false).unwrap();
    let short = response(700);
    let long = response(2_500);
    for (target, response) in [("/short", &short), ("/long", &long)] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        offer(&mut maps, listen, &head, response);
    }
    let hash = |head: &[u8]| hit_head(head, index, COOKIE);
    let of = |target: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        hash(head.as_bytes()).unwrap().hash
    };
    let (of_short, of_long) = (of("/short"), of("/long"));
    let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
    let (mut rng, mut answered, mut passed) = (Rng::new(7), 0, 0);
    for number in 0..REQUESTS {
        let from = Endpoint {
            port: 1_024 + number as u16,
            ..from
        };
        let request = some_request(&mut rng);
        let key = FlowKey {
            src: from,
            dst: listen,
        };
        let now = Instant::from_nanos(monotonic_ns() - origin);
        let isn = rng.next_u64() as u32;
        let promise = Promise {
            mss: 1_460,
            window_scale: Some(7),
            sack: true,
            scale_parity: OFFER.scale_parity,
        };
        let cookie = cookies.make(&key, SeqNumber(isn), now, promise);
        let is_forged = rng.chance(100_000);
        let ack = cookie.0.wrapping_add(if is_forged { 9 } else { 1 });
        let packet = segment(from, listen)
            .seq(isn.wrapping_add(1))
            .ack(ack)
            .flags(TcpFlags::ACK | TcpFlags::PSH)
            .payload(&request)
            .packet();
        let trial = programs.try_answer(&frame_of(&packet), interface).unwrap();
        let known = hash(&request).filter(|_| !is_forged);
        let known = known.filter(|head| [of_short, of_long].contains(&head.hash));
        let case = format!("{}: {:?}", request.escape_ascii(), trial.fate);
        let Some(head) = known else {
            assert_eq!(trial.fate, Fate::Pass, "{case}");
            assert_eq!(trial.frame, frame_of(&packet), "left as it was: {case}");
            passed += 1;
            continue;
        };
        assert_eq!(trial.fate, Fate::Redirect, "{case}");
        answered += 1;
        let whole = sent(
            if head.hash == of_short { &short } else { &long },
            head.closes,
        );
        // The first of two went out as a copy.
        let first = if whole.len() > 1_460 { 1_460 } else { 0 };
        let answer = Packet::from_bytes(&trial.frame[14..]);
        let told = tcp(&answer);
        assert!(told.checksum_valid(&answer.bytes), "{case}");
        assert_eq!(told.key.src, listen, "{case}");
        assert_eq!(told.key.dst, from, "{case}");
        assert_eq!(told.seq.0, ack.wrapping_add(first as u32), "{case}");
        let end = isn.wrapping_add(1 + request.len() as u32);
        assert_eq!(told.ack.0, end, "{case}");
        let fin = if head.closes {
            TcpFlags::FIN
        } else {
            TcpFlags::NONE
        };
        assert_eq!(told.flags, TcpFlags::ACK | TcpFlags::PSH | fin, "{case}");
        let payload = &answer.bytes[answer.bytes.len() - (whole.len() - first)..];
        assert!(*payload == whole[first..], "other bytes: {case}");
    }
    assert!(answered > 800 && passed > 800, "{answered} {passed}");
}

#[test]
fn program_and_twin_answer_the_same_requests() {
    run(|| {
        if has_host_function() != Some(true) {
            return skip("hits", "this kernel makes no sockets of cookies");
        }
        on_a_switch(|_, interface| {
            for (client, listen) in [
                ("10.1.0.9:40000", "10.1.0.3:80"),
                ("[fd01::9]:40000", "[fd01::3]:80"),
            ] {
                agree(interface, (endpoint(client), endpoint(listen)));
            }
        });
    });
}
