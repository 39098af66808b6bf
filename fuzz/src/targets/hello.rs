//! `wire::tls`: arbitrary ClientHellos, whole and in pieces.

use fairlead_base::Rng;
use fairlead_wire::Scan;
use fairlead_wire::tls::{
    ALPN_NAMES_MAX, ClientHello, HELLO_BYTES_MAX, HelloScanner, RECORDS_MAX, TlsError,
};

use super::Target;
use crate::corpus::fingerprint;
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "hello",
    about: "a ClientHello: one verdict for every cut, names in comparable form, limits held",
    run,
    bytes_max: 2_048,
    tokens: &[
        &[0x16, 3, 1, 0, 100],
        &[0x16, 3, 3, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        &[0, 0, 0, 14, 0, 12, 0, 0, 9],
        b"\x00\x00\x00\x10\x00\x0e\x00\x00\x0bexample.com",
        b"\x00\x10\x00\x0e\x00\x0c\x02h2\x08http/1.1",
        &[0xfe, 0x0d, 0, 2, 0, 0],
        &[0x80, 0x2e, 1, 3, 1],
        b"GET ",
        b".example.org",
        b"192.0.2.1",
        b"[::1]",
        &[BUILT],
        &[BUILT, 0, 0, 0, 0],
    ],
};

/// An input that begins with this byte is a script from which a hello is built.
const BUILT: u8 = 0xff;

/// This many bytes are also passed one by one.
const ONE_BY_ONE_MAX: usize = 700;

fn run(input: &[u8]) {
    match input.split_first() {
        Some((&BUILT, script)) => check(&build(&mut Script::new(script))),
        _ => check(input),
    }
}

fn check(bytes: &[u8]) {
    let whole = HelloScanner::default().scan(bytes);
    let mut rng = Rng::new(fingerprint(bytes));
    let mut ends: Vec<usize> = (0..3)
        .map(|_| rng.below(bytes.len() as u32 + 1) as usize)
        .collect();
    ends.sort_unstable();
    assert_eq!(scan_in_pieces(bytes, &ends), whole, "cut at {ends:?}");
    if bytes.len() <= ONE_BY_ONE_MAX {
        let every: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(scan_in_pieces(bytes, &every), whole, "byte by byte");
    }
    match &whole {
        Scan::Incomplete => {
            note_size("hello.incomplete", bytes.len());
            let longest = HELLO_BYTES_MAX + 4 + RECORDS_MAX * 5;
            assert!(bytes.len() < longest, "no hello is that long");
        }
        Scan::Malformed(error) => {
            note("hello.error", *error as u64);
            assert!(error.alert() != 0 && !error.reason().name().is_empty());
        }
        Scan::Complete(hello) => check_hello(bytes, hello),
    }
}

fn scan_in_pieces(bytes: &[u8], ends: &[usize]) -> Scan<ClientHello, TlsError> {
    let mut scanner = HelloScanner::default();
    let mut settled = None;
    for &end in ends {
        let verdict = scanner.scan(&bytes[..end]);
        if let Some(settled) = &settled {
            assert_eq!(&verdict, settled, "a verdict was changed");
        } else if verdict != Scan::Incomplete {
            settled = Some(verdict);
        }
    }
    let last = scanner.scan(bytes);
    if let Some(settled) = settled {
        assert_eq!(last, settled, "a verdict was changed");
    }
    last
}

