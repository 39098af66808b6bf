//! The PROXY protocol: a line or block before a stream that gives the server the client's address
//! (HAProxy's "The PROXY protocol", versions 1 and 2).
//!
//! The switch only writes it. [`parse`] is the other half, for servers in tests.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use fairlead_base::{Address, Endpoint};

use crate::scan::Scan;

/// The longest header of version 1, with its CRLF.
pub const V1_BYTES_MAX: usize = 107;

/// The first bytes of version 2, which no request of another protocol starts with.
const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const V2_HEADER_BYTES: usize = 16;

const VERSION_2_LOCAL: u8 = 0x20;
const VERSION_2_PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;
const STREAM_V4: u8 = 0x11;
const STREAM_V6: u8 = 0x21;
const ADDRESSES_V4_BYTES: usize = 12;
const ADDRESSES_V6_BYTES: usize = 36;

/// Appends a version 1 header. When the endpoints are not both IPv4, both are written as IPv6.
pub fn emit_v1(source: Endpoint, destination: Endpoint, out: &mut Vec<u8>) {
    let line = if both_v4(source, destination) {
        format!(
            "PROXY TCP4 {} {} {} {}\r\n",
            source.addr, destination.addr, source.port, destination.port
        )
    } else {
        format!(
            "PROXY TCP6 {} {} {} {}\r\n",
            Ipv6Addr::from(source.addr.0),
            Ipv6Addr::from(destination.addr.0),
            source.port,
            destination.port
        )
    };
    debug_assert!(line.len() <= V1_BYTES_MAX, "{line:?}");
    out.extend_from_slice(line.as_bytes());
}

/// Appends a version 2 header: command PROXY, a stream, no extra fields. When the endpoints are not
/// both IPv4, both are written as IPv6.
pub fn emit_v2(source: Endpoint, destination: Endpoint, out: &mut Vec<u8>) {
    out.extend_from_slice(&V2_SIGNATURE);
    if both_v4(source, destination) {
        out.extend_from_slice(&[VERSION_2_PROXY, STREAM_V4, 0, ADDRESSES_V4_BYTES as u8]);
        out.extend_from_slice(&source.addr.v4_octets());
        out.extend_from_slice(&destination.addr.v4_octets());
    } else {
        out.extend_from_slice(&[VERSION_2_PROXY, STREAM_V6, 0, ADDRESSES_V6_BYTES as u8]);
        out.extend_from_slice(&source.addr.0);
        out.extend_from_slice(&destination.addr.0);
    }
    out.extend_from_slice(&source.port.to_be_bytes());
    out.extend_from_slice(&destination.port.to_be_bytes());
}

fn both_v4(source: Endpoint, destination: Endpoint) -> bool {
    source.addr.is_v4() && destination.addr.is_v4()
}

/// A header that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// 1 or 2.
    pub version: u8,
    /// Source and destination; `None` when the sender speaks for itself (`LOCAL`) or does not know
    /// (`UNKNOWN`, unspecified family).
    pub endpoints: Option<(Endpoint, Endpoint)>,
    /// Bytes of the header.
    pub len: usize,
}

/// Why bytes are no PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProxyError {
    /// The start of neither version.
    NotProxy,
    /// An invalid or too long version 1 line.
    BadLine,
    /// A version 2 block with an unknown version, command or family.
    Unsupported,
    /// A version 2 block that is too short for its addresses or extra fields.
    BadLength,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotProxy => "not_proxy",
            Self::BadLine => "bad_line",
            Self::Unsupported => "unsupported",
            Self::BadLength => "bad_length",
        })
    }
}

impl core::error::Error for ProxyError {}

/// Reads the header at the front of `bytes`, strictly: decimal numbers without leading zeros,
/// single spaces, CRLF.
pub fn parse(bytes: &[u8]) -> Scan<ProxyHeader, ProxyError> {
    let parsed = if begins_like(bytes, &V2_SIGNATURE) {
        parse_v2(bytes)
    } else if begins_like(bytes, b"PROXY ") {
        parse_v1(bytes)
    } else {
        Err(ProxyError::NotProxy)
    };
    match parsed {
        Ok(Some(header)) => Scan::Complete(header),
        Ok(None) => Scan::Incomplete,
        Err(error) => Scan::Malformed(error),
    }
}

