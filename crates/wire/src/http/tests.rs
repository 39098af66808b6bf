//! Requests good and bad, and the promises of the scanner.

use fairlead_base::DropReason;
use proptest::prelude::*;

use super::*;

mod vectors;

/// What a fresh scanner says of `bytes` shown at once.
fn scan_whole(bytes: &[u8]) -> Scan<RequestHead<'_>, HeadError> {
    HeadScanner::default().scan(bytes)
}

/// What a scanner says of `bytes` that arrive in pieces which end at `cuts`.
fn scan_cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Scan<RequestHead<'a>, HeadError> {
    let mut scanner = HeadScanner::default();
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

/// The verdict as a word, as the tables have it.
fn word(verdict: &Scan<RequestHead<'_>, HeadError>) -> &'static str {
    match verdict {
        Scan::Incomplete => "incomplete",
        Scan::Complete(_) => "complete",
        Scan::Malformed(error) => error.name(),
    }
}

fn head(bytes: &[u8]) -> RequestHead<'_> {
    match scan_whole(bytes) {
        Scan::Complete(head) => head,
        verdict => panic!("{verdict:?} for {}", bytes.escape_ascii()),
    }
}

#[test]
fn every_vector_has_its_verdict_however_it_is_cut() {
    for (request, expected) in vectors::table() {
        let shown = request.escape_ascii();
        assert_eq!(word(&scan_whole(&request)), expected, "{shown}");
        assert_eq!(
            scan_cut(&request, &every_byte(&request)),
            scan_whole(&request),
            "{shown}"
        );
    }
}

#[test]
fn every_error_but_the_callers_has_a_vector() {
    let table = vectors::table();
    for error in HeadError::ALL {
        let named = table.iter().any(|(_, expected)| *expected == error.name());
        let of_callers = matches!(error, HeadError::TooLarge | HeadError::TargetTooLong);
        assert_eq!(named, !of_callers, "{error}");
    }
}

#[test]
fn errors_say_what_to_answer_and_what_to_count() {
    for (error, status, reason) in [
        (HeadError::BareLf, 400, DropReason::HttpMalformed),
        (HeadError::Version, 505, DropReason::HttpVersion),
        (HeadError::Connect, 501, DropReason::HttpMalformed),
        (HeadError::CodingUnknown, 501, DropReason::HttpMalformed),
        (HeadError::TooManyFields, 431, DropReason::HeadTooLarge),
        (HeadError::TooLarge, 431, DropReason::HeadTooLarge),
        (HeadError::TargetTooLong, 414, DropReason::HeadTooLarge),
    ] {
        assert_eq!(
            (error.status(), error.reason()),
            (status, reason),
            "{error}"
        );
    }
}

#[test]
fn a_head_is_read_in_full() {
    let bytes = b"\r\nGET /a/b.html?x=1&y=a+b HTTP/1.1\r\nHost: Example.ORG.:8080\r\n\
        Cookie: a=1; b=2\r\nX-Empty:\r\ncookie: c=3\r\nX-Raw: \t\xe4 b \t\r\n\r\nGET /next";
    let head = head(bytes);
    assert_eq!(head.method, "GET");
    assert_eq!(head.target, b"/a/b.html?x=1&y=a+b");
    assert_eq!(head.path, b"/a/b.html");
    assert_eq!(head.query, Some(&b"x=1&y=a+b"[..]));
    assert_eq!(head.host.as_deref(), Some("example.org"));
    assert_eq!(head.version_minor, 1);
    assert_eq!(head.head_len, bytes.len() - b"GET /next".len());
    let fields: Vec<_> = head.headers().collect();
    assert_eq!(
        fields,
        [
            ("Host", &b"Example.ORG.:8080"[..]),
            ("Cookie", b"a=1; b=2"),
            ("X-Empty", b""),
            ("cookie", b"c=3"),
            ("X-Raw", b"\xe4 b"),
        ]
    );
    assert_eq!(head.header("x-raw"), Some(&b"\xe4 b"[..]));
    assert_eq!(head.header("x-ra"), None);
    assert_eq!(head.cookie("b"), Some("2"));
    assert_eq!(head.cookie("c"), Some("3"));
    assert_eq!(head.cookie("d"), None);
    assert_eq!(head.query_param("y").as_deref(), Some("a b"));
    assert_eq!(head.query_param("z"), None);
    assert_eq!(head.subject().as_str(), "GET example.org/a/b.html");
}