fn check_hello(bytes: &[u8], hello: &ClientHello) {
    assert!(hello.len <= bytes.len());
    let exactly = HelloScanner::default().scan(&bytes[..hello.len]);
    assert_eq!(exactly, Scan::Complete(hello.clone()));
    let shorter = HelloScanner::default().scan(&bytes[..hello.len - 1]);
    assert_eq!(shorter, Scan::Incomplete);
    assert_eq!(hello.legacy_version >> 8, 3);
    assert!(hello.alpn.len() <= ALPN_NAMES_MAX);
    assert!(
        hello
            .alpn
            .iter()
            .all(|name| (1..=255).contains(&name.len()))
    );
    if let Some(name) = &hello.sni {
        assert!(
            (1..=255).contains(&name.len()) && !name.ends_with('.'),
            "{name:?}"
        );
        assert!(
            !name.bytes().any(|byte| byte.is_ascii_uppercase()),
            "{name:?}"
        );
        assert!(name.split('.').all(|label| !label.is_empty()), "{name:?}");
        // The name is there, in whatever case.
        let joined = content(&bytes[..hello.len]).to_ascii_lowercase();
        let found = joined.windows(name.len()).any(|at| at == name.as_bytes());
        assert!(found, "{name:?} is not in the hello");
    }
    note_size("hello.sni", hello.sni.as_ref().map_or(0, String::len));
    note_size("hello.alpn", hello.alpn.len());
    note("hello.ech", u64::from(hello.has_ech));
    note("hello.version", u64::from(hello.legacy_version));
}

/// What the records carry.
fn content(mut records: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = records {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        joined.extend_from_slice(&rest[..len]);
        records = &rest[len..];
    }
    joined
}

/// A hello whose lengths are right unless the script says otherwise, cut into records.
fn build(script: &mut Script<'_>) -> Vec<u8> {
    let mut body = vec![3, script.pick(&[3, 3, 1, 0])];
    body.extend([7; 32]);
    vector8(&mut body, &vec![1; script.pick(&[0, 32, 1, 33])]);
    vector16(&mut body, &vec![0x13; script.pick(&[4, 2, 0, 3])]);
    vector8(&mut body, &vec![0; script.pick(&[1, 0, 2])]);
    let mut extensions = Vec::new();
    for _ in 0..script.u8() % 24 {
        let kind = script.pick(&[0, 16, 0xfe0d, 10, 43, 51, 0x0a0a]);
        extensions.extend(u16::to_be_bytes(kind));
        let content = match kind {
            0 => names(script),
            16 => protocols(script),
            _ => {
                let count = script.below(40);
                script.take(count).to_vec()
            }
        };
        vector16(&mut extensions, &content);
    }
    if !extensions.is_empty() || script.flip() {
        vector16(&mut body, &extensions);
    }
    let off = [0, 0, 0, 0, 1, 0xff_ffff][script.below(6)];
    let len = (body.len() as u32).wrapping_add(off) & 0xff_ffff;
    let [_, high, middle, low] = len.to_be_bytes();
    let mut message = vec![1, high, middle, low];
    message.extend(body);
    records(script, &message)
}

fn records(script: &mut Script<'_>, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let count = match script.u8() {
            0 => rest.len(),
            count => usize::from(count).min(rest.len()),
        };
        let (content, behind) = rest.split_at(count);
        bytes.extend([22, 3, 1]);
        vector16(&mut bytes, content);
        rest = behind;
    }
    // Early data, or whatever.
    bytes.extend_from_slice(script.rest());
    bytes
}

fn names(script: &mut Script<'_>) -> Vec<u8> {
    let mut list = Vec::new();
    for _ in 0..=script.u8() % 16 / 15 {
        list.push(script.pick(&[0, 0, 0, 1]));
        let count = script.below(64);
        let noise = script.take(count);
        let name: &[u8] = match script.below(6) {
            0 => noise,
            1 => b"Example.COM.",
            2 => b"192.0.2.1",
            3 => b"a..b",
            4 => &[b'a'; 255],
            _ => b"www.example.org",
        };
        vector16(&mut list, name);
    }
    let mut content = Vec::new();
    vector16(&mut content, &list);
    content
}

fn protocols(script: &mut Script<'_>) -> Vec<u8> {
    let mut list = Vec::new();
    for _ in 0..script.u8() % 70 {
        let count = script.below(12);
        vector8(&mut list, script.take(count));
    }
    let mut content = Vec::new();
    vector16(&mut content, &list);
    content
}

fn vector8(out: &mut Vec<u8>, content: &[u8]) {
    out.push(content.len() as u8);
    out.extend_from_slice(content);
}

fn vector16(out: &mut Vec<u8>, content: &[u8]) {
    out.extend((content.len() as u16).to_be_bytes());
    out.extend_from_slice(content);
}
