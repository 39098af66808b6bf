//! Hellos good and bad, and the promises of the scanner.

use fairlead_base::DropReason;
use proptest::prelude::*;

use super::*;

/// An extension: its type and its content.
type Extension = (u16, Vec<u8>);

fn vector8(content: &[u8]) -> Vec<u8> {
    [&[u8::try_from(content.len()).expect("short")], content].concat()
}

fn vector16(content: &[u8]) -> Vec<u8> {
    [
        &u16::try_from(content.len()).expect("short").to_be_bytes()[..],
        content,
    ]
    .concat()
}

fn server_name(name: &[u8]) -> Extension {
    (0, vector16(&[&[0][..], &vector16(name)].concat()))
}

fn alpn(names: &[&[u8]]) -> Extension {
    (
        16,
        vector16(
            &names
                .iter()
                .flat_map(|name| vector8(name))
                .collect::<Vec<_>>(),
        ),
    )
}

/// A key share as browsers send it today: X25519MLKEM768, 1216 bytes, and X25519.
fn post_quantum_key_share() -> Extension {
    let hybrid = [&[0x11, 0xec][..], &vector16(&[0x5a; 1216])].concat();
    let classic = [&[0x00, 0x1d][..], &vector16(&[0xa5; 32])].concat();
    (51, vector16(&[hybrid, classic].concat()))
}

fn extensions(list: &[Extension]) -> Vec<u8> {
    let content = list
        .iter()
        .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &vector16(content)].concat());
    vector16(&content.collect::<Vec<_>>())
}

/// The body of a hello in front of its extensions.
fn hello_front() -> Vec<u8> {
    let suites = [0x13, 0x01, 0x13, 0x02];
    [
        &[3, 3][..],
        &[7; 32],
        &vector8(&[9; 32]),
        &vector16(&suites),
        &vector8(&[0]),
    ]
    .concat()
}

fn hello_body(list: &[Extension]) -> Vec<u8> {
    [hello_front(), extensions(list)].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&[kind], &len[1..], body].concat()
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &vector16(content)].concat()
}

/// The message over records of at most `record_bytes`.
fn records(message: &[u8], record_bytes: usize) -> Vec<u8> {
    message
        .chunks(record_bytes)
        .flat_map(|content| record(22, content))
        .collect()
}

fn hello(list: &[Extension]) -> Vec<u8> {
    record(22, &message(1, &hello_body(list)))
}

/// A hello of more than one segment, over records of the size given.
fn long_hello(record_bytes: usize) -> Vec<u8> {
    let list = [
        server_name(b"Example.ORG."),
        alpn(&[b"h2", b"http/1.1"]),
        post_quantum_key_share(),
        (0xfe0d, vec![0; 200]),
    ];
    records(&message(1, &hello_body(&list)), record_bytes)
}

fn scan_whole(bytes: &[u8]) -> Scan<ClientHello, TlsError> {
    HelloScanner::default().scan(bytes)
}

fn scan_cut(bytes: &[u8], cuts: &[usize]) -> Scan<ClientHello, TlsError> {
    let mut scanner = HelloScanner::default();
    for &cut in cuts {
        match scanner.scan(&bytes[..cut.min(bytes.len())]) {
            Scan::Incomplete => {}
            verdict => return verdict,
        }
    }
    scanner.scan(bytes)
}

fn every_byte(bytes: &[u8]) -> Vec<usize> {
    (0..=bytes.len()).collect()
}

fn expect_hello(bytes: &[u8]) -> ClientHello {
    match scan_whole(bytes) {
        Scan::Complete(hello) => hello,
        verdict => panic!("{verdict:?}"),
    }
}

#[test]
fn an_alert_is_a_record() {
    assert_eq!(alert(112), [21, 3, 3, 0, 2, 2, 112]);
}

#[test]
fn errors_say_what_to_answer_and_what_to_count() {
    for (error, description, reason) in [
        (TlsError::NotHandshake, 10, DropReason::TlsMalformed),
        (TlsError::RecordTooLong, 22, DropReason::TlsMalformed),
        (TlsError::ExtensionRepeated, 47, DropReason::TlsMalformed),
        (TlsError::BadLength, 50, DropReason::TlsMalformed),
        (TlsError::HelloVersion, 70, DropReason::TlsMalformed),
        (TlsError::TooLarge, 50, DropReason::HeadTooLarge),
    ] {
        assert_eq!(
            (error.alert(), error.reason()),
            (description, reason),
            "{error}"
        );
    }
}