#[test]
fn first_cookie_of_a_name_that_is_not_utf8_hides_the_others() {
    for others in [&b"; sid=beta"[..], b"\r\nCookie: sid=beta"] {
        let bytes = [
            &b"GET / HTTP/1.1\r\nHost: a\r\nCookie: sid=\xff"[..],
            others,
            b"\r\n\r\n",
        ]
        .concat();
        assert_eq!(head(&bytes).cookie("sid"), None);
    }
}

#[test]
fn targets_give_path_query_and_host() {
    for (line, fields, path, query, host) in [
        ("GET /", "Host: a\r\n", "/", None, Some("a")),
        ("GET /?", "Host: a\r\n", "/", Some(""), Some("a")),
        ("GET //x?a?b", "Host: a\r\n", "//x", Some("a?b"), Some("a")),
        (
            "GET http://A.example",
            "Host: a.EXAMPLE:80\r\n",
            "/",
            None,
            Some("a.example"),
        ),
        (
            "GET http://a:80?q",
            "Host: a\r\n",
            "/",
            Some("q"),
            Some("a"),
        ),
        ("GET HTTPS://a:443/p", "Host: a.\r\n", "/p", None, Some("a")),
        (
            "GET http://[0::1]:8/p",
            "Host: [::1]:8\r\n",
            "/p",
            None,
            Some("::1"),
        ),
        ("OPTIONS *", "Host: a\r\n", "*", None, Some("a")),
        ("GET /", "Host:\r\n", "/", None, None),
    ] {
        let bytes = format!("{line} HTTP/1.1\r\n{fields}\r\n");
        let head = head(bytes.as_bytes());
        assert_eq!(
            (head.path, head.query, head.host.as_deref()),
            (path.as_bytes(), query.map(str::as_bytes), host),
            "{bytes}"
        );
    }
    assert_eq!(head(b"GET / HTTP/1.0\r\n\r\n").host, None);
    let absolute = head(b"GET http://old.example/p HTTP/1.0\r\n\r\n");
    assert_eq!(absolute.host.as_deref(), Some("old.example"));
    assert_eq!(absolute.version_minor, 0);
}

#[test]
fn bytes_beyond_ascii_in_a_target_are_kept_as_they_are() {
    let bytes = b"GET /caf\xc3\xa9\xff.jpg?q=\xe9 HTTP/1.1\r\nHost: x\r\n\r\n";
    let head = head(bytes);
    assert_eq!(head.path, b"/caf\xc3\xa9\xff.jpg");
    assert_eq!(head.query, Some(&b"q=\xe9"[..]));
    assert_eq!(head.query_param("q").as_deref(), Some("\u{fffd}"));
    assert_eq!(head.subject().as_str(), "GET x/caf\\xc3\\xa9\\xff.jpg");
    assert!(with_connection_close(&head, bytes).starts_with(&bytes[..24]));
    assert_eq!(
        plain_hash(bytes, 0, (1, 2)),
        None,
        "the kernel leaves it to the engine"
    );
}

#[test]
fn a_head_tells_where_its_body_ends() {
    for (fields, wanted) in [
        ("", Body::Length(0)),
        ("Content-Length: 17\r\n", Body::Length(17)),
        (
            "content-length: 18446744073709551615\r\n",
            Body::Length(u64::MAX),
        ),
        ("Transfer-Encoding: gzip, chunked\r\n", Body::Chunked),
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(head(bytes.as_bytes()).body(), wanted, "{fields}");
    }
}

