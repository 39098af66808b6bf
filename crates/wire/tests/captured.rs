//! What real clients sent, as captured (see `fixtures/README.md`).

use fairlead_wire::Scan;
use fairlead_wire::http::{HeadScanner, RequestHead, with_connection_close};
use fairlead_wire::tls::{ClientHello, HelloScanner};

fn head(bytes: &[u8]) -> RequestHead<'_> {
    let mut scanner = HeadScanner::default();
    for end in 0..bytes.len() {
        if let Scan::Complete(head) = scanner.scan(&bytes[..end]) {
            assert_eq!(
                head.head_len, end,
                "complete with the last byte of the head"
            );
            return head;
        }
    }
    scanner.scan(bytes).complete().expect("a head")
}

fn hello(bytes: &[u8]) -> ClientHello {
    let mut scanner = HelloScanner::default();
    for segment_end in (0..bytes.len()).step_by(512) {
        if let Scan::Complete(hello) = scanner.scan(&bytes[..segment_end]) {
            return hello;
        }
    }
    scanner.scan(bytes).complete().expect("a hello")
}

#[test]
fn a_browser_of_1997() {
    let bytes = include_bytes!("fixtures/http-netscape-1997.bin");
    let head = head(bytes);
    assert_eq!(head.subject().as_str(), "GET ace.cs.ohiou.edu/~osterman/");
    assert_eq!((head.version_minor, head.head_len), (0, bytes.len()));
    assert_eq!(head.header("connection"), Some(&b"Keep-Alive"[..]));
    let rewritten = with_connection_close(&head, bytes);
    assert_eq!(
        rewritten.len(),
        bytes.len() - "Keep-Alive".len() + "close".len()
    );
    assert!(rewritten.ends_with(b"*/*\r\nConnection: close\r\n\r\n"));
}

#[test]
fn a_browser_of_2014_with_the_next_request_behind() {
    let bytes = include_bytes!("fixtures/http-firefox-2014.bin");
    let first = head(bytes);
    assert_eq!(first.subject().as_str(), "GET bro.org/");
    assert_eq!(first.header("Accept-Encoding"), Some(&b"gzip, deflate"[..]));
    assert_eq!(first.headers().count(), 6);
    let second = head(&bytes[first.head_len..]);
    assert_eq!(second.subject().as_str(), "GET bro.org/css/pygments.css");
}

#[test]
fn a_range_request() {
    let head = head(include_bytes!("fixtures/http-range-2010.bin"));
    assert_eq!(head.host.as_deref(), Some("cs.gmu.edu"));
    assert_eq!(head.header("range"), Some(&b"bytes=32768-555522"[..]));
    assert_eq!(head.path, b"/~tr-admin/papers/GMU-CS-TR-2010-20.pdf");
}

#[test]
fn a_post_with_a_binary_body() {
    let bytes = include_bytes!("fixtures/http-post-ocsp.bin");
    let head = head(bytes);
    assert_eq!(
        head.subject().as_str(),
        "POST ocsp.startssl.com/sub/class2/server/ca"
    );
    assert_eq!(head.header("content-length"), Some(&b"70"[..]));
    assert_eq!(bytes.len() - head.head_len, 70);
}

#[test]
fn a_hello_longer_than_a_segment() {
    let bytes = include_bytes!("fixtures/tls-over-one-segment.bin");
    let hello = hello(bytes);
    assert_eq!(bytes.len(), 1956);
    assert_eq!(hello.len, bytes.len());
    assert_eq!(hello.sni.as_deref(), Some("it-mil-v086.prod.surfshark.com"));
    assert_eq!(hello.alpn, [&b"h2"[..], b"http/1.1"]);
    assert!(hello.has_ech);
}

#[test]
fn a_hello_with_encrypted_hello_extension() {
    let hello = hello(include_bytes!("fixtures/tls-ech-grease.bin"));
    assert_eq!(
        hello.sni.as_deref(),
        Some("enoki.us-east.host.bsky.network")
    );
    assert!(hello.has_ech);
    assert_eq!(hello.legacy_version, 0x0303);
}

#[test]
fn a_hello_of_tls_1_0_without_a_name() {
    let hello = hello(include_bytes!("fixtures/tls10-without-sni.bin"));
    assert_eq!((hello.sni, hello.alpn.len()), (None, 0));
    assert_eq!((hello.legacy_version, hello.has_ech), (0x0301, false));
}

#[test]
fn a_browser_and_a_telephone_of_2020() {
    let firefox = hello(include_bytes!("fixtures/tls-firefox-2020.bin"));
    assert_eq!(firefox.sni.as_deref(), Some("www.ntop.org"));
    assert_eq!(firefox.len, 517);
    let bytes = include_bytes!("fixtures/tls-iphone-2020.bin");
    let iphone = hello(bytes);
    assert_eq!(iphone.sni.as_deref(), Some("mesu.apple.com"));
    assert_eq!(iphone.alpn, [&b"h2"[..], b"http/1.1"]);
    assert!(
        iphone.len < bytes.len(),
        "records of the running connection follow"
    );
}