#[test]
fn a_hello_of_more_than_a_segment_is_read_over_any_records() {
    let len = long_hello(usize::MAX).len();
    assert!(len > 1460, "{len} bytes");
    for record_bytes in [RECORD_BYTES_MAX, 700, 100, 40] {
        let mut bytes = long_hello(record_bytes);
        let len = bytes.len();
        bytes.extend_from_slice(b"\x17\x03\x03\x00\x01early data");
        let hello = expect_hello(&bytes);
        assert_eq!(hello.sni.as_deref(), Some("example.org"));
        assert_eq!(hello.alpn, [&b"h2"[..], b"http/1.1"]);
        assert_eq!(
            (hello.len, hello.legacy_version, hello.has_ech),
            (len, 0x0303, true)
        );
        assert_eq!(scan_cut(&bytes, &every_byte(&bytes)), Scan::Complete(hello));
        for end in [0, 1, 4, 5, 6, 9, len / 2, len - 1] {
            assert_eq!(scan_whole(&bytes[..end]), Scan::Incomplete, "{end}");
        }
    }
}

#[test]
fn old_hellos_may_have_no_extensions() {
    let bare = expect_hello(&record(22, &message(1, &hello_front())));
    assert_eq!((bare.sni, bare.alpn.len(), bare.has_ech), (None, 0, false));
    assert_eq!(expect_hello(&hello(&[])).sni, None);
}

#[test]
fn server_names_take_one_form() {
    let longest = format!("{}a", "ab.".repeat(84));
    assert_eq!(longest.len(), 253);
    for (name, expected) in [
        ("example.org", Some("example.org")),
        ("EXAMPLE.org.", Some("example.org")),
        ("_dmarc.a-b.x1", Some("_dmarc.a-b.x1")),
        ("localhost", Some("localhost")),
        (&longest[..], Some(&longest[..])),
        ("192.0.2.1", None),
        ("2001:db8::1", None),
        ("::ffff:192.0.2.1", None),
    ] {
        let read = expect_hello(&hello(&[server_name(name.as_bytes())]));
        assert_eq!(read.sni.as_deref(), expected, "{name}");
    }
}

#[test]
fn broken_server_names_are_refused() {
    let long = "a".repeat(256);
    for name in [
        &b""[..],
        b".",
        b"a..b",
        b".a",
        b"a..",
        b"a b",
        b"a\0",
        b"a\0.example",
        b"a/b",
        b"a:443",
        b"*.a",
        b"[::1]",
        b"\xc3\xa4.example",
        b"\xff",
        b"a@b",
        long.as_bytes(),
    ] {
        let verdict = scan_whole(&hello(&[server_name(name)]));
        assert_eq!(
            verdict,
            Scan::Malformed(TlsError::ServerNameMalformed),
            "{}",
            name.escape_ascii()
        );
    }
}