#[test]
fn a_subject_is_short_and_plain() {
    let bytes = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(4000));
    let subject = head(bytes.as_bytes()).subject();
    let subject = subject.as_str();
    assert_eq!(subject.len(), SUBJECT_BYTES_MAX);
    assert!(subject.starts_with("GET a/xxx"));
    let mut forged = head(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    forged.path = "/\n\u{e4}\x7f".as_bytes();
    assert_eq!(forged.subject().as_str(), "GET a/\\x0a\\xc3\\xa4\\x7f");
}

#[test]
fn a_verdict_stays() {
    let mut scanner = HeadScanner::default();
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
    let whole = scan_whole(bytes);
    assert_eq!(scanner.scan(&bytes[..27]), whole);
    assert_eq!(scanner.scan(bytes), whole);
    assert_eq!(
        scanner.scan(&bytes[..10]),
        Scan::Incomplete,
        "bytes taken away do no harm"
    );
    let mut scanner = HeadScanner::default();
    assert_eq!(scanner.scan(b"\x16"), Scan::Malformed(HeadError::NotHttp));
    assert_eq!(
        scanner.scan(b"GET / HTTP/1.1\r\n"),
        Scan::Malformed(HeadError::NotHttp)
    );
}

#[test]
fn hopeless_bytes_are_refused_at_the_first_that_shows_it() {
    for (prefix, error) in [
        (&b"\x16"[..], HeadError::NotHttp),
        (b"\r\n\r", HeadError::NotHttp),
        (b"GET / HTTP/1.1\n", HeadError::BareLf),
        (b"PRI * HTTP/2.0\r\n", HeadError::Version),
        (b"CONNECT a:443 HTTP/1.1\r\n", HeadError::Connect),
        (b"GET / HTTP/1.1\r\nHost: a\r\n ", HeadError::FoldedLine),
        (b"GET / HTTP/1.1\r\nHost: a\0", HeadError::ControlByte),
        (b"GET /\r\n", HeadError::BadRequestLine),
    ] {
        assert_eq!(
            scan_whole(prefix),
            Scan::Malformed(error),
            "{}",
            prefix.escape_ascii()
        );
        let shorter = &prefix[..prefix.len() - 1];
        assert_eq!(
            scan_whole(shorter),
            Scan::Incomplete,
            "{}",
            shorter.escape_ascii()
        );
    }
}

