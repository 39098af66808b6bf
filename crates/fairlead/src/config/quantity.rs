//! Durations, sizes and endpoints as they are written in the file.

use core::net::SocketAddr;
use core::time::Duration;

use fairlead_base::Endpoint;
use toml::de::DeValue;

use super::diagnostic::{At, Diagnostic, Problems};
use super::section::{Node, quoted, string, type_name};

/// Units of time and their nanoseconds.
const TIME_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Units of size and their bytes.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Splits `90s` or `1h30m` into numbers and units; `None` when it is not of that form or too big.
fn amount(text: &str, units: &[(&str, u64)], parts_max: usize) -> Option<u64> {
    let mut rest = text.trim();
    let mut total = 0u64;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (_, factor) = units.iter().find(|(unit, _)| *unit == &rest[..letters])?;
        rest = rest[letters..].trim_start();
        total = total.checked_add(number.checked_mul(*factor)?)?;
        parts += 1;
        if parts > parts_max {
            return None;
        }
    }
    (parts > 0).then_some(total)
}

/// A duration written like `10s`, `500ms` or `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    amount(text, &TIME_UNITS, TIME_UNITS.len()).map(Duration::from_nanos)
}

/// Short units, as caches' sizes are written in the lab.
const SHORT_UNITS: [(&str, u64); 3] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];

/// A size written like `256MiB` or `512 B`.
fn parse_size(text: &str) -> Option<u64> {
    amount(text, &SIZE_UNITS, 1)
}

/// A size written like `32K`, or as any other.
fn parse_capacity(text: &str) -> Option<u64> {
    amount(text, &SHORT_UNITS, 1).or_else(|| parse_size(text))
}

/// A duration as it would be written in the file.
pub(crate) fn show_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    if nanos == 0 {
        return "0s".to_owned();
    }
    let fits = |unit: &&(&str, u64)| nanos.is_multiple_of(unit.1) && nanos >= unit.1;
    let minutes = nanos / 60_000_000_000;
    if nanos.is_multiple_of(60_000_000_000) && minutes > 120 && !minutes.is_multiple_of(60) {
        return format!("{}h{}m", minutes / 60, minutes % 60);
    }
    // Two minutes are `2m`, but ninety seconds `90s`: the largest unit that divides it.
    let (unit, factor) = TIME_UNITS.iter().rev().find(fits).unwrap_or(&TIME_UNITS[0]);
    format!("{}{unit}", nanos / factor)
}

/// A size as it would be written in the file.
pub(crate) fn show_size(bytes: u64) -> String {
    let fits = |unit: &&(&str, u64)| bytes.is_multiple_of(unit.1) && bytes >= unit.1;
    let (unit, factor) = SIZE_UNITS[..4]
        .iter()
        .rev()
        .find(fits)
        .unwrap_or(&SIZE_UNITS[0]);
    format!("{}{unit}", bytes / factor)
}

/// A duration between two bounds.
pub(super) fn duration(
    node: Node<'_>,
    key: &str,
    (low, high): (Duration, Duration),
    problems: &mut Problems,
) -> Option<Duration> {
    let bounds = format!(
        "write {key} as a number and a unit (ms, s, m, h or d), from \"{}\" to \"{}\"",
        show_duration(low),
        show_duration(high)
    );
    let message = match node.get_ref() {
        DeValue::String(text) => match parse_duration(text) {
            Some(value) if value < low => {
                format!("`{key}` = {} is too short", quoted(text))
            }
            Some(value) if value > high => format!("`{key}` = {} is too long", quoted(text)),
            Some(value) => return Some(value),
            None => format!("{} is not a duration", quoted(text)),
        },
        DeValue::Integer(number) => {
            let message = format!("`{key}` = {number} has no unit");
            let help = format!("write {key} = \"{number}s\" for seconds");
            problems.push(Diagnostic::error(&node.span(), message).help(help));
            return None;
        }
        other => format!("`{key}` must be a duration, not {}", type_name(other)),
    };
    problems.push(Diagnostic::error(&node.span(), message).help(bounds));
    None
}

/// A number of bytes between two bounds: `"256MiB"`, or a plain number.
pub(super) fn size(
    node: Node<'_>,
    key: &str,
    bounds: (u64, u64),
    problems: &mut Problems,
) -> Option<At<u64>> {
    size_by(parse_size, node, key, bounds, problems)
}

/// As [`size`]; `"32K"` and `"4M"` will do too.
pub(super) fn capacity(
    node: Node<'_>,
    key: &str,
    bounds: (u64, u64),
    problems: &mut Problems,
) -> Option<At<u64>> {
    size_by(parse_capacity, node, key, bounds, problems)
}

fn size_by(
    parse: fn(&str) -> Option<u64>,
    node: Node<'_>,
    key: &str,
    (low, high): (u64, u64),
    problems: &mut Problems,
) -> Option<At<u64>> {
    let (text, value) = match node.get_ref() {
        DeValue::String(text) => (quoted(text), parse(text)),
        DeValue::Integer(number) => {
            let value = u64::from_str_radix(number.as_str(), number.radix()).ok();
            (number.to_string(), value)
        }
        other => {
            let message = format!("`{key}` must be a size, not {}", type_name(other));
            let help = format!("write {key} = \"{}\", for example", show_size(low));
            problems.push(Diagnostic::error(&node.span(), message).help(help));
            return None;
        }
    };
    let message = match value {
        None => format!("{text} is not a size"),
        Some(value) if value < low => format!("`{key}` = {text} is too small"),
        Some(value) if value > high => format!("`{key}` = {text} is too large"),
        Some(value) => return Some(At::new(value, node.span())),
    };
    problems.push(Diagnostic::error(&node.span(), message).help(format!(
        "write {key} as a number of bytes or with a unit (B, KiB, MiB, GiB), from \"{}\" to \"{}\"",
        show_size(low),
        show_size(high)
    )));
    None
}

