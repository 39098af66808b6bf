//! Reading tables, lists and words, each with a message that says what to write.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::keys::Renamed;
use super::schema::{Table, home_of, renamed};

/// A value in the file, with its place.
pub(super) type Node<'a> = &'a Spanned<DeValue<'a>>;

/// The most values that one list may have.
pub(super) const LIST_MAX: usize = 1_024;

/// A key that stands under an earlier name.
#[derive(Debug)]
pub(super) struct Moved<'a> {
    /// Where it belongs now: the title of the table, and the key.
    home: (&'static str, &'static str),
    node: Node<'a>,
    /// The place of the key.
    span: Span,
    /// False where it is written under its present name, too, which is an error.
    is_used: bool,
}

/// Finds keys that stand under an earlier name, and warns of each.
pub(super) fn moved<'a>(document: &'a DeTable<'a>, problems: &mut Problems) -> Vec<Moved<'a>> {
    let all: Vec<_> = renamed().collect();
    let mut moved = Vec::new();
    for (at, (title, key, old)) in all.iter().enumerate() {
        let table = document.get(old.table);
        let Some(table) = table.and_then(|node| node.get_ref().as_table()) else {
            continue;
        };
        let Some((old_key, node)) = table.get_key_value(old.key) else {
            continue;
        };
        let meant = |old: &Renamed| {
            let (other, word) = old.when?;
            let value = table.get(other)?.get_ref().as_str()?;
            (value == word).then_some(())
        };
        let same = |one: &Renamed| (one.table, one.key) == (old.table, old.key);
        let twins = || all.iter().enumerate().filter(|(_, (.., one))| same(one));
        let chosen = twins().find(|(_, (.., one))| meant(one).is_some());
        if chosen.or_else(|| twins().next()).map(|(at, _)| at) != Some(at) {
            continue;
        }
        let span = old_key.span();
        let present = present(document, title, key);
        problems.push(match &present {
            Some(other) => Diagnostic::error(
                &span,
                format!("`{}` is `{key}` of {title} now, which is set, too", old.key),
            )
            .related(other, "its present name")
            .help(format!("leave `{}` out", old.key)),
            None => Diagnostic::warning(
                &span,
                format!("`{}` of [{}] has been renamed", old.key, old.table),
            )
            .help(format!(
                "write `{key}` in {title}: later versions do not take the old name"
            )),
        });
        moved.push(Moved {
            home: (title, key),
            node,
            span,
            is_used: present.is_none(),
        });
    }
    moved
}

/// Where a key stands under its present name: in one table, or in any of a list of tables.
fn present(document: &DeTable<'_>, title: &str, key: &str) -> Option<Span> {
    let node = document.get(title.trim_matches(['[', ']']))?.get_ref();
    let list = node.as_array().into_iter().flat_map(|list| list.iter());
    let tables = list.map(|one| one.get_ref()).chain([node]);
    let mut tables = tables.filter_map(|one| one.as_table());
    tables.find_map(|table| Some(table.get_key_value(key)?.0.span()))
}

/// A table that is being read. Keys it does not take are reported when it is opened.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    table: &'a DeTable<'a>,
    start: usize,
    end: usize,
    title: &'static str,
    moved: &'a [Moved<'a>],
}

