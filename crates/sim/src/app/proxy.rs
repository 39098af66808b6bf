//! The PROXY protocol as a server reads it (the specification of haproxy.org, versions 1 and 2).

use fairlead_base::{Address, Endpoint};
use fairlead_splice::config::ProxyVersion;

/// What a header says, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProxyHeader {
    pub(super) source: Endpoint,
    pub(super) destination: Endpoint,
    pub(super) len: usize,
}

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const LINE_BYTES_MAX: usize = 107;

impl ProxyHeader {
    /// `None` until it is whole.
    pub(super) fn read(version: ProxyVersion, bytes: &[u8]) -> Result<Option<Self>, String> {
        match version {
            ProxyVersion::V1 => Self::read_line(bytes),
            ProxyVersion::V2 => Self::read_binary(bytes),
        }
    }

    fn read_line(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            if bytes.len() > LINE_BYTES_MAX {
                return Err(format!("no PROXY line in {LINE_BYTES_MAX} bytes"));
            }
            return Ok(None);
        };
        let line = core::str::from_utf8(&bytes[..end]).map_err(|_| "a PROXY line: no text")?;
        let words: Vec<&str> = line.split(' ').collect();
        let [
            "PROXY",
            family,
            source,
            destination,
            source_port,
            destination_port,
        ] = words[..]
        else {
            return Err(format!("a PROXY line of {} words: {line:?}", words.len()));
        };
        let read = |addr: &str, port: &str| -> Option<Endpoint> {
            let addr: core::net::IpAddr = addr.parse().ok()?;
            if addr.is_ipv4() != (family == "TCP4") {
                return None;
            }
            Some(Endpoint {
                addr: addr.into(),
                port: port.parse().ok()?,
            })
        };
        let pair = read(source, source_port).zip(read(destination, destination_port));
        let (source, destination) = pair.ok_or_else(|| format!("a PROXY line: {line:?}"))?;
        Ok(Some(Self {
            source,
            destination,
            len: end + 2,
        }))
    }

    fn read_binary(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(head) = bytes.get(..16) else {
            return Ok(None);
        };
        if !head.starts_with(SIGNATURE) || head[12] != 0x21 {
            return Err(format!("no PROXY header, version 2: {head:?}"));
        }
        let len = usize::from(u16::from_be_bytes([head[14], head[15]]));
        let Some(body) = bytes.get(16..16 + len) else {
            return Ok(None);
        };
        let width = match head[13] {
            0x11 => 4,
            0x21 => 16,
            other => return Err(format!("a PROXY header of family {other:#x}")),
        };
        let read = |at: usize, port_at: usize| -> Option<Endpoint> {
            let addr = match (width, body.get(at..at + width)?) {
                (4, four) => Address::v4(four.try_into().ok()?),
                (_, sixteen) => Address::v6(sixteen.try_into().ok()?),
            };
            let port = u16::from_be_bytes(body.get(port_at..port_at + 2)?.try_into().ok()?);
            Some(Endpoint { addr, port })
        };
        let pair = read(0, 2 * width).zip(read(width, 2 * width + 2));
        let (source, destination) = pair.ok_or_else(|| format!("a PROXY header of {len} bytes"))?;
        Ok(Some(Self {
            source,
            destination,
            len: 16 + len,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse::<core::net::SocketAddr>().unwrap().into()
    }

    fn expected(len: usize) -> Result<Option<ProxyHeader>, String> {
        let (source, destination) = (endpoint("10.0.0.1:40000"), endpoint("10.1.0.3:80"));
        Ok(Some(ProxyHeader {
            source,
            destination,
            len,
        }))
    }

    #[test]
    fn lines_read_back_whole_and_not_before() {
        let line = b"PROXY TCP4 10.0.0.1 10.1.0.3 40000 80\r\nGET";
        assert_eq!(
            ProxyHeader::read(ProxyVersion::V1, line),
            expected(line.len() - 3)
        );
        assert_eq!(ProxyHeader::read(ProxyVersion::V1, &line[..20]), Ok(None));
        for bad in ["PROXY TCP6 10.0.0.1 10.1.0.3 1 2\r\n", "GET / HTTP/1.1\r\n"] {
            assert!(ProxyHeader::read(ProxyVersion::V1, bad.as_bytes()).is_err());
        }
    }

    #[test]
    fn binary_headers_read_back_whole_and_not_before() {
        let mut header = SIGNATURE.to_vec();
        header.extend([
            0x21, 0x11, 0, 15, 10, 0, 0, 1, 10, 1, 0, 3, 0x9c, 0x40, 0, 80,
        ]);
        header.extend([4, 0, 0]);
        assert_eq!(ProxyHeader::read(ProxyVersion::V2, &header), expected(31));
        assert_eq!(ProxyHeader::read(ProxyVersion::V2, &header[..30]), Ok(None));
        header[0] = b'G';
        assert!(ProxyHeader::read(ProxyVersion::V2, &header).is_err());
    }
}
