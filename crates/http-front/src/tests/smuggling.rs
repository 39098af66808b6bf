//! Requests that two readers could end at different places. The kinds are those that were published
//! for llhttp (CVE-2022-32213 to 32215, 2022-35256, 2023-30589, 2024-27982, 2025-23167) and found
//! by the HTTP Garden; the requests are our own.

use super::world::World;

/// What a smuggler hides behind the first request.
const HIDDEN: &str = "GET /a/hidden HTTP/1.1\r\nHost: x\r\n\r\n";

/// Fields of a request, each with its end.
const FIELDS: [&[u8]; 41] = [
    // Two lengths, or a length and chunks.
    b"Content-Length: 3\r\nContent-Length: 4\r\n",
    b"Content-Length: 3, 4\r\n",
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    // Lengths that are no plain number.
    b"Content-Length:\r\n",
    b"Content-Length: +3\r\n",
    b"Content-Length: -3\r\n",
    b"Content-Length: 0x3\r\n",
    b"Content-Length: 0b11\r\n",
    b"Content-Length: 1_0\r\n",
    b"Content-Length: 3 4\r\n",
    b"Content-Length: 3;\r\n",
    b"Content-Length: \"3\"\r\n",
    b"Content-Length: 3\x0b\r\n",
    b"Content-Length: \xd9\xa3\r\n",
    b"Content-Length: 18446744073709551619\r\n",
    // Other codings, and `chunked` written in other ways.
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunkedchunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n",
    b"Transfer-Encoding: \xa0chunked\r\n",
    b"Transfer-Encoding: \"chunked\"\r\n",
    b"Transfer-Encoding: chunked;x\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    // Names that are invalid.
    b"Transfer-Encoding : chunked\r\n",
    b" Content-Length: 3\r\n",
    b"\tTransfer-Encoding: chunked\r\n",
    b"Content-Length\x00: 3\r\n",
    b"Content Length: 3\r\nContent-Length: 3\r\n",
    b": 3\r\n",
    b"Content-Length\r\n",
    // Ends of lines that are invalid.
    b"X: y\rTransfer-Encoding: chunked\r\n",
    b"X: y\r\rTransfer-Encoding: chunked\r\n",
    b"X: y\x00\r\n",
    b"X: y\r\n\rX: z\r\n",
    b"X: y\r\n Transfer-Encoding: chunked\r\n",
    // Two hosts.
    b"Host: y\r\n",
    b"Host: x\r\n",
];

/// Bodies in chunks that are invalid.
const CHUNKS: [&[u8]; 17] = [
    b"0x2\r\nab\r\n0\r\n\r\n",
    b"+2\r\nab\r\n0\r\n\r\n",
    b"-2\r\nab\r\n0\r\n\r\n",
    b" 2\r\nab\r\n0\r\n\r\n",
    b"0_2\r\nab\r\n0\r\n\r\n",
    b"\r\nab\r\n0\r\n\r\n",
    b"2\nab\r\n0\r\n\r\n",
    b"2\rab\r\n0\r\n\r\n",
    b"2\r\nabX\r\n0\r\n\r\n",
    b"2\r\nab\n0\r\n\r\n",
    b"2\r\nab0\r\n\r\n",
    b"10000000000000000002\r\nab\r\n0\r\n\r\n",
    b"2;\nx\r\nab\r\n0\r\n\r\n",
    b"2;x\rab\r\n0\r\n\r\n",
    b"2\x00\r\nab\r\n0\r\n\r\n",
    b"2,\r\nab\r\n0\r\n\r\n",
    b"\xd9\xa2\r\nab\r\n0\r\n\r\n",
];

fn world(seed: usize) -> World {
    let mut world = World::new();
    world.piece = [usize::MAX, 1, 13][seed % 3];
    world
}