impl<'a> Section<'a> {
    /// Opens `table`, reporting every key that `kind` does not have.
    pub(super) fn of(
        table: &'a DeTable<'a>,
        span: &Span,
        kind: &Table,
        moved: &'a [Moved<'a>],
        problems: &mut Problems,
    ) -> Self {
        for (key, _) in table {
            let word: &str = key.get_ref();
            let was_moved = moved.iter().any(|one| one.span == key.span());
            if was_moved || kind.keys().any(|one| one == word) {
                continue;
            }
            let message = format!("{} has no key {}", kind.title, quoted(word));
            let help = match (nearest(word, kind.keys()), home_of(word)) {
                (_, Some(home)) => format!("`{word}` belongs in {home}"),
                (Some(near), None) => format!("did you mean `{near}`?"),
                (None, None) => format!("it takes {}", listed(kind.keys())),
            };
            problems.push(Diagnostic::error(&key.span(), message).help(help));
        }
        Self {
            table,
            start: span.start,
            end: span.end,
            title: kind.title,
            moved,
        }
    }

    /// Opens the table that `node` must be.
    pub(super) fn open(
        node: Node<'a>,
        kind: &Table,
        moved: &'a [Moved<'a>],
        problems: &mut Problems,
    ) -> Option<Self> {
        match node.get_ref() {
            DeValue::Table(table) => Some(Self::of(table, &node.span(), kind, moved, problems)),
            other => {
                let message = format!("{} must be a table, not {}", kind.title, type_name(other));
                problems.push(Diagnostic::error(&node.span(), message).help(format!(
                    "write its keys, {}, each on a line of its own below {}",
                    listed(kind.keys()),
                    kind.title
                )));
                None
            }
        }
    }

    /// Where the table begins (its header).
    pub(super) fn span(&self) -> Span {
        self.start..self.end
    }

    pub(super) fn node(&self, key: &str) -> Option<Node<'a>> {
        let moved = || self.moved_key(key).map(|one| one.node);
        self.table.get(key).or_else(moved)
    }

    fn moved_key(&self, key: &str) -> Option<&'a Moved<'a>> {
        let home = |one: &&Moved<'_>| one.is_used && one.home == (self.title, key);
        self.moved.iter().find(home)
    }

    /// True where `key` stands under an earlier name.
    pub(super) fn is_renamed(&self, key: &str) -> bool {
        self.moved_key(key).is_some()
    }

    /// Where `key` itself stands; the whole table when it is not there.
    pub(super) fn key_span(&self, key: &str) -> Span {
        let written = self.table.get_key_value(key).map(|(key, _)| key.span());
        let moved = || self.moved_key(key).map(|one| one.span.clone());
        written.or_else(moved).unwrap_or_else(|| self.span())
    }

    /// A key that must be there. `example` is what to write.
    pub(super) fn require(
        &self,
        key: &str,
        example: &str,
        problems: &mut Problems,
    ) -> Option<Node<'a>> {
        let found = self.node(key);
        if found.is_none() {
            problems.push(
                Diagnostic::error(&self.span(), format!("{} lacks `{key}`", self.title))
                    .help(format!("write {example}")),
            );
        }
        found
    }

    /// The tables under `key`: `[[key]]` any number of times, or a list of inline tables.
    pub(super) fn tables(
        &self,
        key: &str,
        kind: &Table,
        max: usize,
        problems: &mut Problems,
    ) -> Vec<Self> {
        let Some(node) = self.node(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = node.get_ref() else {
            let message = format!(
                "`{key}` must be a list of tables, not {}",
                type_name(node.get_ref())
            );
            let help = if kind.title.starts_with("[[") {
                format!(
                    "write {} with two brackets: there may be several",
                    kind.title
                )
            } else {
                format!("write {key} = [{{ … }}]")
            };
            problems.push(Diagnostic::error(&node.span(), message).help(help));
            return Vec::new();
        };
        if array.len() > max {
            let message = format!("{} of `{key}`, more than the {max} allowed", array.len());
            problems.push(Diagnostic::error(&node.span(), message));
        }
        array
            .iter()
            .take(max)
            .filter_map(|node| Self::open(node, kind, self.moved, problems))
            .collect()
    }

    /// The one table under `key`, if it is there.
    pub(super) fn table(&self, key: &str, kind: &Table, problems: &mut Problems) -> Option<Self> {
        Self::open(self.node(key)?, kind, self.moved, problems)
    }

    /// Its keys and values, for tables whose keys are names.
    pub(super) fn entries(
        table: &'a DeTable<'a>,
    ) -> impl Iterator<Item = (At<&'a str>, Node<'a>)> + 'a {
        table
            .iter()
            .map(|(key, node)| (At::new(key.get_ref().as_ref(), key.span()), node))
    }
}

/// A string.
pub(super) fn string<'a>(
    node: Node<'a>,
    key: &str,
    example: &str,
    problems: &mut Problems,
) -> Option<At<&'a str>> {
    match node.get_ref() {
        DeValue::String(text) => Some(At::new(text.as_ref(), node.span())),
        other => {
            let message = format!("`{key}` must be a string, not {}", type_name(other));
            problems.push(
                Diagnostic::error(&node.span(), message).help(format!("write {key} = {example}")),
            );
            None
        }
    }
}

/// A string, or a list of strings with at least one in it.
pub(super) fn strings<'a>(
    node: Node<'a>,
    key: &str,
    example: &str,
    problems: &mut Problems,
) -> Vec<At<&'a str>> {
    let DeValue::Array(array) = node.get_ref() else {
        if let DeValue::String(text) = node.get_ref() {
            return vec![At::new(text.as_ref(), node.span())];
        }
        let message = format!(
            "`{key}` must be a string or a list of strings, not {}",
            type_name(node.get_ref())
        );
        problems.push(
            Diagnostic::error(&node.span(), message).help(format!("write {key} = {example}")),
        );
        return Vec::new();
    };
    if array.is_empty() {
        problems.push(
            Diagnostic::error(&node.span(), format!("`{key}` is an empty list"))
                .help(format!("write {key} = {example}, or leave `{key}` out")),
        );
    }
    if array.len() > LIST_MAX {
        let message = format!(
            "{} values of `{key}`, more than the {LIST_MAX} allowed",
            array.len()
        );
        problems.push(Diagnostic::error(&node.span(), message));
    }
    array
        .iter()
        .take(LIST_MAX)
        .filter_map(|one| string(one, key, example, problems))
        .collect()
}

