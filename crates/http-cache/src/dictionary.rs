//! Dictionaries of structured fields (RFC 8941, section 4.2.2): as much as targeted fields need.
//! The whole line is checked; inner lists and parameters are skipped.

/// A member's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Integer(i64),
    Boolean(bool),
    /// A decimal, string, token, byte sequence or inner list.
    Other,
}

/// Calls `member` with each member in order; `None` if the line is no dictionary.
pub(crate) fn parse(line: &[u8], mut member: impl FnMut(&[u8], Value)) -> Option<()> {
    let mut rest = Rest(line);
    rest.skip(b" ");
    while !rest.0.is_empty() {
        let name = rest.key()?;
        let value = if rest.take(b'=') {
            rest.item_or_list()?
        } else {
            Value::Boolean(true)
        };
        rest.parameters()?;
        member(name, value);
        rest.skip(b" \t");
        if rest.0.is_empty() {
            return Some(());
        }
        if !rest.take(b',') {
            return None;
        }
        rest.skip(b" \t");
        if rest.0.is_empty() {
            return None;
        }
    }
    Some(())
}

/// Bytes that were not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip(&mut self, blanks: &[u8]) {
        self.while_in(|byte| blanks.contains(&byte));
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.0.first() == Some(&byte);
        if there {
            self.0 = &self.0[1..];
        }
        there
    }

    fn while_in(&mut self, holds: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !holds(*byte));
        let (front, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        front
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let first = *self.0.first()?;
        let all = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        };
        (first.is_ascii_lowercase() || first == b'*').then(|| self.while_in(all))
    }

    fn item_or_list(&mut self) -> Option<Value> {
        if !self.take(b'(') {
            return self.item();
        }
        loop {
            self.skip(b" ");
            if self.take(b')') {
                return Some(Value::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn item(&mut self) -> Option<Value> {
        match *self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => {
                self.take(b':');
                self.while_in(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(Value::Other)
            }
            b'?' => {
                self.take(b'?');
                let is_true = self.take(b'1');
                (is_true || self.take(b'0')).then_some(Value::Boolean(is_true))
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let marks = b":/!#$%&'*+-.^_`|~";
                self.while_in(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte));
                Some(Value::Other)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        let whole = self.while_in(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.while_in(|byte| byte.is_ascii_digit());
            let fits = (1..=3).contains(&fraction.len()) && whole.len() <= 12;
            return fits.then_some(Value::Other);
        }
        let number = whole
            .iter()
            .fold(0i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(Value::Integer(sign * number))
    }

    fn string(&mut self) -> Option<Value> {
        self.take(b'"');
        loop {
            self.while_in(|byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte));
            if self.take(b'"') {
                return Some(Value::Other);
            }
            if !self.take(b'\\') || !(self.take(b'"') || self.take(b'\\')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip(b" ");
            self.key()?;
            if self.take(b'=') {
                self.item()?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<Vec<(String, Value)>> {
        let mut all = Vec::new();
        parse(line.as_bytes(), |name, value| {
            all.push((String::from_utf8_lossy(name).into_owned(), value));
        })?;
        Some(all)
    }

    #[test]
    fn dictionaries_are_read() {
        let members =
            read("a=1, b, c=?0 ,\td=\"x, \\\" y\";p=2;q, e=(1 \"2\" t);z, f=-1.5, *g=:aGk=:");
        let members = members.expect("a dictionary");
        let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "f", "*g"]);
        assert_eq!(members[0].1, Value::Integer(1));
        assert_eq!(members[1].1, Value::Boolean(true));
        assert_eq!(members[2].1, Value::Boolean(false));
        assert!(members[3..].iter().all(|(_, value)| *value == Value::Other));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "a=1,",
            "a=1, &&&",
            "A=1",
            "a=",
            "a=1 b",
            "a=\"x",
            "a=\"\\x\"",
            "a=(1",
            "a=1.",
            ",a",
            "a=?2",
            "a;=1",
            "a=:x",
            "a=1234567890123456",
            "a=(1\"2\")",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
        assert_eq!(read(""), Some(Vec::new()));
    }
}
