//! The PROXY protocol: a line or block in front of a stream that tells the server who the client is
//! (HAProxy's "The PROXY protocol", versions 1 and 2).
//!
//! The switch only writes it. [`parse`] is the other half, for servers in tests.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use fairlead_base::{Address, Endpoint};

use crate::scan::Scan;

/// The longest header of version 1, with its CRLF.
pub const V1_BYTES_MAX: usize = 107;

/// The first bytes of version 2: no request of any protocol begins with them.
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
    /// They begin like neither version.
    NotProxy,
    /// A version 1 line that is too long or does not hold what it must.
    BadLine,
    /// A version 2 block with an unknown version, command or family.
    Unsupported,
    /// A version 2 block that is too short for its addresses, or whose extra fields do not fit.
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

/// Reads the header at the front of `bytes`, strictly: decimal numbers without leading zeros, single
/// spaces, CRLF.
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

/// True when one of the two begins with the other.
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
    // Sign and leading zeros are not the one way to write it.
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