/// A whole number within bounds.
pub(super) fn integer(
    node: Node<'_>,
    key: &str,
    range: core::ops::RangeInclusive<u64>,
    problems: &mut Problems,
) -> Option<u64> {
    let (low, high) = (*range.start(), *range.end());
    let DeValue::Integer(digits) = node.get_ref() else {
        let message = format!(
            "`{key}` must be a whole number, not {}",
            type_name(node.get_ref())
        );
        problems.push(Diagnostic::error(&node.span(), message).help(format!(
            "write a number from {low} to {high}, without quotes"
        )));
        return None;
    };
    let value = i128::from_str_radix(digits.as_str(), digits.radix());
    match value.ok().and_then(|value| u64::try_from(value).ok()) {
        Some(value) if range.contains(&value) => Some(value),
        _ => {
            let message = format!("`{key}` = {digits} is out of bounds");
            problems.push(
                Diagnostic::error(&node.span(), message)
                    .help(format!("write a number from {low} to {high}")),
            );
            None
        }
    }
}

/// `true` or `false`.
pub(super) fn boolean(node: Node<'_>, key: &str, problems: &mut Problems) -> Option<bool> {
    if let DeValue::Boolean(value) = node.get_ref() {
        return Some(*value);
    }
    let message = format!(
        "`{key}` must be true or false, not {}",
        type_name(node.get_ref())
    );
    problems.push(Diagnostic::error(&node.span(), message).help(format!(
        "write {key} = true or {key} = false, without quotes"
    )));
    None
}

/// One of a few words.
pub(super) fn word<T: Clone>(
    node: Node<'_>,
    key: &str,
    words: &[(&str, T)],
    problems: &mut Problems,
) -> Option<At<T>> {
    let example = words
        .iter()
        .map(|(word, _)| format!("\"{word}\""))
        .collect::<Vec<_>>();
    let text = string(node, key, &one_of(&example), problems)?;
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
        return Some(At::new(value.clone(), text.span));
    }
    let message = format!("{} is not a value of `{key}`", quoted(text.value));
    let help = match nearest(text.value, words.iter().map(|(word, _)| *word)) {
        Some(near) => format!(
            "did you mean \"{near}\"? `{key}` takes {}",
            one_of(&example)
        ),
        None => format!("write {}", one_of(&example)),
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

/// What a value is, as the file's author knows it.
pub(super) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The known word that `word` was probably meant to be.
pub(crate) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // Longer words than any we know cost too much to compare and are no slips of the pen.
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', ' '], "-");
    let wanted = plain(word);
    known
        .filter_map(|candidate| {
            let other = plain(candidate);
            let edits = strsim::damerau_levenshtein(&wanted, &other);
            let likeness = strsim::jaro_winkler(&wanted, &other);
            (edits <= (wanted.len() / 3).max(1) || likeness > 0.88).then_some((edits, candidate))
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// A word of the file in quotation marks, with control characters escaped and cut when it is long.
pub(super) fn quoted(text: &str) -> String {
    if text.chars().count() > 80 {
        let head: String = text.chars().take(77).collect();
        return format!("{:?}", format!("{head}…"));
    }
    format!("{text:?}")
}

/// `a, b and c`
fn listed(words: impl Iterator<Item = &'static str>) -> String {
    let words: Vec<_> = words.map(|word| format!("`{word}`")).collect();
    joined(&words, "and")
}

/// `a, b or c`
pub(super) fn one_of(words: &[String]) -> String {
    joined(words, "or")
}

fn joined(words: &[String], last: &str) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [init @ .., end] => format!("{} {last} {end}", init.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = [
            "round-robin",
            "weighted",
            "least-connections",
            "random-two",
            "maglev",
        ];
        for (word, meant) in [
            ("roundrobin", Some("round-robin")),
            ("round_robin", Some("round-robin")),
            ("Maglev", Some("maglev")),
            ("magelv", Some("maglev")),
            ("least-conn", Some("least-connections")),
            ("leastconnections", Some("least-connections")),
            ("source-hash", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known.iter().copied()), meant, "{word}");
        }
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(listed(["a"].into_iter()), "`a`");
        assert_eq!(listed(["a", "b", "c"].into_iter()), "`a`, `b` and `c`");
        assert_eq!(one_of(&["a".into(), "b".into()]), "a or b");
    }

    #[test]
    fn strange_words_are_escaped_and_cut() {
        assert_eq!(quoted("a\u{1b}b"), "\"a\\u{1b}b\"");
        assert!(quoted(&"x".repeat(1_000)).chars().count() < 90);
    }
}
