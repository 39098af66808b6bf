//! Names: of services and pools, of hosts, of header fields.

use core::net::IpAddr;

use fairlead_splice::config::NamePattern;

use super::diagnostic::{At, Diagnostic, Problems};
use super::section::quoted;

const NAME_CHARS_MAX: usize = 64;
/// RFC 1035, section 2.3.4.
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// The name of a thing in the configuration: what logs, metrics and references call it.
pub(super) fn name(text: &At<&str>, problems: &mut Problems) -> Option<At<String>> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let message = if text.value.is_empty() {
        "an empty name".to_owned()
    } else if text.value.len() > NAME_CHARS_MAX {
        format!("a name of {} characters", text.value.chars().count())
    } else if !text.value.chars().all(fits) {
        format!("{} cannot be a name", quoted(text.value))
    } else {
        return Some(At::new(text.value.to_owned(), text.span.clone()));
    };
    problems.push(Diagnostic::error(&text.span, message).help(format!(
        "write 1 to {NAME_CHARS_MAX} letters, digits, \"-\", \"_\" and \".\""
    )));
    None
}

/// The name of a network device (the kernel's rule: at most 15 bytes, no slash, no space).
pub(super) fn device(text: &At<&str>, problems: &mut Problems) -> Option<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let word = text.value;
    let is_path = [".", ".."].contains(&word);
    let is_every = ["all", "default"].contains(&word);
    if (1..=15).contains(&word.len()) && word.chars().all(fits) && !is_path && !is_every {
        return Some(word.to_owned());
    }
    let why = match is_every {
        true => ": in the kernel's settings it stands for every device",
        false => "",
    };
    problems.push(
        Diagnostic::error(
            &text.span,
            format!("{} cannot be a device's name{why}", quoted(word)),
        )
        .help("write 1 to 15 letters, digits, \"-\", \"_\" and \".\", such as \"fairlead0\""),
    );
    None
}

/// RFC 9110, section 5.6.2: what methods and field names are made of.
pub(super) fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// The address that a host is: `192.0.2.1`, `[2001:db8::1]`, or without the brackets.
fn literal(plain: &str) -> Option<IpAddr> {
    let bare = plain
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match bare {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => plain.parse().ok(),
    }
}

/// A host name or `*.name`. Addresses are taken where `literals` (HTTP has them, SNI has not).
pub(super) fn host(
    text: &At<&str>,
    key: &str,
    literals: bool,
    problems: &mut Problems,
) -> Option<NamePattern> {
    let lower = text.value.to_ascii_lowercase();
    let plain = lower.strip_suffix('.').unwrap_or(&lower);
    let refuse = |message: String, help: String, problems: &mut Problems| {
        problems.push(Diagnostic::error(&text.span, message).help(help));
        None
    };
    if plain == "*" {
        return refuse(
            format!("{key} = \"*\" says nothing"),
            format!("leave `{key}` out: a route without it takes every name"),
            problems,
        );
    }
    if let Some(address) = literal(plain) {
        return match (literals, address.is_ipv6() && !plain.starts_with('[')) {
            // As a head's authority has it: in one form, without brackets.
            (true, false) => Some(NamePattern::Exact(address.to_string())),
            (true, true) => refuse(
                format!("{} lacks its brackets", quoted(text.value)),
                format!("write {key} = \"[{plain}]\""),
                problems,
            ),
            (false, _) => refuse(
                "TLS server names are never addresses (RFC 6066, section 3)".to_owned(),
                format!("write a name, or leave `{key}` out and use `listen`"),
                problems,
            ),
        };
    }
    if let Some((name, port)) = plain.rsplit_once(':')
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return refuse(
            format!("{} has a port", quoted(text.value)),
            format!("write {key} = \"{name}\"; ports are matched by `listen`"),
            problems,
        );
    }
    if !plain.is_ascii() {
        return refuse(
            format!("{} is not in ASCII form", quoted(text.value)),
            "write its ASCII form, which begins with xn--".to_owned(),
            problems,
        );
    }
    let (below, name) = match plain.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, plain),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let label =
        |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(fits);
    if name.len() > HOST_BYTES_MAX || !name.split('.').all(label) {
        return refuse(
            format!("{} is not a host name", quoted(text.value)),
            format!("write {key} = \"api.example.com\" or {key} = \"*.example.com\""),
            problems,
        );
    }
    Some(if below {
        NamePattern::Suffix(format!(".{name}"))
    } else {
        NamePattern::Exact(name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use fairlead_wire::Scan;
    use fairlead_wire::http::HeadScanner;

    use super::*;

    fn read(text: &str, literals: bool) -> Option<NamePattern> {
        host(
            &At::new(text, 0..text.len()),
            "host",
            literals,
            &mut Problems::default(),
        )
    }

    #[test]
    fn hosts_are_kept_as_the_scanner_reports_them() {
        let exact = |name: &str| Some(NamePattern::Exact(name.to_owned()));
        assert_eq!(read("API.Example.com.", true), exact("api.example.com"));
        assert_eq!(
            read("*.Example.com", true),
            Some(NamePattern::Suffix(".example.com".into()))
        );
        assert_eq!(read("10.1.0.3", true), exact("10.1.0.3"));
        assert_eq!(read("localhost", true), exact("localhost"));
        for written in [
            "[2001:DB8::3]",
            "[2001:db8:0:0::3]",
            "[::01]",
            "192.0.2.7",
            "A.example",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: {written}\r\n\r\n");
            let mut scanner = HeadScanner::default();
            let Scan::Complete(head) = scanner.scan(request.as_bytes()) else {
                panic!("{written} is a whole head's host");
            };
            let reported = head.host.expect("it has one");
            assert_eq!(read(written, true), exact(&reported));
        }
    }

    #[test]
    fn what_no_client_sends_is_refused() {
        for text in [
            "",
            ".",
            "*",
            "a..b",
            "*.",
            "a.*.b",
            "**.b",
            "a b",
            "bücher.example",
            "a:80",
            "::1",
            "[x]",
        ] {
            assert_eq!(read(text, true), None, "{text}");
        }
        assert_eq!(read("10.1.0.3", false), None);
        assert_eq!(read(&"a.".repeat(200), true), None);
        assert_eq!(read(&"a".repeat(64), true), None);
    }
}
