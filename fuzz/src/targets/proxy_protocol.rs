//! `wire::proxy_protocol`: arbitrary bytes where a PROXY header should be.

use fairlead_wire::Scan;
use fairlead_wire::proxy_protocol::{V1_BYTES_MAX, emit_v1, emit_v2, parse};

use super::Target;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "proxy_protocol",
    about: "a PROXY header: a verdict stays when more bytes come, what is parsed can be emitted",
    run,
    bytes_max: 400,
    tokens: &[
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 65535\r\n",
        b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n",
        b"PROXY UNKNOWN",
        b"\r\n\r\n\0\r\nQUIT\n",
        b"\x21\x11\0\x0c",
        b"\x21\x21\0\x24",
        b"\x20\0\0\0",
        b"\x04\0\x01\0",
        b" ",
        b"\r\n",
    ],
};

fn run(bytes: &[u8]) {
    let verdict = parse(bytes);
    let mut more = bytes.to_vec();
    more.extend_from_slice(b"\x00GET");
    match verdict {
        Scan::Incomplete => {
            note_size("proxy.incomplete", bytes.len());
            let whole_v2 = 16 + usize::from(u16::MAX);
            assert!(bytes.len() < whole_v2, "no header is that long");
            if bytes.starts_with(b"P") {
                assert!(bytes.len() < V1_BYTES_MAX, "no line is that long");
            }
        }
        Scan::Malformed(error) => {
            note("proxy.error", error as u64);
            assert_eq!(parse(&more), verdict);
        }
        Scan::Complete(header) => {
            assert!(header.len <= bytes.len() && (1..=2).contains(&header.version));
            assert_eq!(parse(&more), verdict);
            assert_eq!(parse(&bytes[..header.len]), verdict);
            assert_eq!(parse(&bytes[..header.len - 1]), Scan::Incomplete);
            note("proxy.version", u64::from(header.version) << 1);
            let Some((source, destination)) = header.endpoints else {
                return;
            };
            note("proxy.v4", u64::from(source.addr.is_v4()));
            for (version, emit) in [(1, emit_v1 as fn(_, _, &mut Vec<u8>)), (2, emit_v2)] {
                let mut out = Vec::new();
                emit(source, destination, &mut out);
                let again = parse(&out)
                    .complete()
                    .expect("what was emitted is a header");
                assert_eq!((again.version, again.len), (version, out.len()));
                assert_eq!(again.endpoints, header.endpoints);
            }
        }
    }
}
