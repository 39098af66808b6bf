//! Field values that are lists (RFC 9110, section 5.6.1).

/// The members of a comma-separated list, without blanks around them. A comma inside a quoted
/// string (RFC 9110, section 5.6.4) separates nothing; empty members are left out. Looks at each
/// byte a fixed number of times.
pub fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value
        .split(move |&byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                b',' => return !quoted,
                _ => {}
            }
            false
        })
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(value: &str) -> Vec<&str> {
        let texts = members(value.as_bytes()).map(|member| core::str::from_utf8(member));
        texts.collect::<Result<_, _>>().expect("text")
    }

    #[test]
    fn commas_outside_quotes_separate_members() {
        for (value, wanted) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("a, b ,c", &["a", "b", "c"]),
            (" ,, a,\t,", &["a"]),
            (r#""a, b", c"#, &[r#""a, b""#, "c"]),
            (r#""a\", b", c"#, &[r#""a\", b""#, "c"]),
            (r#"a\, b"#, &[r"a\", "b"]),
            (r#"a;q="x,y", b"#, &[r#"a;q="x,y""#, "b"]),
            (r#""a, b"#, &[r#""a, b"#]),
        ] {
            assert_eq!(split(value), wanted, "{value}");
        }
    }
}
