//! Files that are not TOML: what was meant, and how TOML writes it.
//!
//! The parser says what it expected, which helps those who know its grammar. Most slips are a
//! few: quotation marks that are missing, brackets of a list of tables, another language's words.

use toml::de::Error;

use super::diagnostic::{Diagnostic, Problems, Span};
use super::schema;
use super::section::quoted;

/// Reports the parser's errors, of each line the first: what follows on it is of its making.
pub(super) fn report(text: &str, errors: &[Error], problems: &mut Problems) {
    let mut last_line = None;
    let mut table_twice = false;
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let line = Line::at(text, span.start);
        if last_line.replace(line.start) == Some(line.start) {
            continue;
        }
        let message = error.message().replace('\n', ", ");
        if message.starts_with("duplicate key") {
            // Its keys are not to blame.
            if table_twice && !line.text.starts_with('[') {
                continue;
            }
            table_twice |= line.text.starts_with('[');
        }
        let diagnostic = Diagnostic::error(&span, &*message);
        problems.push(match hint(&line, &span, &message) {
            Some(hint) => diagnostic.help(hint),
            None => diagnostic,
        });
    }
}

/// A line of the file, and where it begins.
struct Line<'t> {
    text: &'t str,
    start: usize,
}

impl<'t> Line<'t> {
    fn at(text: &'t str, at: usize) -> Self {
        let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
        let start = before.rfind('\n').map_or(0, |found| found + 1);
        let end = after.find('\n').map_or(text.len(), |found| at + found);
        Self {
            text: text.get(start..end).unwrap_or(""),
            start,
        }
    }

    /// The word at a place in the file: what stands together without a space, a comma or a bracket.
    fn word(&self, span: &Span) -> &'t str {
        let ends = |c: char| c.is_whitespace() || "=,[]{}#".contains(c);
        let at = span.start.saturating_sub(self.start);
        let Some((before, after)) = self.text.split_at_checked(at) else {
            return "";
        };
        let from = before.rfind(ends).map_or(0, |found| found + 1);
        let to = after.find(ends).map_or(self.text.len(), |found| at + found);
        // The place before the first letter of what ended the search may be within a letter.
        self.text.get(from..to).unwrap_or("")
    }
}

/// What to write.
fn hint(line: &Line<'_>, span: &Span, message: &str) -> Option<String> {
    let trimmed = line.text.trim();
    if trimmed.starts_with("//") || trimmed.starts_with(';') {
        return Some("comments begin with `#`".to_owned());
    }
    if message.starts_with("missing escaped value") {
        return Some(
            "in single quotes a backslash is literal: '…'; in double ones write two".to_owned(),
        );
    }
    if message.starts_with("duplicate key") {
        return Some(twice(trimmed));
    }
    if trimmed.starts_with('[') && !trimmed.contains('=') {
        return (message.starts_with("unclosed"))
            .then(|| "a header has as many brackets behind it as before it".to_owned());
    }
    let lacks_its_end = [
        "unclosed",
        "missing comma",
        "invalid inline table",
        "invalid array",
    ];
    if lacks_its_end.iter().any(|begin| message.starts_with(begin)) {
        return Some("a list that is begun with `[` or `{` lacks its end or a comma".to_owned());
    }
    if trimmed.starts_with('{') {
        return Some("write a header, [instance] for one, and key = value below it".to_owned());
    }
    let word = line.word(span);
    if message.contains("expected `=`") || message.starts_with("invalid unquoted key") {
        return Some(match trimmed.split_once(':') {
            Some((key, _)) if !trimmed.contains('=') && is_key(key) => {
                format!("write {key} = and the value: `=` instead of `:`")
            }
            _ if trimmed.contains(": ") => "write `=` instead of `:`".to_owned(),
            _ => "write key = value, each on a line of its own".to_owned(),
        });
    }
    if message.starts_with("unexpected key or value") {
        return Some(behind_a_value(trimmed));
    }
    unquoted(word, message)
}

fn is_key(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !text.is_empty() && text.chars().all(plain)
}

/// A key or a header that is there a second time.
fn twice(line: &str) -> String {
    let name = line.trim_matches(['[', ']']);
    let lists = ["service", "service.route", "pool", "pool.server"];
    match line.starts_with('[') {
        true if lists.contains(&name) => {
            format!("write [[{name}]] with two brackets each time: there may be several")
        }
        true if schema::FILE.keys().any(|one| one == name) => {
            format!("there is one [{name}]: write all its keys below one header")
        }
        true => "a table has one header: write all its keys below it".to_owned(),
        false => "it is written above already: one of the two has to go".to_owned(),
    }
}

