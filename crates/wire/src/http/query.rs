//! Parameters of a query and values of cookies.

use std::borrow::Cow;

/// The value of the first parameter of `query` that is called `name`, decoded as HTML forms encode
/// (`+` for a space, `%` and two hexadecimal digits for a byte; a `%` without them stays).
pub(super) fn param<'a>(query: &'a [u8], name: &str) -> Option<Cow<'a, str>> {
    query.split(|&byte| byte == b'&').find_map(|pair| {
        let equals = pair.iter().position(|&byte| byte == b'=');
        let (key, value) = equals.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
        // An empty pair ("a=1&&b=2") is no parameter with an empty name.
        (!pair.is_empty() && decode(key) == name).then(|| decode(value))
    })
}

/// The value of the first cookie called `name` in the value of a `Cookie` field (RFC 6265, section
/// 4.2.1). Quotation marks around a value are part of it.
pub(super) fn cookie<'a>(field: &'a [u8], name: &str) -> Option<&'a [u8]> {
    field.split(|&byte| byte == b';').find_map(|pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let found = pair[..equals].trim_ascii_end() == name.as_bytes();
        found.then(|| pair[equals + 1..].trim_ascii_start())
    })
}

fn decode(text: &[u8]) -> Cow<'_, str> {
    if !text.iter().any(|&byte| byte == b'%' || byte == b'+') {
        return String::from_utf8_lossy(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match (byte, tail) {
            (b'+', _) => decoded.push(b' '),
            (b'%', [high, low, behind @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    decoded.push(high << 4 | low);
                    rest = behind;
                }
                _ => decoded.push(b'%'),
            },
            _ => decoded.push(*byte),
        }
    }
    match String::from_utf8(decoded) {
        Ok(text) => Cow::Owned(text),
        Err(broken) => Cow::Owned(String::from_utf8_lossy(broken.as_bytes()).into_owned()),
    }
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query =
            b"a=1&b=x+y%2Fz&c&&d=&a=2&%65=5&bad=%zz%4&utf=%C3%A4&raw=%FF&s=a=b&plain=\xc3\xa4";
        for (name, value) in [
            ("a", "1"),
            ("b", "x y/z"),
            ("c", ""),
            ("d", ""),
            ("e", "5"),
            ("bad", "%zz%4"),
            ("utf", "ä"),
            ("raw", "\u{fffd}"),
            ("s", "a=b"),
            ("plain", "ä"),
        ] {
            assert_eq!(param(query, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(param(query, "A"), None);
        assert_eq!(param(query, ""), None);
        assert!(matches!(param(query, "a"), Some(Cow::Borrowed("1"))));
    }

    #[test]
    fn cookies_are_found() {
        let field = b"sid=abc; theme=\"dark\";x=a=b; sid=second; empty=; bin=\xff; bin=x; novalue";
        for (name, value) in [
            ("sid", &b"abc"[..]),
            ("theme", b"\"dark\""),
            ("x", b"a=b"),
            ("empty", b""),
            ("bin", b"\xff"),
        ] {
            assert_eq!(cookie(field, name), Some(value), "{name}");
        }
        for name in ["SID", "novalue", "", "si"] {
            assert_eq!(cookie(field, name), None, "{name}");
        }
    }
}
