//! Licence expressions (SPDX): `MIT OR Apache-2.0`, `(A OR B) AND C`, `A WITH E`.

/// Whether a choice of licences that are all in `allowed` satisfies the expression. `None` when it
/// is no expression. The old `A/B` means `A OR B`.
pub(crate) fn satisfied(expression: &str, allowed: &[&str]) -> Option<bool> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        allowed,
    };
    let satisfied = parser.any()?;
    parser.words.is_empty().then_some(satisfied)
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }

    fn any(&mut self) -> Option<bool> {
        let mut satisfied = self.all()?;
        while self.take("OR") {
            satisfied |= self.all()?;
        }
        Some(satisfied)
    }

    fn all(&mut self) -> Option<bool> {
        let mut satisfied = self.one()?;
        while self.take("AND") {
            satisfied &= self.one()?;
        }
        Some(satisfied)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let satisfied = self.any()?;
            return self.take(")").then_some(satisfied);
        }
        let (name, rest) = self.words.split_first()?;
        if matches!(*name, "AND" | "OR" | "WITH" | ")") {
            return None;
        }
        self.words = rest;
        let mut name = (*name).to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.words.split_first()?;
            self.words = rest;
            name = format!("{name} WITH {exception}");
        }
        Some(self.allowed.contains(&name.as_str()))
    }
}

#[test]
fn expressions_are_read_by_precedence() {
    let allowed = [
        "MIT",
        "Apache-2.0",
        "Zlib",
        "Apache-2.0 WITH LLVM-exception",
    ];
    for (expression, expected) in [
        ("MIT", Some(true)),
        ("GPL-3.0-only", Some(false)),
        ("MIT OR GPL-3.0-only", Some(true)),
        ("MIT AND GPL-3.0-only", Some(false)),
        ("GPL-3.0-only OR MIT AND Zlib", Some(true)),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", Some(false)),
        ("MIT/Apache-2.0", Some(true)),
        ("GPL-2.0-only WITH Classpath-exception-2.0", Some(false)),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", Some(true)),
        ("MIT OR", None),
        ("(MIT", None),
        ("MIT Zlib", None),
        ("", None),
    ] {
        assert_eq!(satisfied(expression, &allowed), expected, "{expression:?}");
    }
}
