//! Phrases that must not come back (`docs/writing.md` says what to write instead). They are looked
//! for in documents, and in comments, help texts and string literals of Rust files.
//!
//! Files that had such phrases when the rule was made are listed in `phrases.txt`, with how many:
//! that list only gets shorter.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::rust::{self, Kind};
use crate::tree::{self, files};
use crate::{report, update};

/// The phrases, in lower case. None begins or ends within a word.
const PHRASES: [&str; 15] = [
    "is told",
    "are told",
    "is none",
    "are none",
    "is no news",
    "so many",
    "aloud",
    "who asks",
    "who finds",
    "who starts",
    "cannot be asked",
    "cannot be told",
    "what came of it",
    "what comes of it",
    "comes to nothing",
];

/// What may be said all the same: `there is none` is plain.
const PLAIN: [&str; 2] = ["there is none", "there are none"];

/// Files that may name them: the rule, and the pairs of before and after.
const EXEMPT: [&str; 3] = [
    "tests/house/phrases.rs",
    "tests/house/phrases.txt",
    "docs/writing.md",
];

const LIST: &str = "tests/house/phrases.txt";

/// How many phrases a text has. Line breaks and comment marks count as blanks.
fn count(text: &str) -> usize {
    let text = text.to_lowercase();
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|word| !matches!(*word, "//" | "///" | "//!" | "#" | "\\"))
        .collect();
    let text = words.join(" ");
    let plain = PLAIN.iter();
    let text = plain.fold(text, |text, plain| text.replace(plain, ""));
    let letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let is_whole = |at: usize, phrase: &str| {
        !letter(text[..at].chars().next_back()) && !letter(text[at + phrase.len()..].chars().next())
    };
    let hits = |phrase: &&str| {
        let all = text.match_indices(*phrase);
        all.filter(|(at, found)| is_whole(*at, found)).count()
    };
    PHRASES.iter().map(hits).sum()
}

/// What of a Rust file people read: comments and strings, each run of comment lines as one text.
fn prose(source: &str) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut in_comment = false;
    for token in rust::tokens(source) {
        match token.kind {
            Kind::Comment if in_comment => {
                if let Some(text) = texts.last_mut() {
                    text.push(' ');
                    text.push_str(token.text);
                }
            }
            Kind::Comment | Kind::Literal => texts.push(token.text.to_owned()),
            _ => {}
        }
        in_comment = token.kind == Kind::Comment;
    }
    texts
}

/// The phrases of each file that has some.
fn found() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for file in files() {
        if EXEMPT.contains(&file.path.as_str()) {
            continue;
        }
        let Some(text) = file.text() else { continue };
        let phrases = if file.ends_with(".rs") {
            prose(text).iter().map(|text| count(text)).sum()
        } else if file.ends_with(".md") || file.ends_with(".in") {
            count(text)
        } else {
            0
        };
        if phrases > 0 {
            found.insert(file.path.clone(), phrases);
        }
    }
    found
}

fn recorded() -> BTreeMap<String, usize> {
    let list = std::fs::read_to_string(tree::root().join(LIST)).unwrap_or_default();
    list.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (path, phrases) = line.rsplit_once(' ').expect("path, number");
            (path.to_owned(), phrases.parse().expect("a number"))
        })
        .collect()
}

/// Files with more phrases than recorded.
fn grown(now: &BTreeMap<String, usize>, recorded: &BTreeMap<String, usize>) -> Vec<String> {
    now.iter()
        .filter_map(|(path, phrases)| {
            let before = recorded.get(path).copied().unwrap_or(0);
            (*phrases > before).then(|| format!("{path}: {phrases}, recorded {before}"))
        })
        .collect()
}

#[test]
fn phrases_do_not_come_back() {
    let (now, recorded) = (found(), recorded());
    report(
        "phrases of tests/house/phrases.rs: docs/writing.md says what to write instead",
        &grown(&now, &recorded),
    );
    if update() && now != recorded {
        let mut text = String::from(
            "# Phrases that docs/writing.md advises against: this list only gets shorter.\n",
        );
        for (path, phrases) in &now {
            writeln!(text, "{path} {phrases}").expect("to memory");
        }
        std::fs::write(tree::root().join(LIST), text).expect("written");
    }
}

#[test]
fn phrases_are_found_across_lines_and_not_in_words() {
    let comment = "/// The peer\n/// is\n/// told so.\nlet told = \"skipped\\\n    aloud\";";
    let texts = prose(comment);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert_eq!(texts.iter().map(|text| count(text)).sum::<usize>(), 2);
    assert_eq!(count("So many SYNs; the answer is none."), 2);
    assert_eq!(
        count("this is toldless; a note is nonexistent; there is none"),
        0
    );
    assert_eq!(prose("let is = told; fn aloud() {}").len(), 0);
}

#[test]
fn more_phrases_than_recorded_are_refused() {
    let lists = |pairs: &[(&str, usize)]| -> BTreeMap<String, usize> {
        let pairs = pairs
            .iter()
            .map(|(path, phrases)| ((*path).to_owned(), *phrases));
        pairs.collect()
    };
    let recorded = lists(&[("a.rs", 2), ("b.md", 1)]);
    assert!(grown(&lists(&[("a.rs", 1)]), &recorded).is_empty());
    let worse = lists(&[("a.rs", 3), ("b.md", 1), ("c.md", 1)]);
    assert_eq!(grown(&worse, &recorded).len(), 2);
}