#[test]
fn heads_with_two_meanings_reach_no_server() {
    for (number, fields) in FIELDS.iter().enumerate() {
        let mut world = world(number);
        let first = [b"POST /a HTTP/1.1\r\nHost: x\r\n", *fields, b"\r\n"].concat();
        let client = world.ask([&first, HIDDEN.as_bytes()].concat());
        let shown = String::from_utf8_lossy(fields).into_owned();
        let got = world.got(client);
        assert!(
            got.starts_with("HTTP/1.1 4") || got.starts_with("HTTP/1.1 501"),
            "{shown:?}: {got}"
        );
        assert_eq!(got.matches("HTTP/1.1").count(), 1, "{shown:?}");
        assert!(world.connects.is_empty(), "{shown:?}");
        assert!(
            world.far(client).shut || world.far(client).closed,
            "{shown:?}"
        );
    }
}

#[test]
fn lines_that_end_otherwise_reach_no_server() {
    for (number, head) in [
        "POST /a HTTP/1.1\nHost: x\nContent-Length: 3\n\n",
        "POST /a HTTP/1.1\r\nHost: x\nContent-Length: 3\r\n\r\n",
        "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\n\r\n",
        "POST /a HTTP/1.1\rHost: x\r\n\r\n",
        "POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /a  HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /a HTTP/1.1 \r\nHost: x\r\n\r\n",
        "POST\t/a\tHTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /a HTTP/1.1\r\n Host: x\r\n\r\n",
        "POST /a HTTP/2.0\r\nHost: x\r\n\r\n",
        "POST /a HTTP/1.1x\r\nHost: x\r\n\r\n",
        "POST http://y/a HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    .iter()
    .enumerate()
    {
        let mut world = world(number);
        let client = world.ask([head, HIDDEN].concat());
        let got = world.got(client);
        let refused = got.starts_with("HTTP/1.1 4") || got.starts_with("HTTP/1.1 5");
        assert!(
            refused && got.matches("HTTP/1.1").count() == 1,
            "{head:?}: {got}"
        );
        assert!(world.connects.is_empty(), "{head:?}");
    }
}

/// The head is on its way when the chunk comes: the server's connection ends without the end of a
/// body, and is used for nothing else.
#[test]
fn chunks_with_two_meanings_end_both_connections() {
    for (number, chunks) in CHUNKS.iter().enumerate() {
        let mut world = world(number);
        let head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let client = world.ask([&head[..], *chunks, HIDDEN.as_bytes()].concat());
        let shown = String::from_utf8_lossy(chunks).into_owned();
        let got = world.got(client);
        assert!(got.starts_with("HTTP/1.1 400 "), "{shown:?}: {got}");
        for server in world.connects.clone() {
            let far = world.far(server);
            assert!(far.closed, "{shown:?}");
            let got = String::from_utf8_lossy(&far.got).into_owned();
            assert!(
                !got.contains("hidden") && !got.ends_with("0\r\n\r\n"),
                "{shown:?}: {got}"
            );
        }
    }
}

/// What servers say, too, must have one end: a part of the next client's response would be another
/// one's.
#[test]
fn responses_with_two_meanings_are_not_passed_on() {
    for (number, fields) in [
        &b"Content-Length: 3\r\nContent-Length: 4\r\n"[..],
        b"Content-Length: 3, 4\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 0x3\r\n",
        b"Content-Length: 3 4\r\n",
        b"Content-Length: 18446744073709551619\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"X: y\rContent-Length: 3\r\n",
        b"X: y\x00\r\n",
    ]
    .iter()
    .enumerate()
    {
        let mut world = world(number);
        let client = world.ask("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        let server = world.connects[0];
        world.say(
            server,
            [b"HTTP/1.1 200 OK\r\n", *fields, b"\r\nabc"].concat(),
        );
        let shown = String::from_utf8_lossy(fields).into_owned();
        let got = world.got(client);
        assert!(got.starts_with("HTTP/1.1 502 "), "{shown:?}: {got}");
        assert!(world.far(server).closed, "{shown:?}");
    }
}
