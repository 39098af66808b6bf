//! Where in a head the byte is that breaks a rule.

use super::error::HeadError;
use super::head::field;
use super::rules::is_token_byte;

/// The offset of the byte that breaks the rule of `error`, `None` for what is missing. `bytes` are
/// those that the scanner has looked at; the request line begins at `line_at`, and the first field
/// line at `fields_at`, which is 0 while the request line is not known to be right.
pub(super) fn place(
    error: HeadError,
    bytes: &[u8],
    line_at: usize,
    fields_at: usize,
) -> Option<usize> {
    let rest = bytes.get(line_at..)?;
    let line = match rest.strip_suffix(b"\r\n") {
        Some(line) if fields_at == 0 => line,
        _ => rest
            .get(..fields_at.saturating_sub(line_at + 2))
            .unwrap_or_default(),
    };
    let fields = bytes.get(fields_at..).unwrap_or_default();
    let last = bytes.len().checked_sub(1);
    let in_field = |names: &[&str], count| value_at(fields, names, count).map(|at| fields_at + at);
    match error {
        HeadError::BadRequestLine if line.is_empty() => last,
        HeadError::BadRequestLine
        | HeadError::Version
        | HeadError::Connect
        | HeadError::BadTarget
        | HeadError::FragmentInTarget
        | HeadError::UserinfoInTarget => Some(line_at + in_request_line(error, line)),
        HeadError::HostMissing | HeadError::TargetTooLong | HeadError::TooLarge => None,
        HeadError::TargetHostDiffers | HeadError::HostMalformed => in_field(&["host"], 1),
        HeadError::HostRepeated => in_field(&["host"], 2),
        HeadError::ContentLengthMalformed => in_field(&["content-length"], 1),
        HeadError::ContentLengthRepeated => in_field(&["content-length"], 2),
        HeadError::LengthAndCoding => in_field(&["content-length", "transfer-encoding"], 2),
        HeadError::CodingNotChunked | HeadError::CodingUnknown | HeadError::CodingOnHttp10 => {
            in_field(&["transfer-encoding"], 1)
        }
        HeadError::BadField | HeadError::BlankBeforeColon => {
            bad_name_at(fields).map_or(last, |at| Some(fields_at + at))
        }
        // Found at the byte that was looked at last.
        HeadError::NotHttp
        | HeadError::BareLf
        | HeadError::BareCr
        | HeadError::ControlByte
        | HeadError::FoldedLine
        | HeadError::MethodTooLong
        | HeadError::TooManyFields => last,
    }
}

/// The offset in a request line without its CRLF.
fn in_request_line(error: HeadError, line: &[u8]) -> usize {
    let is_space = |&byte: &u8| byte == b' ';
    let target_at = line
        .iter()
        .position(is_space)
        .map_or(line.len(), |at| at + 1);
    let target = &line[target_at..];
    let target_end = target.iter().position(is_space).unwrap_or(target.len());
    let version_at = (target_at + target_end + 1).min(line.len());
    let target = &target[..target_end];
    let in_target = |wrong: fn(&u8) -> bool| target_at + target.iter().position(wrong).unwrap_or(0);
    match error {
        HeadError::Connect => 0,
        HeadError::BadTarget => target_at,
        HeadError::FragmentInTarget => in_target(|&byte| byte == b'#'),
        HeadError::UserinfoInTarget => in_target(|&byte| byte == b'@'),
        // A space too many, or what stands where the version should.
        _ => {
            let version = &line[version_at..];
            version
                .iter()
                .position(is_space)
                .map_or(version_at, |at| version_at + at)
        }
    }
}