/// True if one is a prefix of the other.
fn begins_like(bytes: &[u8], mark: &[u8]) -> bool {
    let shared = bytes.len().min(mark.len());
    bytes[..shared] == mark[..shared]
}

fn parse_v1(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(line_feed) = window.iter().position(|&byte| byte == b'\n') else {
        return if window.len() == V1_BYTES_MAX {
            Err(ProxyError::BadLine)
        } else {
            Ok(None)
        };
    };
    let line = window[..line_feed]
        .strip_suffix(b"\r")
        .ok_or(ProxyError::BadLine)?;
    let line = core::str::from_utf8(line).map_err(|_| ProxyError::BadLine)?;
    let len = line_feed + 1;
    let parts: Vec<&str> = line.split(' ').collect();
    let endpoints = match parts[..] {
        // What follows UNKNOWN is to be ignored.
        ["PROXY", "UNKNOWN", ..] => None,
        [
            "PROXY",
            family @ ("TCP4" | "TCP6"),
            source,
            destination,
            source_port,
            destination_port,
        ] => {
            let endpoint = |addr: &str, port: &str| {
                let addr = if family == "TCP4" {
                    Address::v4(addr.parse::<Ipv4Addr>().ok()?.octets())
                } else {
                    Address::v6(addr.parse::<Ipv6Addr>().ok()?.octets())
                };
                Some(Endpoint {
                    addr,
                    port: port_number(port)?,
                })
            };
            let source = endpoint(source, source_port).ok_or(ProxyError::BadLine)?;
            let destination = endpoint(destination, destination_port).ok_or(ProxyError::BadLine)?;
            Some((source, destination))
        }
        _ => return Err(ProxyError::BadLine),
    };
    Ok(Some(ProxyHeader {
        version: 1,
        endpoints,
        len,
    }))
}

fn port_number(text: &str) -> Option<u16> {
    let number: u16 = text.parse().ok()?;
    // Signs and leading zeros are not the canonical form.
    (number.to_string() == text).then_some(number)
}

fn parse_v2(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let Some((header, rest)) = bytes.split_at_checked(V2_HEADER_BYTES) else {
        return Ok(None);
    };
    let [command, family, len_high, len_low] = header[V2_SIGNATURE.len()..] else {
        return Err(ProxyError::BadLength);
    };
    let rest_len = usize::from(u16::from_be_bytes([len_high, len_low]));
    let addresses_len = match (command, family) {
        (VERSION_2_LOCAL, _) | (VERSION_2_PROXY, UNSPECIFIED) => 0,
        (VERSION_2_PROXY, STREAM_V4) => ADDRESSES_V4_BYTES,
        (VERSION_2_PROXY, STREAM_V6) => ADDRESSES_V6_BYTES,
        _ => return Err(ProxyError::Unsupported),
    };
    if rest_len < addresses_len {
        return Err(ProxyError::BadLength);
    }
    let Some(rest) = rest.get(..rest_len) else {
        return Ok(None);
    };
    let (addresses, extra) = rest.split_at(addresses_len);
    if addresses_len > 0 {
        check_extra(extra)?;
    }
    let endpoints = match addresses_len {
        ADDRESSES_V4_BYTES => endpoints(addresses, 4, |octets| {
            let mut four = [0; 4];
            four.copy_from_slice(octets);
            Address::v4(four)
        }),
        ADDRESSES_V6_BYTES => endpoints(addresses, 16, |octets| {
            let mut sixteen = [0; 16];
            sixteen.copy_from_slice(octets);
            Address::v6(sixteen)
        }),
        _ => None,
    };
    Ok(Some(ProxyHeader {
        version: 2,
        endpoints,
        len: V2_HEADER_BYTES + rest_len,
    }))
}

