//! What no committed text may mention, and which files need not be text.

use crate::report;
use crate::tree::files;

/// Binary files that are meant to be there: where, how they end, and what they are.
const BINARY: [(&str, &str, &str); 5] = [
    (
        "crates/wire/tests/fixtures/",
        ".bin",
        "first bytes of real connections",
    ),
    ("fuzz/corpus/", "", "inputs of the fuzz targets"),
    ("tests/captures/", "", "captures"),
    ("tests/traces/", ".bin", "records of a binary log"),
    ("docs/", ".png", "pictures"),
];

/// Text files that would not be text by chance, and may still be.
fn may_be_binary(path: &str) -> bool {
    let fixtures = path.contains("/fixtures/") || path.contains("/captures/");
    let capture = [".pcap", ".pcapng", ".zst", ".gz"]
        .iter()
        .any(|end| path.ends_with(end));
    fixtures && capture
        || BINARY
            .iter()
            .any(|(folder, end, _)| path.starts_with(folder) && path.ends_with(end))
}

/// Places on the machines where this was written. Cut in two, so that this file is not found.
const PLACES: [&str; 4] = [
    concat!("/wo", "rk"),
    concat!("/tmp/", "fl"),
    concat!("/ro", "ot/."),
    concat!("/ho", "me/"),
];

/// Package registries: where packages come from is the business of whoever builds.
const REGISTRIES: [&str; 8] = [
    concat!("crates", ".io"),
    concat!("py", "pi.org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("proxy.golang", ".org"),
    concat!("rubygems", ".org"),
    concat!("repo1.maven", ".org"),
];

/// The one line in which cargo itself writes where a package is from.
fn is_lock_source(path: &str, line: &str) -> bool {
    let source = concat!(
        "source = \"registry+https://github.com/rust-lang/crates",
        ".io-index\""
    );
    path.ends_with("Cargo.lock") && line == source
}

/// True when `place` stands in the line as a path, not as a part of a longer word.
fn names_place(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + place.len()..].chars().next();
        let word = |letter: Option<char>| {
            letter.is_some_and(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-'))
        };
        let whole = place.ends_with('/') || place.ends_with('.') || !word(after);
        let begins = !word(before) && !matches!(before, Some('.' | '}' | ')' | '*' | ']'));
        begins && whole
    })
}

#[test]
fn texts_speak_of_the_project_alone() {
    let mut found = Vec::new();
    for file in files() {
        let Some(text) = file.text() else { continue };
        if may_be_binary(&file.path) {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            let place = format!("{}:{}", file.path, at + 1);
            if let Some(path) = PLACES.iter().find(|path| names_place(line, path)) {
                found.push(format!("{place}: a path of one machine, {path}"));
            }
            let registry = REGISTRIES.iter().find(|host| line.contains(**host));
            if let Some(host) = registry.filter(|_| !is_lock_source(&file.path, line)) {
                found.push(format!("{place}: a package registry, {host}"));
            }
        }
    }
    report("texts speak of the project alone", &found);
}

#[test]
fn binary_files_are_listed() {
    let found: Vec<_> = files()
        .iter()
        .filter(|file| file.text().is_none() && !may_be_binary(&file.path))
        .map(|file| {
            format!(
                "{}: list it in tests/house/words.rs, or leave it out",
                file.path
            )
        })
        .collect();
    report("binary files are listed", &found);
}

#[test]
fn paths_are_told_from_words() {
    let [work, ..] = PLACES;
    let line = |before: &str, after: &str| format!("{before}{work}{after}");
    for (before, after, named) in [
        ("cd ", "", true),
        ("cd ", "/main", true),
        ("\"", "\"", true),
        ("home", "", false),
        (".github", "flows", false),
        ("a", "ers/b", false),
        ("${dir}", "/x", false),
    ] {
        let line = line(before, after);
        assert_eq!(names_place(&line, work), named, "{line}");
    }
}