#[test]
fn each_byte_is_looked_at_once() {
    let mut request = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n".to_vec();
    for number in 0..99 {
        request.extend_from_slice(format!("X-{number}: {}\r\n", "v".repeat(150)).as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    let mut scanner = HeadScanner::default();
    for end in 0..request.len() {
        assert_eq!(scanner.scan(&request[..end]), Scan::Incomplete);
        assert_eq!(scanner.looked_at, end);
    }
    let Scan::Complete(head) = scanner.scan(&request) else {
        panic!("refused")
    };
    assert_eq!(head.headers().count(), FIELDS_MAX);
    assert_eq!(scanner.looked_at, request.len());
    request.extend_from_slice(&[0; 5000]);
    assert!(matches!(scanner.scan(&request), Scan::Complete(_)));
    assert_eq!(
        scanner.looked_at,
        request.len() - 5000,
        "what follows the head is not looked at"
    );
}

#[test]
fn the_scanner_is_small() {
    assert!(
        size_of::<HeadScanner>() <= 48,
        "{} bytes",
        size_of::<HeadScanner>()
    );
}

#[test]
fn one_shot_heads_ask_to_close() {
    let bytes = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nX: 1\r\n\
        keep-alive: timeout=5\r\nUpgrade: websocket\r\nProxy-Connection: keep-alive\r\n\
        CONNECTION: x\r\nContent-Length: 3\r\n\r\nabc";
    let rewritten = with_connection_close(&head(bytes), bytes);
    assert_eq!(
        rewritten.escape_ascii().to_string(),
        b"GET /ws HTTP/1.1\r\nHost: a\r\nX: 1\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\
        Connection: close\r\n\r\n"
            .escape_ascii()
            .to_string()
    );
    let bare = b"GET / HTTP/1.0\r\n\r\nrest";
    assert_eq!(
        with_connection_close(&head(bare), bare),
        b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n"
    );
}

/// Requests that break no rule, with fields of every sort.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just("Connection".to_owned()),
        Just("KEEP-ALIVE".to_owned()),
        Just("proxy-connection".to_owned()),
        Just("Cookie".to_owned()),
        "X-[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,12}",
    ];
    let value = proptest::collection::vec(
        prop_oneof![Just(b'\t'), Just(b' '), 0x21..=0x7e_u8, 0x80..=0xff_u8],
        0..40,
    );
    let fields = proptest::collection::vec((name, value), 0..30);
    let target = "/[!-~\u{80}-\u{7ff}&&[^#]]{0,40}";
    (
        "[A-Z]{1,10}",
        target,
        0..2_u8,
        any::<bool>(),
        any::<bool>(),
        fields,
        0..=30_usize,
    )
        .prop_map(
            |(method, target, minor, length, empty_line, mut fields, host_at)| {
                fields.insert(
                    host_at.min(fields.len()),
                    ("hOsT".to_owned(), b"h.example:81".to_vec()),
                );
                if length {
                    fields.push(("Content-Length".to_owned(), b"17".to_vec()));
                }
                let method = if method == "CONNECT" {
                    "GET".to_owned()
                } else {
                    method
                };
                let mut request = if empty_line {
                    b"\r\n".to_vec()
                } else {
                    Vec::new()
                };
                request
                    .extend_from_slice(format!("{method} {target} HTTP/1.{minor}\r\n").as_bytes());
                for (name, value) in fields {
                    request.extend_from_slice(name.as_bytes());
                    request.push(b':');
                    request.extend_from_slice(&value);
                    request.extend_from_slice(b"\r\n");
                }
                request.extend_from_slice(b"\r\n");
                request
            },
        )
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..1500_usize, 0..8).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

const CAPTURED: [&[u8]; 4] = [
    include_bytes!("../../tests/fixtures/http-netscape-1997.bin"),
    include_bytes!("../../tests/fixtures/http-range-2010.bin"),
    include_bytes!("../../tests/fixtures/http-firefox-2014.bin"),
    include_bytes!("../../tests/fixtures/http-post-ocsp.bin"),
];

/// Requests made up and requests of real clients.
fn any_requests() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => requests(),
        1 => prop::sample::select(&CAPTURED[..]).prop_map(<[u8]>::to_vec),
    ]
}

/// A few bytes put over, into or taken out of a request.
fn mutations() -> impl Strategy<Value = Vec<(u8, prop::sample::Index, u8)>> {
    let byte = prop_oneof![
        prop::sample::select(&b"\r\n \t:\0,#@/*.\x7f\x80\x16HPc1"[..]),
        any::<u8>()
    ];
    proptest::collection::vec((0..3_u8, any::<prop::sample::Index>(), byte), 0..6)
}

