//! What clients say.

use std::sync::OnceLock;

const HTTP: [&[u8]; 10] = [
    b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET /a.jpg HTTP/1.1\r\nHost: b\r\nConnection: keep-alive\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: www.example.com\r\nKeep-Alive: 5\r\nUser-Agent: t\r\n\r\n\
      GET /y HTTP/1.1\r\nHost: b\r\n\r\n",
    b"POST /42 HTTP/1.1\r\nHost: b\r\nContent-Length: 1000\r\n\r\nabcdefgh",
    b"HEAD /?a=1 HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.0\r\nCookie: sid=x1\r\nX-A: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    b"GET /never-ending HTTP/1.1\r\nX: ",
];

/// How many texts there are.
pub(super) const COUNT: usize = HTTP.len() + 3;

/// One of the texts.
pub(super) fn text(which: usize) -> &'static [u8] {
    static HELLOS: OnceLock<[Vec<u8>; 3]> = OnceLock::new();
    let which = which % COUNT;
    if let Some(text) = HTTP.get(which) {
        return text;
    }
    let hellos = HELLOS.get_or_init(|| {
        [
            hello("a.example", b"h2", 100),
            hello("b.example", b"h2", 1_700),
            hello("b.example", b"http/1.1", 20),
        ]
    });
    &hellos[which - HTTP.len()]
}

/// A ClientHello with a name, a protocol, and `padding` bytes of an extension for padding.
fn hello(name: &str, protocol: &[u8], padding: usize) -> Vec<u8> {
    let vector16 = |content: &[u8]| [&(content.len() as u16).to_be_bytes(), content].concat();
    let entry = [&[0][..], &vector16(name.as_bytes())].concat();
    let offered = [&[protocol.len() as u8][..], protocol].concat();
    let extensions = [
        [&[0, 0][..], &vector16(&vector16(&entry))].concat(),
        [&[0, 16][..], &vector16(&vector16(&offered))].concat(),
        [&[0, 21][..], &vector16(&vec![0; padding])].concat(),
    ]
    .concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 2, 0x13, 1],
        &[1, 0],
        &vector16(&extensions),
    ]
    .concat();
    let len = (body.len() as u32).to_be_bytes();
    let message = [&[1, len[1], len[2], len[3]][..], &body].concat();
    [&[22, 3, 1][..], &vector16(&message)].concat()
}