fn behind_a_value(line: &str) -> String {
    let value = line.split_once('=').map_or(line, |(_, value)| value.trim());
    let digits: String = value.chars().filter(|c| !",_. ".contains(*c)).collect();
    if value.contains(',') && !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
        return format!("write {digits}, or with `_` between the digits");
    }
    match value.ends_with(';') {
        true => "remove the `;`: a value ends with its line".to_owned(),
        false => "a value ends with its line; several stand in a list: [ …, … ]".to_owned(),
    }
}

/// A value that should be in quotation marks, or another one.
fn unquoted(word: &str, message: &str) -> Option<String> {
    let is_value = ["string values must be quoted", "invalid "];
    if !is_value.iter().any(|begin| message.starts_with(begin)) {
        return None;
    }
    if word.contains(['"', '\'']) {
        return Some("a text has the same quotation mark at both ends, on one line".to_owned());
    }
    let plain = word.trim_matches(|c| "“”„‘’'`".contains(c));
    match plain.to_ascii_lowercase().as_str() {
        "" => (message.starts_with("string")).then(|| "write a value behind the `=`".to_owned()),
        "true" | "yes" | "on" => Some("write true".to_owned()),
        "false" | "no" | "off" => Some("write false".to_owned()),
        _ => Some(format!("write {}, with quotation marks", quoted(plain))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    /// The hint of the only finding in a file.
    fn hint(text: &str) -> String {
        let report = parse(text, "t.toml").unwrap_err();
        let [only] = report.diagnostics() else {
            panic!("{report}");
        };
        only.advice()
            .unwrap_or_else(|| panic!("{report}"))
            .to_owned()
    }

    #[test]
    fn values_without_quotation_marks() {
        for (line, wanted) in [
            ("admin = 127.0.0.1:9090", "write \"127.0.0.1:9090\", with"),
            ("snat = 100.64.0.0/24", "write \"100.64.0.0/24\", with"),
            ("name = edge", "write \"edge\", with"),
            ("name = “edge”", "write \"edge\", with"),
            ("device = fairlead0", "write \"fairlead0\", with"),
            ("drain_timeout = 30s", "write \"30s\", with"),
            ("buffered = 256MiB", "write \"256MiB\", with"),
            ("log_connections = True", "write true"),
            ("log_connections = yes", "write true"),
            ("log_connections = off", "write false"),
            ("name =", "write a value behind the `=`"),
            ("name = 'a\"", "the same quotation mark at both ends"),
            ("name = \"a", "the same quotation mark at both ends"),
        ] {
            let told = hint(&format!("[instance]\n{line}\n"));
            assert!(
                told.starts_with(wanted) || told.contains(wanted),
                "{line}: {told}"
            );
        }
    }

    #[test]
    fn another_languages_words() {
        for (line, wanted) in [
            ("name: \"edge\"", "write name = and the value"),
            ("name \"edge\"", "write key = value"),
            ("name = \"a\";", "remove the `;`"),
            ("connections = 1,000,000", "write 1000000,"),
            ("listen = \"a:80\", \"b:80\"", "several stand in a list"),
            ("path_regex = \"^/img/\\.jpg\"", "single quotes"),
            ("// where it listens", "comments begin with `#`"),
            ("; where it listens", "comments begin with `#`"),
            (
                "server = [{ address: \"10.2.0.1:80\" }]",
                "`=` instead of `:`",
            ),
            (
                "server = [{ address = \"a:80\" }, { a = 1\n]",
                "lacks its end",
            ),
            ("listen = [\"a:80\"\nmtu = 1500", "lacks its end"),
            ("{ \"instance\": {} }", "write a header"),
        ] {
            let told = hint(&format!("[instance]\n{line}\n"));
            assert!(told.contains(wanted), "{line}: {told}");
        }
    }

    #[test]
    fn headers() {
        for (text, wanted) in [
            ("[instance\n", "as many brackets behind it"),
            ("[[service]\n", "as many brackets behind it"),
            (
                "[pool]\nname = \"a\"\n[pool]\nname = \"b\"\n",
                "write [[pool]]",
            ),
            (
                "[pool]\nname = \"a\"\n[[pool]]\nname = \"b\"\n",
                "write [[pool]]",
            ),
            (
                "[limits]\nmtu = 1\n[limits]\nmtu = 1\n",
                "there is one [limits]",
            ),
            ("[limits]\nmtu = 1\nmtu = 2\n", "one of the two has to go"),
        ] {
            let told = hint(text);
            assert!(told.contains(wanted), "{text}: {told}");
        }
    }
}