/// Hellos with the error that each must get.
fn bad_hellos() -> Vec<(Vec<u8>, TlsError)> {
    let with = |kind: u16, content: &[u8]| hello(&[(kind, content.to_vec())]);
    let two_names = [&[0][..], &vector16(b"a"), &[0], &vector16(b"b")].concat();
    let other_name = [&[1][..], &vector16(b"a")].concat();
    let with_body = |body: &[u8]| record(22, &message(1, body));
    let front = hello_front();
    let too_many: Vec<Extension> = (0..129).map(|kind| (1000 + kind, Vec::new())).collect();
    let many_protocols = vec![&b"x"[..]; ALPN_NAMES_MAX + 1];
    let mut long_session = [&[3, 3][..], &[7; 32], &vector8(&[9; 33])].concat();
    long_session.extend_from_slice(&front[67..]);
    vec![
        // Strangers.
        (b"GET / HTTP/1.1\r\n".to_vec(), TlsError::PlainHttp),
        (b"POST".to_vec(), TlsError::PlainHttp),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            TlsError::PlainHttp,
        ),
        (b"PROXY TCP4 ".to_vec(), TlsError::NotHandshake),
        (b"GETS".to_vec(), TlsError::NotHandshake),
        (b"SSH-2.0-".to_vec(), TlsError::NotHandshake),
        (b"\0".to_vec(), TlsError::NotHandshake),
        (
            b"\x80\x2e\x01\x03\x01\x00\x15".to_vec(),
            TlsError::Sslv2Hello,
        ),
        (b"\x80\x2e\x02".to_vec(), TlsError::NotHandshake),
        (record(21, &[2, 40]), TlsError::NotHandshake),
        (record(23, b"x"), TlsError::NotHandshake),
        // Records.
        (b"\x16\x02".to_vec(), TlsError::RecordVersion),
        (b"\x16\xfe\xff".to_vec(), TlsError::RecordVersion),
        (b"\x16\x03\x01\x00\x00".to_vec(), TlsError::EmptyRecord),
        (b"\x16\x03\x01\x40\x01".to_vec(), TlsError::RecordTooLong),
        (
            [record(22, &[1]), record(22, &[])].concat(),
            TlsError::EmptyRecord,
        ),
        (
            [record(22, &[1, 0, 1]), record(20, &[1])].concat(),
            TlsError::Interleaved,
        ),
        (
            [record(22, &[1, 0, 1, 0]), b"G".to_vec()].concat(),
            TlsError::Interleaved,
        ),
        (long_hello(24), TlsError::TooManyRecords),
        // Messages.
        (
            record(22, &message(2, &hello_body(&[]))),
            TlsError::NotClientHello,
        ),
        (record(22, &[0, 0, 0, 0]), TlsError::NotClientHello),
        (record(22, &[1, 1, 0, 1]), TlsError::TooLarge),
        (record(22, &[1, 0xff, 0xff, 0xff]), TlsError::TooLarge),
        (
            record(22, &[message(1, &front), vec![0]].concat()),
            TlsError::MessageBehindHello,
        ),
        (
            [record(22, &message(1, &front)[..60]), record(22, &[0; 200])].concat(),
            TlsError::MessageBehindHello,
        ),
        (with_body(b""), TlsError::BadLength),
        (
            with_body(&[&[2, 0], &front[2..]].concat()),
            TlsError::HelloVersion,
        ),
        (
            with_body(&[&[0xfe, 0xfd], &front[2..]].concat()),
            TlsError::HelloVersion,
        ),
        (with_body(&front[..20]), TlsError::BadLength),
        (with_body(&front[..front.len() - 1]), TlsError::BadLength),
        (with_body(&long_session), TlsError::BadLength),
        (
            with_body(&[&front[..67], &vector16(&[0x13]), &vector8(&[0])].concat()),
            TlsError::BadLength,
        ),
        (
            with_body(&[&front[..67], &vector16(&[]), &vector8(&[0])].concat()),
            TlsError::NothingOffered,
        ),
        (
            with_body(&[&front[..67], &vector16(&[0x13, 1]), &vector8(&[])].concat()),
            TlsError::NothingOffered,
        ),
        (with_body(&[&front[..], &[0]].concat()), TlsError::BadLength),
        (
            with_body(&[&front[..], &[0, 1]].concat()),
            TlsError::BadLength,
        ),
        (
            with_body(&[&front[..], &[0, 0, 0]].concat()),
            TlsError::BadLength,
        ),
        (
            with_body(&[&front[..], &vector16(&[0, 10, 0])].concat()),
            TlsError::BadLength,
        ),
        (
            with_body(&[&front[..], &vector16(&[0, 10, 0, 1])].concat()),
            TlsError::BadLength,
        ),
        // Extensions.
        (
            hello(&[(10, vec![]), (11, vec![]), (10, vec![])]),
            TlsError::ExtensionRepeated,
        ),
        (
            hello(&[server_name(b"a"), server_name(b"b")]),
            TlsError::ExtensionRepeated,
        ),
        (hello(&too_many), TlsError::TooManyExtensions),
        (with(0, b""), TlsError::BadLength),
        (with(0, &vector16(b"")), TlsError::ServerNameMalformed),
        (
            with(0, &vector16(&two_names)),
            TlsError::ServerNameMalformed,
        ),
        (
            with(0, &vector16(&other_name)),
            TlsError::ServerNameMalformed,
        ),
        (with(0, &vector16(&[0, 0, 5, b'a'])), TlsError::BadLength),
        (
            with(0, &[&server_name(b"a").1[..], &[0]].concat()),
            TlsError::BadLength,
        ),
        (with(16, b""), TlsError::BadLength),
        (with(16, &vector16(b"")), TlsError::AlpnMalformed),
        (with(16, &vector16(b"\0")), TlsError::AlpnMalformed),
        (with(16, &vector16(b"\x03h2")), TlsError::BadLength),
        (
            with(16, &[&vector16(b"\x02h2")[..], b"x"].concat()),
            TlsError::BadLength,
        ),
        (hello(&[alpn(&many_protocols)]), TlsError::TooManyProtocols),
    ]
}