fn mutated(mut bytes: Vec<u8>, mutations: &[(u8, prop::sample::Index, u8)]) -> Vec<u8> {
    for (kind, place, byte) in mutations {
        if bytes.is_empty() {
            break;
        }
        let at = place.index(bytes.len());
        match kind {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

/// The slow, plain reading: name and value pairs as the tokeniser that others use has them.
fn tokenised(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    assert!(request.parse(bytes).expect("valid").is_complete());
    request
        .headers
        .iter()
        .map(|field| (field.name.to_owned(), field.value.to_vec()))
        .collect()
}

proptest! {
    #[test]
    fn valid_requests_are_read_as_the_tokeniser_reads_them(request in requests()) {
        let head = head(&request);
        prop_assert_eq!(head.head_len, request.len());
        prop_assert_eq!(head.host.as_deref(), Some("h.example"));
        let fields: Vec<_> =
            head.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        prop_assert_eq!(fields, tokenised(&request));
    }

    #[test]
    fn the_verdict_does_not_depend_on_the_cuts(
        request in any_requests(),
        mutations in mutations(),
        cuts in cuts(),
    ) {
        let request = mutated(request, &mutations);
        let whole = scan_whole(&request);
        prop_assert_eq!(&scan_cut(&request, &cuts), &whole);
        prop_assert_eq!(&scan_cut(&request, &every_byte(&request)), &whole);
    }

    #[test]
    fn bytes_behind_the_head_change_nothing(request in requests(), body in any::<Vec<u8>>()) {
        let alone = scan_whole(&request);
        let followed = [request.clone(), body].concat();
        prop_assert_eq!(scan_whole(&followed), alone);
    }

    #[test]
    fn accepted_heads_keep_the_rules_that_matter(
        request in any_requests(),
        mutations in mutations(),
    ) {
        let request = mutated(request, &mutations);
        if let Scan::Complete(head) = scan_whole(&request) {
            let bytes = &request[..head.head_len];
            prop_assert!(bytes.ends_with(b"\r\n\r\n"));
            let line_feeds = bytes.iter().filter(|&&byte| byte == b'\n').count();
            let line_ends = bytes.windows(2).filter(|pair| pair == b"\r\n").count();
            prop_assert_eq!(line_feeds, line_ends);
            prop_assert_eq!(bytes.iter().filter(|&&byte| byte == b'\r').count(), line_ends);
            for name in ["host", "content-length"] {
                let count =
                    head.headers().filter(|(key, _)| key.eq_ignore_ascii_case(name)).count();
                prop_assert!(count <= 1);
            }
            prop_assert!(
                head.header("content-length").is_none()
                    || head.header("transfer-encoding").is_none()
            );
            prop_assert!(head.version_minor == 0 || head.header("host").is_some());
            prop_assert!(head.path.starts_with(b"/") || head.path == b"*");
        }
    }

    #[test]
    fn noise_never_panics(noise in any::<Vec<u8>>(), cuts in cuts()) {
        prop_assert_eq!(scan_cut(&noise, &cuts), scan_whole(&noise));
        let begun = [&b"GET / HTTP/1.1\r\nHost: a\r\n"[..], &noise].concat();
        prop_assert_eq!(scan_cut(&begun, &cuts), scan_whole(&begun));
    }

    #[test]
    fn a_rewritten_head_differs_in_persistence_only(
        request in requests(),
        body in any::<Vec<u8>>(),
    ) {
        let bytes = [request, body].concat();
        let head = head(&bytes);
        let rewritten = with_connection_close(&head, &bytes);
        let again = self::head(&rewritten);
        prop_assert_eq!(again.head_len, rewritten.len(), "no byte of the body");
        prop_assert_eq!(again.header("connection"), Some(&b"close"[..]));
        let others = |head: &RequestHead<'_>| -> Vec<Vec<u8>> {
            let persistence = ["connection", "keep-alive", "proxy-connection"];
            let kept = head.lines().zip(head.headers()).filter(|(_, (name, _))| {
                !persistence.contains(&name.to_ascii_lowercase().as_str())
            });
            kept.map(|(line, _)| line.to_vec()).collect()
        };
        prop_assert_eq!(others(&again), others(&head));
        prop_assert_eq!(&rewritten[..again.fields_at], &bytes[..head.fields_at]);
        prop_assert_eq!((again.method, again.target), (head.method, head.target));
        prop_assert_eq!(with_connection_close(&again, &rewritten), rewritten);
    }
}