/// The offset of the value of the `count`th field with one of these names.
fn value_at(fields: &[u8], names: &[&str], count: usize) -> Option<usize> {
    let mut at = 0;
    let mut seen = 0;
    for line in fields.split_inclusive(|&byte| byte == b'\n') {
        if let Some((name, _)) = field(line)
            && names.iter().any(|one| name.eq_ignore_ascii_case(one))
        {
            seen += 1;
            if seen == count {
                let value = &line[name.len() + 1..];
                let blanks = value
                    .iter()
                    .take_while(|&&byte| byte == b' ' || byte == b'\t');
                return Some(at + name.len() + 1 + blanks.count());
            }
        }
        at += line.len();
    }
    None
}

/// The offset of the first byte that cannot stand in a field's name, nor end it.
fn bad_name_at(fields: &[u8]) -> Option<usize> {
    let mut at = 0;
    for line in fields.split_inclusive(|&byte| byte == b'\n') {
        let name_len = line.iter().take_while(|&&byte| is_token_byte(byte)).count();
        if line != b"\r\n" && (name_len == 0 || line.get(name_len) != Some(&b':')) {
            return Some(at + name_len);
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::http::{HeadScanner, Scan};

    fn fault(text: &str) -> String {
        let mut scanner = HeadScanner::default();
        let Scan::Malformed(error) = scanner.scan(text.as_bytes()) else {
            panic!("{text:?} is no malformed head");
        };
        scanner.fault(error, text.as_bytes()).to_string()
    }

    #[test]
    fn a_fault_names_rule_offset_and_byte() {
        for (head, wanted) in [
            ("\x16\x03\x01", "not_http at 0 byte 0x16"),
            ("GET /\n", "bare_lf at 5 byte 0x0a"),
            ("GET /\rx", "bare_cr at 6 byte 0x78"),
            ("GET /a\x01b HTTP/1.1\r\n", "control_byte at 6 byte 0x01"),
            ("GE(T / HTTP/1.1\r\n", "bad_request_line at 2 byte 0x28"),
            ("GET /a b HTTP/1.1\r\n", "bad_request_line at 8 byte 0x20"),
            (
                "\r\nGET /a b HTTP/1.1\r\n",
                "bad_request_line at 10 byte 0x20",
            ),
            ("GET /a\r\n", "bad_request_line at 6 byte 0x0d"),
            ("GET /a XTTP/1.1\r\n", "bad_request_line at 7 byte 0x58"),
            ("PRI * HTTP/2.0\r\n", "http_version at 6 byte 0x48"),
            ("CONNECT a:1 HTTP/1.1\r\n", "connect at 0 byte 0x43"),
            ("GET a HTTP/1.1\r\n", "bad_target at 4 byte 0x61"),
            ("GET /a#b HTTP/1.1\r\n", "fragment_in_target at 6 byte 0x23"),
            (
                "GET http://u@a/ HTTP/1.1\r\n",
                "userinfo_in_target at 12 byte 0x40",
            ),
            ("GET / HTTP/1.1\r\n b: c\r\n", "folded_line at 16 byte 0x20"),
            (
                "GET / HTTP/1.1\r\na: \x07\r\n",
                "control_byte at 19 byte 0x07",
            ),
            (
                "GET / HTTP/1.1\r\na : b\r\n\r\n",
                "blank_before_colon at 17 byte 0x20",
            ),
            (
                "GET / HTTP/1.1\r\na@: b\r\n\r\n",
                "bad_field at 17 byte 0x40",
            ),
            ("GET / HTTP/1.1\r\n: b\r\n\r\n", "bad_field at 16 byte 0x3a"),
            ("GET / HTTP/1.1\r\n\r\n", "host_missing"),
            (
                "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
                "host_malformed at 22 byte 0x61",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nhost: c\r\n\r\n",
                "host_repeated at 31 byte 0x63",
            ),
            (
                "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
                "target_host_differs at 30 byte 0x61",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
                "content_length_malformed at 41 byte 0x2d",
            ),
            (
                "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
                "length_and_coding at 60 byte 0x31",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: zip\r\n\r\n",
                "coding_unknown at 44 byte 0x7a",
            ),
        ] {
            assert_eq!(fault(head), wanted, "{head:?}");
        }
    }
}
