//! Rust source as tokens: enough to tell code from comments and strings.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Word,
    Lifetime,
    /// A number, character or string.
    Literal,
    /// One character of punctuation.
    Mark,
    /// A comment, documentation included.
    Comment,
}

/// A piece of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// The line it begins on, from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Word | Kind::Mark)
    }
}

/// All tokens of a source that compiles. Blanks are left out.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        if bytes[at].is_ascii_whitespace() {
            line += usize::from(bytes[at] == b'\n');
            at += 1;
            continue;
        }
        let (kind, len) = token(&source[at..]);
        let text = &source[at..at + len];
        tokens.push(Token { kind, text, line });
        line += text.matches('\n').count();
        at += len;
    }
    tokens
}

/// The kind and length of the token at the front.
fn token(rest: &str) -> (Kind, usize) {
    let bytes = rest.as_bytes();
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(len) = string(rest) {
        return (Kind::Literal, len);
    }
    let first = rest.chars().next().unwrap_or(' ');
    if first == '\'' {
        return quote(rest);
    }
    if first.is_ascii_digit() {
        let len = bytes
            .iter()
            .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_'))
            .unwrap_or(bytes.len());
        return (Kind::Literal, len);
    }
    if first == '_' || first.is_alphabetic() {
        let len = rest
            .find(|letter: char| !(letter == '_' || letter.is_alphanumeric()))
            .unwrap_or(rest.len());
        // A raw identifier, `r#type`.
        if &rest[..len] == "r" && rest[len..].starts_with('#') {
            let (_, more) = token(&rest[2..]);
            return (Kind::Word, 2 + more);
        }
        return (Kind::Word, len);
    }
    (Kind::Mark, first.len_utf8())
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of the string literal at the front, if there is one.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"]
        .into_iter()
        .find(|prefix| {
            rest.starts_with(prefix) && rest[prefix.len()..].starts_with(['"', '#', '\''])
        })
        .unwrap_or("");
    let behind = &rest[prefix.len()..];
    if prefix == "b" && behind.starts_with('\'') {
        return Some(1 + quote(behind).1);
    }
    if prefix.ends_with('r') {
        let hashes = behind.bytes().take_while(|byte| *byte == b'#').count();
        if behind.as_bytes().get(hashes) != Some(&b'"') {
            return None;
        }
        let end = format!("\"{}", "#".repeat(hashes));
        let body = hashes + 1;
        let len = behind[body..].find(&end)? + end.len();
        return Some(prefix.len() + body + len);
    }
    behind
        .starts_with('"')
        .then(|| prefix.len() + until_quote(behind, b'"'))
}

/// Up to and with the closing mark; backslashes guard it.
fn until_quote(rest: &str, mark: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == mark => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character or a lifetime.
fn quote(rest: &str) -> (Kind, usize) {
    let mut letters = rest.chars().skip(1);
    let (one, two) = (letters.next(), letters.next());
    let lifetime = one.is_some_and(|one| one == '_' || one.is_alphabetic()) && two != Some('\'');
    if !lifetime {
        return (Kind::Literal, until_quote(rest, b'\''));
    }
    let len = rest[1..]
        .find(|letter: char| !(letter == '_' || letter.is_alphanumeric()))
        .map_or(rest.len(), |len| len + 1);
    (Kind::Lifetime, len)
}

/// The index of the bracket that closes the one at `open`; the end for a source that is cut off.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Every path that begins with the word `root`, spelled out: `use a::{b, c::d}` gives `a::b` and
/// `a::c::d`. Each with its line.
pub(crate) fn paths(tokens: &[Token<'_>], root: &str) -> Vec<(String, usize)> {
    let code: Vec<_> = tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .copied()
        .collect();
    let mut found = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let inside = at >= 2 && code[at - 1].is(":") && code[at - 2].is(":");
        if token.is(root) && token.kind == Kind::Word && !inside {
            spell(&code, at, "", &mut found);
        }
    }
    found
}

/// Spells out the path at `at`; gives the index behind it.
fn spell(code: &[Token<'_>], at: usize, before: &str, found: &mut Vec<(String, usize)>) -> usize {
    let Some(token) = code.get(at) else {
        return at;
    };
    let path = format!("{before}{}", token.text);
    // `as other`: another name for the same.
    let renamed = code.get(at + 1).is_some_and(|word| word.is("as"));
    let behind = if renamed { at + 3 } else { at + 1 };
    let goes_on = code.get(at + 1).is_some_and(|mark| mark.is(":"))
        && code.get(at + 2).is_some_and(|mark| mark.is(":"));
    if !goes_on {
        found.push((path, token.line));
        return behind;
    }
    let next = at + 3;
    let path = format!("{path}::");
    match code.get(next) {
        Some(open) if open.is("{") => {
            let end = closing(code, next);
            let mut inner = next + 1;
            while inner < end {
                if code[inner].kind == Kind::Word || code[inner].is("*") {
                    inner = spell(code, inner, &path, found);
                } else {
                    inner += 1;
                }
            }
            end + 1
        }
        Some(word) if word.kind == Kind::Word || word.is("*") => spell(code, next, &path, found),
        _ => {
            found.push((path, token.line));
            next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source)
            .into_iter()
            .filter(|token| token.kind == Kind::Word)
            .map(|token| token.text)
            .collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        let source = r##"
            // unsafe one
            /* unsafe /* nested */ two */
            let a = "unsafe \" three"; let b = r#"unsafe " four"#; let c = b"unsafe";
            let d = 'u'; let e: &'static str = c; let f = '\''; let g = b'\''; r#fn();
        "##;
        let expected = [
            "let", "a", "let", "b", "let", "c", "let", "d", "let", "e", "str", "c", "let", "f",
            "let", "g", "r#fn",
        ];
        assert_eq!(words(source), expected);
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let source = "a /* \n */ b \"x\ny\" c\nd";
        let lines: Vec<_> = tokens(source)
            .iter()
            .filter(|token| token.kind == Kind::Word)
            .map(|token| (token.text, token.line))
            .collect();
        assert_eq!(lines, [("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    }

    #[test]
    fn paths_are_spelled_out() {
        let source = "use std::{fs, net::{TcpStream, *}, time::Duration as D};\n\
                      fn f() { std::thread::sleep(x); my::std::fs(); std::env::args::<u8>() }";
        let found: Vec<_> = paths(&tokens(source), "std")
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(
            found,
            [
                "std::fs",
                "std::net::TcpStream",
                "std::net::*",
                "std::time::Duration",
                "std::thread::sleep",
                "std::env::args::",
            ]
        );
    }
}
