//! Pieces of lines.

use core::net::Ipv6Addr;

use memchr::{memchr, memrchr};

/// A decimal number of digits only; `None` from 2⁶⁴ on.
#[inline]
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A decimal number below 65,536.
#[inline]
pub(crate) fn number16(text: &[u8]) -> Option<u16> {
    number(text).and_then(|value| u16::try_from(value).ok())
}

/// The number before a decimal point; `200.0` is 200.
#[inline]
pub(crate) fn whole(text: &[u8]) -> Option<u64> {
    let end = memchr(b'.', text).unwrap_or(text.len());
    let fraction = text.get(end + 1..).unwrap_or_default();
    let digits = fraction.iter().all(u8::is_ascii_digit);
    number(&text[..end]).filter(|_| digits)
}

/// An IPv4 address in four decimal parts.
#[inline]
pub(crate) fn v4(text: &[u8]) -> Option<u32> {
    if text.len() < 7 || text.len() > 15 {
        return None;
    }
    let mut address = 0u32;
    let mut part = 0u32;
    let mut digits = 0;
    let mut dots = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 && digits < 3 {
            part = part * 10 + u32::from(digit);
            digits += 1;
        } else if *byte == b'.' && digits > 0 && part < 256 && dots < 3 {
            address = address << 8 | part;
            (part, digits) = (0, 0);
            dots += 1;
        } else {
            return None;
        }
    }
    (dots == 3 && digits > 0 && part < 256).then_some(address << 8 | part)
}

/// An IPv6 address; a zone after `%` is ignored.
pub(crate) fn v6(text: &[u8]) -> Option<[u8; 16]> {
    memchr(b':', text)?;
    let end = memchr(b'%', text).unwrap_or(text.len());
    let text = core::str::from_utf8(&text[..end]).ok()?;
    let address: Ipv6Addr = text.parse().ok()?;
    Some(address.octets())
}

/// An address without a port after it or brackets around it.
pub(crate) fn bare(text: &[u8]) -> &[u8] {
    host_and_port(text).0
}

/// An address or a name without brackets around it, and the port after it; 0 without a port.
pub(crate) fn host_and_port(text: &[u8]) -> (&[u8], u16) {
    let port = memrchr(b':', text).and_then(|at| Some((at, number16(&text[at + 1..])?)));
    let (end, port) = port.unwrap_or((text.len(), 0));
    let host = &text[..end];
    let inner = host
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"));
    (inner.unwrap_or(host), port)
}

/// Splits at the first `mark`.
#[inline]
pub(crate) fn cut(text: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(mark, text)?;
    Some((&text[..at], &text[at + 1..]))
}

/// The object of a request line `METHOD object protocol`, or the whole line if it is one word.
#[inline]
pub(crate) fn object_of(request: &[u8]) -> &[u8] {
    let Some((_, rest)) = cut(request, b' ') else {
        return request;
    };
    let end = memchr(b' ', rest).unwrap_or(rest.len());
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_all_digits_and_fit() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        for wrong in [&b""[..], b"-1", b"1 ", b"1x", b"000000000000000000001"] {
            assert_eq!(number(wrong), None);
        }
        assert_eq!(number16(b"65535"), Some(65_535));
        assert_eq!(number16(b"65536"), None);
        assert_eq!(whole(b"200.0"), Some(200));
        assert_eq!(whole(b"200"), Some(200));
        assert_eq!(whole(b"200.x"), None);
    }

    #[test]
    fn addresses_are_strict() {
        assert_eq!(v4(b"1.2.3.4"), Some(0x0102_0304));
        assert_eq!(v4(b"255.255.255.255"), Some(u32::MAX));
        for wrong in [
            &b"1.2.3"[..],
            b"1.2.3.",
            b"1.2.3.256",
            b"1.2.3.4.5",
            b"1..3.4.5",
            b"1234.1.1.1",
            b"101.81.133.jja",
        ] {
            assert_eq!(v4(wrong), None, "{wrong:?}");
        }
        assert_eq!(v6(b"::1%eth0").map(|octets| octets[15]), Some(1));
        assert_eq!(v6(b"fe80::zz"), None);
        assert_eq!(v6(b"host"), None);
    }

    #[test]
    fn objects_are_the_second_word() {
        assert_eq!(object_of(b"GET /a HTTP/1.0"), b"/a");
        assert_eq!(object_of(b"GET /a"), b"/a");
        assert_eq!(object_of(b"/a"), b"/a");
        assert_eq!(object_of(b""), b"");
    }
}