#[test]
fn every_bad_hello_is_named_however_it_is_cut() {
    for (bytes, error) in bad_hellos() {
        let shown = bytes.escape_ascii();
        assert_eq!(scan_whole(&bytes), Scan::Malformed(error), "{shown}");
        assert_eq!(
            scan_cut(&bytes, &every_byte(&bytes)),
            Scan::Malformed(error),
            "{shown}"
        );
    }
}

#[test]
fn every_error_has_a_bad_hello() {
    let hellos = bad_hellos();
    for error in TlsError::ALL {
        assert!(
            hellos.iter().any(|(_, expected)| expected == error),
            "{error}"
        );
    }
}

#[test]
fn limits_are_met_exactly() {
    let full: Vec<Extension> = (0..128).map(|kind| (1000 + kind, Vec::new())).collect();
    assert_eq!(full.len(), EXTENSIONS_MAX);
    expect_hello(&hello(&full));
    let protocols = vec![&b"x"[..]; ALPN_NAMES_MAX];
    assert_eq!(
        expect_hello(&hello(&[alpn(&protocols)])).alpn.len(),
        ALPN_NAMES_MAX
    );
    // As long as is read, in full records.
    let room = HELLO_BYTES_MAX - hello_front().len() - 2 - 4;
    let largest = message(1, &hello_body(&[(1000, vec![0; room])]));
    assert_eq!(largest.len(), HELLO_BYTES_MAX + 4);
    let bytes = records(&largest, RECORD_BYTES_MAX);
    assert_eq!(expect_hello(&bytes).len, bytes.len());
    // As many records as are followed.
    let message = message(
        1,
        &hello_body(&[(1000, vec![0; 64 * 40 - hello_front().len() - 10])]),
    );
    assert_eq!(message.len(), 64 * 40);
    expect_hello(&records(&message, 40));
}

#[test]
fn a_verdict_stays() {
    let bytes = long_hello(300);
    let mut scanner = HelloScanner::default();
    let whole = scan_whole(&bytes);
    assert_eq!(scanner.scan(&bytes), whole);
    assert_eq!(scanner.scan(&bytes), whole);
    assert_eq!(
        scanner.scan(&bytes[..10]),
        Scan::Incomplete,
        "bytes taken away do no harm"
    );
    let mut scanner = HelloScanner::default();
    assert_eq!(scanner.scan(b"\0"), Scan::Malformed(TlsError::NotHandshake));
    assert_eq!(
        scanner.scan(&bytes),
        Scan::Malformed(TlsError::NotHandshake)
    );
}

#[test]
fn scanning_byte_by_byte_costs_a_few_looks_per_byte() {
    for record_bytes in [RECORD_BYTES_MAX, 40] {
        let bytes = long_hello(record_bytes);
        let mut scanner = HelloScanner::default();
        for end in 0..bytes.len() {
            assert_eq!(scanner.scan(&bytes[..end]), Scan::Incomplete);
            assert!(
                scanner.looked_at <= 4 * end,
                "{} looks for {end}",
                scanner.looked_at
            );
        }
        assert!(matches!(scanner.scan(&bytes), Scan::Complete(_)));
        assert!(scanner.looked_at <= 4 * bytes.len());
    }
}

#[test]
fn the_scanner_is_small() {
    assert!(
        size_of::<HelloScanner>() <= 56,
        "{} bytes",
        size_of::<HelloScanner>()
    );
}

const CAPTURED: [&[u8]; 5] = [
    include_bytes!("../../tests/fixtures/tls-over-one-segment.bin"),
    include_bytes!("../../tests/fixtures/tls-ech-grease.bin"),
    include_bytes!("../../tests/fixtures/tls10-without-sni.bin"),
    include_bytes!("../../tests/fixtures/tls-firefox-2020.bin"),
    include_bytes!("../../tests/fixtures/tls-iphone-2020.bin"),
];

fn hellos() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(&CAPTURED[..]).prop_map(<[u8]>::to_vec),
        (30..2000_usize).prop_map(long_hello),
    ]
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..2500_usize, 0..8).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

