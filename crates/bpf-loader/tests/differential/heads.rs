//! The head of a request, as the kernel program reads it and as its twin in Rust does: a connection
//! is begun for those that the twin has a number for, by that number, and for no others.

use std::collections::HashSet;
use std::hash::Hasher as _;

use fairlead_tcp::Preconnect;
use fairlead_wire::http::plain_hash;
use siphasher::sip::SipHasher13;

use super::unbegun::{PROMISE, Stage, behind, looks_open, ticket_of};
use super::*;

const HEADS: usize = 20_000;
const CLIENT: &str = "10.1.0.9:40000";
const LANE: u16 = 9;
const LINE: u32 = 3;

const METHODS: [&[u8]; 14] = [
    b"GET",
    b"HEAD",
    b"POST",
    b"M-SEARCH",
    b"CONNECT",
    b"get",
    b"GEt",
    b"",
    b"A",
    b"VERSIONCONTROLS", // 15 bytes
    b"BASELINECONTROLS",
    b"UPDATEREDIRECTREF",
    b"G3T",
    b" GET",
];
const TARGETS: [&[u8]; 10] = [
    b"/",
    b"/index.html?a=b&c",
    b"//x/../y#z",
    b"*",
    b"http://a.example/",
    b"a/b",
    b"/a b",
    b"",
    b"/\xc3\xa4",
    b"/\t",
];
const VERSIONS: [&[u8]; 10] = [
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"http/1.1",
    b"HTTp/1.1",
    b"HTTP/1.11",
    b"XHTTP/1.1",
    b"HTTP/1.1 ",
    b"",
    b"HTTP/1,1",
];
const NAMES: [&[u8]; 24] = [
    b"X",
    b"Cookie",
    b"Accept-Encoding",
    b"User-Agent",
    b"!#$%&'*+-.^_`|~09azAZ",
    b"Hos",
    b"Hosts",
    b"Ghost",
    b"X-Host",
    b"Most",
    b"Content-Length",
    b"content-LENGTH",
    b"Contents-Length",
    b"Xontent-Length",
    b"Content_Length",
    b"Transfer-Encoding",
    b"transfer-encodinG",
    b"Transfer-Encodings",
    b"X-Transfer-Encoding",
    b"Transfer_Encoding",
    b"Xransfer-encoding",
    b"Content-Encoding",
    b"",
    b"a\"b",
];
const HOSTS: [&[u8]; 8] = [
    b"a.example",
    b"A.Example:80",
    b"",
    b"[::1]:8080",
    b"a b",
    b"a.example ",
    b"\ta",
    b"\xe4.example",
];
const BLANKS: [&[u8]; 7] = [b":", b": ", b":   ", b":\t", b" :", b"", b"::"];
const ENDS: [&[u8]; 5] = [b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r"];

/// One of a list: by far most often one of the `plain` first.
fn one_of(rng: &mut Rng, all: &[&'static [u8]], plain: u32) -> &'static [u8] {
    let count = if rng.chance(30_000) {
        all.len() as u32
    } else {
        plain
    };
    all[rng.below(count) as usize]
}

fn text(rng: &mut Rng, bytes: u32) -> Vec<u8> {
    let count = rng.below(bytes);
    let visible = |rng: &mut Rng| b'!' + rng.below(94) as u8;
    (0..count).map(|_| visible(rng)).collect()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let mut value = text(rng, 24);
    for byte in &mut value {
        if rng.chance(100_000) {
            *byte = [b' ', b'\t'][rng.below(2) as usize];
        }
        if rng.chance(700) {
            *byte = rng.next_u64() as u8;
        }
    }
    value
}

/// A head of all that is valid, and a little that is not.
fn some_head(rng: &mut Rng) -> Vec<u8> {
    let mut head = one_of(rng, &METHODS, 3).to_vec();
    if rng.chance(100_000) {
        let count = 1 + rng.below(18);
        head = (0..count).map(|_| b'A' + rng.below(26) as u8).collect();
    }
    head.push(b' ');
    head.extend(one_of(rng, &TARGETS, 3));
    if rng.chance(300_000) {
        head.extend(text(rng, 40));
    }
    head.push(b' ');
    head.extend(one_of(rng, &VERSIONS, 1));
    head.extend(one_of(rng, &ENDS, 1));
    let fields = match rng.below(20) {
        0 => 98 + rng.below(5),
        _ => rng.below(8),
    };
    let places = [(); 2].map(|()| rng.below(fields + 1));
    let hosts = match rng.below(20) {
        0 => &places[..0],
        1 => &places[..],
        _ => &places[..1],
    };
    for field in 0..=fields {
        if hosts.contains(&field) {
            head.extend(one_of(rng, &[b"Host", b"host", b"HOST", b"hOsT"], 4));
            head.extend(one_of(rng, &BLANKS, 3));
            head.extend(one_of(rng, &HOSTS, 4));
        } else {
            head.extend(one_of(rng, &NAMES, 10));
            head.extend(one_of(rng, &BLANKS, 4));
            if fields < 90 {
                head.extend(value(rng));
            }
        }
        head.extend(one_of(rng, &ENDS, 1));
    }
    head.extend(one_of(rng, &ENDS, 1));
    head
}

/// Puts a few bytes over, into or out of a head, or cuts it off.
fn change(rng: &mut Rng, head: &mut Vec<u8>) {
    const BYTES: &[u8] = b"\r\n \t:\0\x7f\x80\xff/HhTt1Ag-";
    if rng.chance(500_000) {
        return;
    }
    for _ in 0..1 + rng.below(3) {
        // The beginning holds more that matters.
        let end = if rng.chance(500_000) { 60 } else { 1_504 };
        let at = rng.below(head.len().clamp(1, end) as u32) as usize;
        let byte = BYTES[rng.below(BYTES.len() as u32) as usize];
        match rng.below(8) {
            _ if head.is_empty() => head.push(byte),
            0 | 1 => head[at] = byte,
            2 => head[at] = rng.next_u64() as u8,
            3 => head[at] ^= 0x20,
            4 => head.insert(at, byte),
            5 => drop(head.remove(at)),
            6 => head.truncate(head.len() - rng.below(4) as usize % head.len()),
            _ => head.extend(text(rng, 40)),
        }
    }
    if rng.chance(50_000) {
        head.truncate(rng.below(head.len() as u32 + 1) as usize);
    }
}

/// What readers that refuse less would hash: of the first line all words but the last, or the first
/// two, and any host.
fn careless_hashes(head: &[u8], listen: u16) -> Vec<u64> {
    let lines = head.split(|&byte| byte == b'\n');
    let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let words: Vec<&[u8]> = first.split(|&byte| byte == b' ').collect();
    let asked = |count: usize| words[..count.min(words.len())].join(&b' ');
    let mut hosts = vec![Vec::new()];
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':');
        let Some(colon) = colon.filter(|&colon| line[..colon].eq_ignore_ascii_case(b"host")) else {
            continue;
        };
        let value = &line[colon + 1..];
        let blanks = value.iter().take_while(|&&byte| byte == b' ').count();
        let both = [hosts.last().unwrap(), &value[blanks..]].concat();
        hosts.extend([value[blanks..].to_vec(), value.trim_ascii().to_vec(), both]);
    }
    let asked = [asked(2), asked(words.len() - 1)];
    let pairs = asked
        .iter()
        .flat_map(|asked| hosts.iter().map(move |host| (asked, host)));
    pairs
        .map(|(asked, host)| {
            let mut hasher = SipHasher13::new_with_keys(COOKIE.0, COOKIE.1);
            hasher.write(&listen.to_le_bytes());
            hasher.write(&[asked, &b" "[..], host].concat());
            hasher.finish()
        })
        .collect()
}

/// Whether a client's first segment takes the ticket; one is there again then.
fn is_begun(stage: &mut Stage, packet: &Packet, head: &[u8]) -> bool {
    let client = endpoint(CLIENT);
    let frame = frame_of(packet);
    let trial = stage.kernel.try_frame(&frame, stage.interface, 1).unwrap();
    let begun = stage.table.next_taken(LANE);
    let Some(begun) = begun else {
        assert_eq!((trial.fate, trial.frame), (Fate::Pass, frame));
        return false;
    };
    assert_eq!(trial.fate, Fate::Redirect);
    assert_eq!(begun.taker.expect("taken").payload, head);
    let record = Record {
        client_addr: client.addr,
        client_port: client.port,
        ..ticket_of(LINE)
    };
    let (client, server) = (
        record.client_key(&endpoints()),
        record.server_key(&endpoints()),
    );
    stage.table.remove(Line(LINE), &client, &server);
    stage.issue(LANE, LINE);
    true
}

fn heads_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(91);
        let mut stage = Stage::new(mode, 64, interface);
        stage.issue(LANE, LINE);
        let mut learnt = HashSet::new();
        let (mut plain, mut refused) = (0, 0);
        for _ in 0..HEADS {
            let mut head = some_head(&mut rng);
            change(&mut rng, &mut head);
            head.truncate(1_504);
            let packet = behind(endpoint(CLIENT), 77, PROMISE)
                .payload(&head)
                .packet();
            if head.is_empty() || looks_open(&packet) {
                continue;
            }
            let hash = plain_hash(&head, 0, COOKIE);
            let shown = head.escape_ascii();
            let known = hash.is_some_and(|hash| learnt.contains(&hash));
            // The kernel may have forgotten it for others.
            assert!(!is_begun(&mut stage, &packet, &head) || known, "{shown}");
            let hashes = match hash {
                Some(hash) => vec![hash],
                None => careless_hashes(&head, 0),
            };
            for hash in hashes {
                learnt.insert(hash);
                stage.table.learn_head(hash, LANE);
            }
            assert_eq!(
                is_begun(&mut stage, &packet, &head),
                hash.is_some(),
                "{shown}"
            );
            plain += u32::from(hash.is_some());
            refused += u32::from(hash.is_none());
        }
        assert!(plain > 4_000 && refused > 4_000, "{plain} and {refused}");
    });
}

#[test]
fn tc_reads_heads_as_its_twin_does() {
    run(|| heads_agree(Mode::Tc));
}

#[test]
fn xdp_reads_heads_as_its_twin_does() {
    run(|| heads_agree(Mode::XdpNative));
}
