//! What users read first stays short.

use crate::report;
use crate::tree;

/// Pages with their most lines and words.
const PAGES: [(&str, usize, usize); 3] = [
    ("README.md", 130, 900),
    ("CHANGELOG.md", 140, 1_600),
    ("docs/writing.md", 20, 400),
];

/// What of a page is too long.
fn too_long(path: &str, text: &str, lines_max: usize, words_max: usize) -> Vec<String> {
    let found = [
        ("lines", text.lines().count(), lines_max),
        ("words", text.split_whitespace().count(), words_max),
    ];
    found
        .into_iter()
        .filter(|(_, count, most)| count > most)
        .map(|(what, count, most)| format!("{path}: {count} {what}, at most {most}"))
        .collect()
}

#[test]
fn the_first_pages_are_short() {
    let mut found = Vec::new();
    for (path, lines, words) in PAGES {
        let text = tree::file(path).and_then(|file| file.text());
        found.extend(too_long(path, text.expect(path), lines, words));
    }
    report("what users read first stays short", &found);
}

#[test]
fn lines_and_words_are_counted() {
    assert!(too_long("a.md", "one two\nthree\n", 2, 3).is_empty());
    assert_eq!(too_long("a.md", "one two\nthree\n", 1, 2).len(), 2);
}