/// An address and port: `10.1.0.3:80`, `[2001:db8::3]:80`.
pub(super) fn endpoint(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<Endpoint> {
    let message = format!("{} is not an address with a port", quoted(text.value));
    let plain = text.value.trim();
    let help = match plain.parse::<SocketAddr>() {
        Ok(socket) if plain == text.value => return within(socket, text, key, problems),
        Ok(socket) => format!("write {key} = \"{socket}\", without spaces"),
        Err(_) => match plain.parse::<core::net::IpAddr>() {
            Ok(ip) => format!("add the port: {key} = \"{}\"", SocketAddr::new(ip, 80)),
            Err(_) if bracketless_v6(plain).is_some() => format!(
                "write the address in brackets: {key} = \"{}\"",
                bracketless_v6(plain).unwrap_or_else(|| SocketAddr::from(([0; 16], 0)))
            ),
            Err(_) if plain.chars().any(|letter| letter.is_ascii_alphabetic()) => {
                format!("host names are not resolved; write the address: {key} = \"10.1.0.3:80\"")
            }
            Err(_) => format!("write {key} = \"10.1.0.3:80\" or {key} = \"[2001:db8::3]:80\""),
        },
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

/// `2001:db8::3:80` with the port where it must have been meant.
fn bracketless_v6(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let host: core::net::Ipv6Addr = host.parse().ok()?;
    Some(SocketAddr::from((host, port.parse::<u16>().ok()?)))
}

/// Refuses addresses that no TCP connection can have, and port 0.
fn within(
    socket: SocketAddr,
    text: &At<&str>,
    key: &str,
    problems: &mut Problems,
) -> Option<Endpoint> {
    let ip = socket.ip();
    let broadcast = matches!(ip, core::net::IpAddr::V4(v4) if v4.is_broadcast());
    let mapped = matches!(ip, core::net::IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let scoped = matches!(socket, SocketAddr::V6(v6) if v6.scope_id() != 0);
    let (message, help) = if socket.port() == 0 {
        (
            "port 0 cannot be connected to".to_owned(),
            format!("write {key} = \"{ip}:80\""),
        )
    } else if ip.is_unspecified() {
        (
            format!("{ip} is the unspecified address; the switch needs a specific one"),
            format!(
                "write the address itself: {key} = \"10.1.0.3:{}\"",
                socket.port()
            ),
        )
    } else if ip.is_multicast() || broadcast {
        (
            format!("{ip} is a multicast or broadcast address; TCP needs a unicast address"),
            format!(
                "write the address of one host: {key} = \"10.1.0.3:{}\"",
                socket.port()
            ),
        )
    } else if mapped {
        (
            format!("{ip} is an IPv4-mapped IPv6 address"),
            format!("write {key} = \"{}:{}\"", ip.to_canonical(), socket.port()),
        )
    } else if scoped {
        (
            "an address with a scope (%) is not routed".to_owned(),
            "leave out the scope".to_owned(),
        )
    } else {
        return Some(Endpoint::from(socket));
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

/// An endpoint, or a list of them, under `key`.
pub(super) fn endpoints(node: Node<'_>, key: &str, problems: &mut Problems) -> Vec<At<Endpoint>> {
    super::section::strings(node, key, "\"10.1.0.3:80\"", problems)
        .into_iter()
        .filter_map(|text| {
            let endpoint = endpoint(&text, key, problems)?;
            Some(At::new(endpoint, text.span))
        })
        .collect()
}

/// Where an HTTP server of our own listens; any address of this machine will do.
pub(super) fn socket(node: Node<'_>, key: &str, problems: &mut Problems) -> Option<At<SocketAddr>> {
    let text = string(node, key, "\"127.0.0.1:9090\"", problems)?;
    let message = match text.value.parse::<SocketAddr>() {
        Ok(socket) if socket.port() == 0 => {
            "port 0 would select a random port at each start".into()
        }
        Ok(socket) => return Some(At::new(socket, text.span)),
        Err(_) => format!("{} is not an address with a port", quoted(text.value)),
    };
    problems.push(
        Diagnostic::error(&text.span, message).help(format!("write {key} = \"127.0.0.1:9090\"")),
    );
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, millis, shown) in [
            ("500ms", 500, "500ms"),
            ("10s", 10_000, "10s"),
            ("90s", 90_000, "90s"),
            ("5m", 300_000, "5m"),
            ("1h30m", 5_400_000, "90m"),
            ("1 h", 3_600_000, "1h"),
            ("2h15m", 8_100_000, "2h15m"),
            ("0s", 0, "0s"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(show_duration(duration), shown);
        }
        for text in [
            "",
            "10",
            "s",
            "10 sec",
            "-1s",
            "1.5s",
            "99999999999999999999s",
            "9999999999d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("16KiB", 16_384, "16KiB"),
            ("256 MiB", 268_435_456, "256MiB"),
            ("1000B", 1_000, "1000B"),
            ("2kB", 2_000, "2000B"),
            ("1GiB", 1 << 30, "1GiB"),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
            assert_eq!(show_size(bytes), shown);
        }
        for text in [
            "16K",
            "",
            "KiB",
            "1KiB2KiB",
            "99999999999999999999B",
            "16kib",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        for (text, bytes) in [("32K", 32 << 10), ("4 M", 4 << 20), ("32KiB", 32 << 10)] {
            assert_eq!(parse_capacity(text), Some(bytes), "{text}");
        }
        assert_eq!(parse_capacity("32k"), None);
    }
}
