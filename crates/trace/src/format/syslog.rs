//! The header of a syslog message (RFC 5424, section 6), in front of a line of a log.

use crate::field;

use super::word;

/// The message of a line that begins with a header of RFC 5424, or else the whole line. Messages of
/// the older form (RFC 3164) have no header that can be told from their content.
#[inline]
pub(crate) fn message(line: &[u8]) -> &[u8] {
    match line {
        [b'<', ..] => behind_header(line).unwrap_or(line),
        _ => line,
    }
}

/// `<PRI>VERSION TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA MSG`.
#[cold]
fn behind_header(line: &[u8]) -> Option<&[u8]> {
    let (priority, rest) = field::cut(line.strip_prefix(b"<")?, b'>')?;
    field::number16(priority)?;
    let (version, mut rest) = field::cut(rest, b' ')?;
    field::number16(version)?;
    // Time, host, application, process, kind of message.
    for _ in 0..5 {
        rest = word(rest).1;
    }
    let message = match rest {
        [b'-', rest @ ..] => rest,
        [b'[', ..] => behind_elements(rest)?,
        _ => return None,
    };
    Some(message.trim_ascii_start())
}

/// The text behind elements `[id name="value" …]`. In values, `"`, `\` and `]` are escaped
/// (section 6.3.3).
fn behind_elements(text: &[u8]) -> Option<&[u8]> {
    let (mut at, mut quoted) = (0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b']' if !quoted && text.get(at + 1) != Some(&b'[') => return Some(&text[at + 1..]),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_ends_behind_its_structured_data() {
        for header in [
            "<190>1 2026-11-26T10:00:00.000Z web1 nginx 812 - - ",
            "<190>1 - - - - - - ",
            "<190>1 2026-11-26T10:00:00Z 10.9.9.9 nginx 812 ACCESS [a x=\"1\"] ",
            "<0>1 T h a p m [a x=\"]\\\" \\\\\"][b y=\"[\"] ",
        ] {
            let line = format!("{header}the message");
            let message = message(line.as_bytes());
            assert_eq!(message, b"the message", "{header}");
        }
    }

    #[test]
    fn any_other_line_is_a_message() {
        for line in [
            "10.0.0.1 - - [",
            "<190>Nov 26 10:00:00 web1 nginx: 10.0.0.1 - - [",
            "<190>1 2026-11-26T10:00:00.000Z web1 nginx 812 -",
            "<190>1 T h a p m [a x=\"1",
            "<x>1 T h a p m - message",
            "<",
        ] {
            assert_eq!(message(line.as_bytes()), line.as_bytes());
        }
    }
}