/// Two addresses of `width` bytes, then two ports.
fn endpoints(
    bytes: &[u8],
    width: usize,
    address: impl Fn(&[u8]) -> Address,
) -> Option<(Endpoint, Endpoint)> {
    let (addresses, ports) = bytes.split_at_checked(2 * width)?;
    let [source_high, source_low, destination_high, destination_low] = *ports else {
        return None;
    };
    let (source, destination) = addresses.split_at(width);
    Some((
        Endpoint {
            addr: address(source),
            port: u16::from_be_bytes([source_high, source_low]),
        },
        Endpoint {
            addr: address(destination),
            port: u16::from_be_bytes([destination_high, destination_low]),
        },
    ))
}

/// Extra fields: a type, two bytes of length, and the value.
fn check_extra(mut extra: &[u8]) -> Result<(), ProxyError> {
    while !extra.is_empty() {
        let [_, len_high, len_low, rest @ ..] = extra else {
            return Err(ProxyError::BadLength);
        };
        let len = usize::from(u16::from_be_bytes([*len_high, *len_low]));
        extra = rest.get(len..).ok_or(ProxyError::BadLength)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse::<core::net::SocketAddr>()
            .expect("an endpoint")
            .into()
    }

    fn v1(source: &str, destination: &str) -> String {
        let mut out = Vec::new();
        emit_v1(endpoint(source), endpoint(destination), &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    fn v2(source: &str, destination: &str) -> Vec<u8> {
        let mut out = Vec::new();
        emit_v2(endpoint(source), endpoint(destination), &mut out);
        out
    }

    #[test]
    fn version_1_is_the_line_of_the_specification() {
        assert_eq!(
            v1("192.168.0.1:56324", "192.168.0.11:443"),
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
        );
        assert_eq!(
            v1("[2001:db8::1]:1", "[2001:db8::2]:65535"),
            "PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n"
        );
        assert_eq!(
            v1("192.0.2.1:1", "[2001:db8::2]:2"),
            "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n"
        );
    }

    #[test]
    fn version_2_is_the_block_of_the_specification() {
        let signature = [
            0x0d, 0x0a, 0x0d, 0x0a, 0, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a,
        ];
        let v4 = [
            &signature[..],
            &[
                0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x34, 0x01, 0xbb,
            ],
        ];
        assert_eq!(v2("192.0.2.1:4660", "198.51.100.2:443"), v4.concat());
        let source = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let destination = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let v6 = [
            &signature[..],
            &[0x21, 0x21, 0, 36],
            &source,
            &destination,
            &[0, 1, 0, 2],
        ];
        assert_eq!(v2("[2001:db8::1]:1", "[2001:db8::2]:2"), v6.concat());
    }

    #[test]
    fn headers_are_appended() {
        let mut out = b"x".to_vec();
        emit_v1(Endpoint::default(), Endpoint::default(), &mut out);
        emit_v2(Endpoint::default(), Endpoint::default(), &mut out);
        assert!(out.starts_with(b"xPROXY TCP6 :: :: 0 0\r\n\r\n\r\n\0"));
    }

    #[test]
    fn headers_without_endpoints_are_read() {
        let local = [&V2_SIGNATURE[..], &[0x20, 0, 0, 3, 1, 2, 3]].concat();
        let unspecified = [&V2_SIGNATURE[..], &[0x21, 0, 0, 0]].concat();
        for (bytes, version) in [
            (&b"PROXY UNKNOWN\r\n"[..], 1),
            (b"PROXY UNKNOWN ff:: :: 1 2\r\n", 1),
            (&local, 2),
            (&unspecified, 2),
        ] {
            let header = ProxyHeader {
                version,
                endpoints: None,
                len: bytes.len(),
            };
            assert_eq!(
                parse(bytes),
                Scan::Complete(header),
                "{}",
                bytes.escape_ascii()
            );
        }
        let extra = [&v2("192.0.2.1:1", "192.0.2.2:2")[..], &[4, 0, 1, 0]].concat();
        let mut longer = extra.clone();
        longer[15] += 4;
        assert_eq!(parse(&longer).complete().map(|header| header.len), Some(32));
        assert_eq!(parse(&extra).complete().map(|header| header.len), Some(28));
    }

    #[test]
    fn broken_headers_are_refused() {
        let block = |command: u8, family: u8, rest: &[u8]| {
            let len = u8::try_from(rest.len()).expect("short");
            [&V2_SIGNATURE[..], &[command, family, 0, len], rest].concat()
        };
        let long = format!("PROXY TCP4 {}", "1".repeat(100)).into_bytes();
        for (bytes, error) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), ProxyError::NotProxy),
            (b"PROXX".to_vec(), ProxyError::NotProxy),
            (b"\r\n\r\n\0\r\nQUIX".to_vec(), ProxyError::NotProxy),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 1 2\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 1\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 1 2 3\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4  1.2.3.4 1.2.3.5 1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.04 1.2.3.5 1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 01 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 +1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.5 1 65536\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP4 ::1 1.2.3.5 1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY TCP6 1.2.3.4 ::1 1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (
                b"PROXY UDP4 1.2.3.4 1.2.3.5 1 2\r\n".to_vec(),
                ProxyError::BadLine,
            ),
            (b"PROXY \xff\r\n".to_vec(), ProxyError::BadLine),
            (long, ProxyError::BadLine),
            (block(0x11, 0x11, &[0; 12]), ProxyError::Unsupported),
            (block(0x22, 0x11, &[0; 12]), ProxyError::Unsupported),
            (block(0x21, 0x12, &[0; 12]), ProxyError::Unsupported),
            (block(0x21, 0x31, &[0; 216]), ProxyError::Unsupported),
            (block(0x21, 0x11, &[0; 11]), ProxyError::BadLength),
            (block(0x21, 0x21, &[0; 35]), ProxyError::BadLength),
            (block(0x21, 0x11, &[0; 14]), ProxyError::BadLength),
            (
                block(0x21, 0x11, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1]),
                ProxyError::BadLength,
            ),
        ] {
            assert_eq!(
                parse(&bytes),
                Scan::Malformed(error),
                "{}",
                bytes.escape_ascii()
            );
        }
    }

    fn endpoints() -> impl Strategy<Value = Endpoint> {
        let addr = prop_oneof![
            any::<[u8; 4]>().prop_map(Address::v4),
            any::<[u8; 16]>().prop_map(Address::v6),
        ];
        (addr, any::<u16>()).prop_map(|(addr, port)| Endpoint { addr, port })
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_back(
            source in endpoints(),
            destination in endpoints(),
            behind in any::<Vec<u8>>(),
        ) {
            for (version, emit) in [(1, emit_v1 as fn(_, _, &mut Vec<u8>)), (2, emit_v2)] {
                let mut bytes = Vec::new();
                emit(source, destination, &mut bytes);
                let len = bytes.len();
                for end in 0..len {
                    prop_assert_eq!(parse(&bytes[..end]), Scan::Incomplete);
                }
                bytes.extend_from_slice(&behind);
                let endpoints = Some((source, destination));
                let header = ProxyHeader { version, endpoints, len };
                prop_assert_eq!(parse(&bytes), Scan::Complete(header));
            }
        }

        #[test]
        fn noise_never_panics(
            noise in any::<Vec<u8>>(),
            command in 0x20..0x22_u8,
            family in 0..0x32_u8,
        ) {
            prop_assert_eq!(parse(&noise).complete().map(|header| header.version), None);
            let line = [b"PROXY TCP4 ", &noise[..]].concat();
            prop_assert!(parse(&line).complete().is_none());
            let block = [&V2_SIGNATURE[..], &[command, family, 0], &noise].concat();
            if let Scan::Complete(header) = parse(&block) {
                prop_assert!(header.len <= block.len());
            }
        }
    }
}
