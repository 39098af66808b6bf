//! The rules that a request head must keep (RFC 9110, RFC 9112).

use super::authority::Authority;
use super::error::HeadError;
use super::head::{FIELDS_MAX, RequestHead};

/// A byte of a token (RFC 9110, section 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The parts of a request line.
pub(super) struct RequestLine<'a> {
    method: &'a str,
    target: &'a [u8],
    version_minor: u8,
    path: &'a [u8],
    query: Option<&'a [u8]>,
    /// Of an absolute target: the authority, with the scheme's port filled in.
    authority: Option<(Authority, u16)>,
}

/// Reads a request line without its CRLF (RFC 9112, section 3).
pub(super) fn request_line(line: &[u8]) -> Result<RequestLine<'_>, HeadError> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::BadRequestLine);
    };
    let Some(method) = core::str::from_utf8(method)
        .ok()
        .filter(|method| !method.is_empty() && method.bytes().all(is_token_byte))
        .filter(|_| !target.is_empty())
    else {
        return Err(HeadError::BadRequestLine);
    };
    let version_minor = match version {
        b"HTTP/1.0" => 0,
        b"HTTP/1.1" => 1,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(HeadError::Version);
        }
        _ => return Err(HeadError::BadRequestLine),
    };
    if method == "CONNECT" {
        return Err(HeadError::Connect);
    }
    if !target
        .iter()
        .all(|byte| matches!(byte, b'!'..=b'~' | 0x80..))
    {
        return Err(HeadError::BadTarget);
    }
    if target.contains(&b'#') {
        return Err(HeadError::FragmentInTarget);
    }
    let (authority, rest) = if target.starts_with(b"/") {
        (None, target)
    } else if target == b"*" {
        if method != "OPTIONS" {
            return Err(HeadError::BadTarget);
        }
        (None, target)
    } else {
        let (authority, rest) = absolute(target)?;
        (Some(authority), rest)
    };
    let (path, query) = match rest.iter().position(|&byte| byte == b'?') {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    // RFC 9112, section 3.2.1: an empty path is sent as "/".
    let path = if path.is_empty() { b"/" } else { path };
    Ok(RequestLine {
        method,
        target,
        version_minor,
        path,
        query,
        authority,
    })
}

/// An absolute target's authority with its port, and what follows it (RFC 9112, section 3.2.2).
fn absolute(target: &[u8]) -> Result<((Authority, u16), &[u8]), HeadError> {
    let colon = target.windows(3).position(|window| window == b"://");
    let colon = colon.ok_or(HeadError::BadTarget)?;
    let (scheme, rest) = (&target[..colon], &target[colon + 3..]);
    let default_port = default_port(scheme).ok_or(HeadError::BadTarget)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
    let (authority, rest) = rest.split_at(end.unwrap_or(rest.len()));
    if authority.contains(&b'@') {
        return Err(HeadError::UserinfoInTarget);
    }
    let authority = Authority::parse(authority).ok_or(HeadError::BadTarget)?;
    if authority.host.is_empty() {
        return Err(HeadError::BadTarget);
    }
    Ok(((authority, default_port), rest))
}

fn default_port(scheme: &[u8]) -> Option<u16> {
    if scheme.eq_ignore_ascii_case(b"http") {
        Some(80)
    } else if scheme.eq_ignore_ascii_case(b"https") {
        Some(443)
    } else {
        None
    }
}

/// Reads a whole head: `head` ends behind the empty line, and the scanner has found its lines to
/// end with CRLF and to hold no control bytes.
pub(super) fn judge(
    head: &[u8],
    line_at: usize,
    fields_at: usize,
) -> Result<RequestHead<'_>, HeadError> {
    let line = request_line(&head[line_at..fields_at - 2])?;
    let fields = Fields::read(&head[fields_at..])?;
    let host = fields.host(&line)?;
    fields.framing(line.version_minor)?;
    Ok(RequestHead {
        method: line.method,
        target: line.target,
        path: line.path,
        query: line.query,
        host,
        version_minor: line.version_minor,
        head_len: head.len(),
        fields_at,
        field_lines: &head[fields_at..head.len() - 2],
    })
}

