//! `wire::http`: arbitrary request heads, whole and in pieces.

use fairlead_base::Rng;
use fairlead_wire::Scan;
use fairlead_wire::http::{
    FIELDS_MAX, HeadError, HeadScanner, RequestHead, SUBJECT_BYTES_MAX, with_connection_close,
};

use super::Target;
use crate::corpus::fingerprint;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "http_head",
    about: "a request head: one verdict for every cut, httparse agrees, rewritten heads are valid",
    run,
    bytes_max: 4_096,
    tokens: &[
        b"\r\n",
        b"\r\n\r\n",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST ",
        b"CONNECT ",
        b"OPTIONS * ",
        b"http://a.example:80/",
        b"http://[::1]",
        b"Host: ",
        b"Host: b\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Connection: keep-alive, Upgrade\r\n",
        b"Keep-Alive: timeout=5\r\n",
        b"Proxy-Connection: close\r\n",
        b"Upgrade: websocket\r\n",
        b"Cookie: sid=abc; theme=dark\r\n",
        b"X: \xe4\r\n",
        b"?a=1&b=x+y%2F",
        b"\n",
        b"\r",
        b"\0",
        b"\t",
        b": ",
        b" ",
    ],
};

/// This many bytes are also passed one by one.
const ONE_BY_ONE_MAX: usize = 512;

fn run(bytes: &[u8]) {
    let whole = HeadScanner::default().scan(bytes);
    check_pieces(bytes, &whole);
    match &whole {
        Scan::Incomplete => note_size("http.incomplete", bytes.len()),
        Scan::Malformed(error) => check_error(*error),
        Scan::Complete(head) => check_head(bytes, head),
    }
}

fn check_pieces(bytes: &[u8], whole: &Scan<RequestHead<'_>, HeadError>) {
    let mut rng = Rng::new(fingerprint(bytes));
    let mut ends: Vec<usize> = (0..3)
        .map(|_| rng.below(bytes.len() as u32 + 1) as usize)
        .collect();
    ends.sort_unstable();
    assert_eq!(&scan_in_pieces(bytes, &ends), whole, "cut at {ends:?}");
    if bytes.len() <= ONE_BY_ONE_MAX {
        let every: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(&scan_in_pieces(bytes, &every), whole, "byte by byte");
    }
}

/// The verdict after arrivals that end at `ends`, and then all bytes. A verdict that is not
/// [`Scan::Incomplete`] must stay.
fn scan_in_pieces<'a>(bytes: &'a [u8], ends: &[usize]) -> Scan<RequestHead<'a>, HeadError> {
    let mut scanner = HeadScanner::default();
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

fn check_error(error: HeadError) {
    note("http.error", fingerprint(error.name().as_bytes()));
    assert!(matches!(error.status(), 400 | 431 | 501 | 505), "{error}");
    assert!(!error.reason().name().is_empty());
}

fn check_head(bytes: &[u8], head: &RequestHead<'_>) {
    let len = head.head_len;
    assert!(len <= bytes.len());
    assert!(bytes[..len].ends_with(b"\r\n\r\n"));
    let exactly = HeadScanner::default().scan(&bytes[..len]);
    assert_eq!(exactly, Scan::Complete(head.clone()));
    let shorter = HeadScanner::default().scan(&bytes[..len - 1]);
    assert_eq!(shorter, Scan::Incomplete);
    let fields = head.headers().count();
    assert!(fields <= FIELDS_MAX);
    note_size("http.fields", fields);
    note("http.method", fingerprint(head.method.as_bytes()) % 16);
    let form = head.path.first().map_or(0, |&byte| u64::from(byte)) << 1;
    note("http.form", form | u64::from(head.query.is_some()));

    let host = head.host.as_deref().unwrap_or("a");
    assert!(!host.is_empty() && !host.ends_with('.'), "{host:?}");
    assert!(!host.bytes().any(|byte| byte.is_ascii_uppercase()));
    assert!(head.version_minor <= 1);
    assert!(head.path.starts_with(b"/") || head.path == b"*");
    let subject = head.subject();
    let subject = subject.as_str();
    assert!(subject.len() <= SUBJECT_BYTES_MAX);
    assert!(subject.bytes().all(|byte| matches!(byte, b' '..=b'~')));
    for name in ["sid", "theme", "a", "b", "", "\u{e4}"] {
        note("http.cookie", u64::from(head.cookie(name).is_some()));
        note("http.query", u64::from(head.query_param(name).is_some()));
        let _ = head.header(name);
    }
    check_tokeniser(&bytes[..len], head);
    check_rewritten(bytes, head);
}

/// The tokeniser that others use cuts the head at the same places.
fn check_tokeniser(bytes: &[u8], head: &RequestHead<'_>) {
    if !head.target.is_ascii() {
        return; // it takes UTF-8 at most
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let status = request.parse(bytes);
    assert_eq!(status, Ok(httparse::Status::Complete(bytes.len())));
    assert_eq!(request.method, Some(head.method));
    assert_eq!(request.path.map(str::as_bytes), Some(head.target));
    assert_eq!(request.version, Some(head.version_minor));
    let theirs: Vec<_> = request
        .headers
        .iter()
        .map(|field| (field.name, field.value))
        .collect();
    let ours: Vec<_> = head.headers().collect();
    assert_eq!(ours, theirs);
}

fn check_rewritten(bytes: &[u8], head: &RequestHead<'_>) {
    let rewritten = with_connection_close(head, bytes);
    // One field more than came may be one too many for the scanner; that is not the server's limit.
    let again = match HeadScanner::default().scan(&rewritten) {
        Scan::Complete(again) => again,
        Scan::Malformed(HeadError::TooManyFields) => {
            assert_eq!(head.headers().count(), FIELDS_MAX);
            return;
        }
        other => panic!("a rewritten head is {other:?}"),
    };
    assert_eq!(again.head_len, rewritten.len());
    assert_eq!(again.header("connection"), Some(&b"close"[..]));
    assert_eq!(
        again
            .headers()
            .filter(|(name, _)| is_persistence(name))
            .count(),
        1
    );
    let others = |head: &RequestHead<'_>| -> Vec<(String, Vec<u8>)> {
        head.headers()
            .filter(|(name, _)| !is_persistence(name))
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect()
    };
    assert_eq!(others(&again), others(head));
    assert_eq!((again.method, again.target), (head.method, head.target));
    assert_eq!(
        (&again.host, again.version_minor),
        (&head.host, head.version_minor)
    );
}

fn is_persistence(name: &str) -> bool {
    ["connection", "keep-alive", "proxy-connection"]
        .iter()
        .any(|field| name.eq_ignore_ascii_case(field))
}