proptest! {
    #[test]
    fn the_verdict_does_not_depend_on_the_cuts(
        mut bytes in hellos(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        // Most lengths and types are near the front.
        front_changes in proptest::collection::vec((0..120_usize, 0..8_u8), 0..2),
        end in any::<prop::sample::Index>(),
        cuts in cuts(),
    ) {
        for (place, byte) in changes {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        for (at, byte) in front_changes {
            bytes[at] = byte;
        }
        let whole = scan_whole(&bytes);
        prop_assert_eq!(&scan_cut(&bytes, &cuts), &whole);
        prop_assert_eq!(&scan_cut(&bytes, &every_byte(&bytes)), &whole);
        if let Scan::Complete(hello) = &whole {
            prop_assert!(hello.len <= bytes.len());
            prop_assert!(hello.alpn.iter().all(|name| !name.is_empty()));
            prop_assert_eq!(&scan_whole(&bytes[..hello.len]), &whole);
            prop_assert_eq!(scan_whole(&bytes[..hello.len - 1]), Scan::Incomplete);
        }
        // A verdict on the front of the bytes is the verdict on all of them.
        match scan_whole(&bytes[..end.index(bytes.len())]) {
            Scan::Incomplete => {}
            verdict => prop_assert_eq!(verdict, whole),
        }
    }

    #[test]
    fn noise_never_panics(noise in any::<Vec<u8>>(), cuts in cuts()) {
        prop_assert_eq!(scan_cut(&noise, &cuts), scan_whole(&noise));
        // Behind a good front, so that the noise is read as extensions.
        let body = [hello_front(), vector16(&noise)].concat();
        let bytes = record(22, &message(1, &body));
        prop_assert_eq!(scan_cut(&bytes, &cuts), scan_whole(&bytes));
    }

    #[test]
    fn names_and_protocols_come_back(
        name in "[a-zA-Z0-9_-]{1,20}(\\.[a-zA-Z_-]{1,20}){1,5}",
        protocols in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 1..8),
        record_bytes in 40..3000_usize,
    ) {
        let names: Vec<&[u8]> = protocols.iter().map(Vec::as_slice).collect();
        let list = [alpn(&names), post_quantum_key_share(), server_name(name.as_bytes())];
        let bytes = records(&message(1, &hello_body(&list)), record_bytes);
        let hello = expect_hello(&bytes);
        prop_assert_eq!(hello.sni, Some(name.to_ascii_lowercase()));
        prop_assert_eq!(hello.alpn, protocols);
        prop_assert_eq!(hello.len, bytes.len());
    }
}

#[test]
fn a_fault_names_rule_offset_and_byte() {
    let fault = |bytes: &[u8]| {
        let mut scanner = HelloScanner::default();
        assert!(scanner.fault(bytes).is_none());
        assert!(matches!(scanner.scan(bytes), Scan::Malformed(_)));
        scanner.fault(bytes).expect("a fault").to_string()
    };
    let unnamed = hello(&[server_name(b"a b")]);
    let at = unnamed.windows(3).position(|three| three == b"a b");
    let named = format!(
        "server_name_malformed at {} byte 0x61",
        at.expect("the name")
    );
    assert_eq!(fault(&unnamed), named);
    // The same name over small records: their headers count.
    let cut = records(&message(1, &hello_body(&[server_name(b"a b")])), 10);
    let found = fault(&cut);
    let at: usize = found
        .split(' ')
        .nth(2)
        .expect("an offset")
        .parse()
        .expect("a number");
    assert_eq!(
        (cut[at], found.starts_with("server_name_malformed")),
        (b'a', true),
        "{found}"
    );
    let mut old = hello(&[]);
    old[9] = 2;
    assert_eq!(fault(&old), "hello_version at 9 byte 0x02");
    assert_eq!(fault(b"SSH-2.0"), "not_handshake at 0 byte 0x53");
    assert_eq!(fault(b"GET / H"), "plain_http at 0 byte 0x47");
    assert_eq!(fault(&[22, 2, 0, 0, 9]), "record_version at 1 byte 0x02");
    assert_eq!(
        fault(&record(22, &[2, 0])),
        "not_client_hello at 5 byte 0x02"
    );
}

#[test]
fn what_is_no_tls_at_all_is_another_protocol() {
    let other = |bytes: &[u8]| {
        let error = scan_whole(bytes).malformed();
        error.map(TlsError::is_other_protocol)
    };
    for bytes in [
        &b"GET / "[..],
        b"SSH-2.0",
        &[0, 0, 0, 8],
        &[0x80, 0x2e, 1],
        &[22, 9],
    ] {
        assert_eq!(other(bytes), Some(true), "{bytes:?}");
    }
    let repeated = hello(&[alpn(&[b"h2"]), alpn(&[b"h2"])]);
    for bytes in [&record(22, &[2, 0])[..], &[22, 3, 1, 0, 0], &repeated] {
        assert_eq!(other(bytes), Some(false), "{bytes:?}");
    }
}