/// What the fields that decide about meaning hold.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: Option<&'a [u8]>,
    codings: Vec<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(block: &'a [u8]) -> Result<Self, HeadError> {
        let mut cut = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let cut = match httparse::parse_headers(block, &mut cut) {
            Ok(httparse::Status::Complete((len, cut))) if len == block.len() => cut,
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields),
            _ => return Err(name_error(block)),
        };
        let mut fields = Self::default();
        for field in cut.iter() {
            if field.name.eq_ignore_ascii_case("host") {
                if fields.host.replace(field.value).is_some() {
                    return Err(HeadError::HostRepeated);
                }
            } else if field.name.eq_ignore_ascii_case("content-length") {
                if fields.length.replace(field.value).is_some() {
                    return Err(HeadError::ContentLengthRepeated);
                }
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                fields.codings.push(field.value);
            }
        }
        Ok(fields)
    }

    /// The host that the request is for (RFC 9112, sections 3.2 and 3.3).
    fn host(&self, line: &RequestLine<'_>) -> Result<Option<String>, HeadError> {
        let written = match self.host {
            Some(value) => Some(Authority::parse(value).ok_or(HeadError::HostMalformed)?),
            None if line.version_minor == 0 => None,
            None => return Err(HeadError::HostMissing),
        };
        let host = match (&line.authority, written) {
            (Some((target, default_port)), Some(written)) => {
                let port = |authority: &Authority| authority.port.unwrap_or(*default_port);
                if target.host != written.host || port(target) != port(&written) {
                    return Err(HeadError::TargetHostDiffers);
                }
                written.host
            }
            (Some((target, _)), None) => target.host.clone(),
            (None, Some(written)) => written.host,
            (None, None) => return Ok(None),
        };
        Ok((!host.is_empty()).then_some(host))
    }

    /// Checks the fields that tell where the body ends (RFC 9112, section 6).
    fn framing(&self, version_minor: u8) -> Result<(), HeadError> {
        if !self.codings.is_empty() {
            if self.length.is_some() {
                return Err(HeadError::LengthAndCoding);
            }
            if version_minor == 0 {
                return Err(HeadError::CodingOnHttp10);
            }
            return codings(&self.codings);
        }
        let Some(length) = self.length else {
            return Ok(());
        };
        let number = core::str::from_utf8(length)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse::<u64>().ok());
        if number.is_none() {
            Err(HeadError::ContentLengthMalformed)
        } else {
            Ok(())
        }
    }
}

/// Checks the transfer codings of all `Transfer-Encoding` fields, joined (RFC 9112, sections 6.1
/// and 7).
fn codings(values: &[&[u8]]) -> Result<(), HeadError> {
    let mut chunked = false;
    for coding in values
        .iter()
        .flat_map(|value| value.split(|&byte| byte == b','))
    {
        // `chunked` is the last and stands once.
        if chunked {
            return Err(HeadError::CodingNotChunked);
        }
        let coding = coding.trim_ascii();
        if coding.is_empty() {
            return Err(HeadError::CodingNotChunked);
        }
        if coding.eq_ignore_ascii_case(b"chunked") {
            chunked = true;
            continue;
        }
        let known: [&[u8]; 5] = [b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"];
        if !known.iter().any(|name| coding.eq_ignore_ascii_case(name)) {
            return Err(HeadError::CodingUnknown);
        }
    }
    if chunked {
        Ok(())
    } else {
        Err(HeadError::CodingNotChunked)
    }
}

/// Says why `httparse` did not take the fields.
fn name_error(block: &[u8]) -> HeadError {
    for line in block.split_inclusive(|&byte| byte == b'\n') {
        let name_end = line
            .iter()
            .position(|&byte| !is_token_byte(byte))
            .unwrap_or(line.len());
        if matches!(line.get(name_end), Some(b' ' | b'\t')) {
            let blank_end = line[name_end..]
                .iter()
                .position(|byte| !b" \t".contains(byte));
            let behind = blank_end.and_then(|count| line.get(name_end + count));
            if behind == Some(&b':') {
                return HeadError::BlankBeforeColon;
            }
        }
        if line != b"\r\n" && line.get(name_end) != Some(&b':') {
            return HeadError::BadField;
        }
    }
    HeadError::BadField
}
