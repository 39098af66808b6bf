//! Words that say nothing are not names, nor the last words of names.

use crate::report;
use crate::rust::Kind;
use crate::source::{Source, sources};

/// The word, and what to say instead.
const BANNED: [(&str, &str); 12] = [
    ("manager", "say what it does"),
    ("helper", "say what it does"),
    ("util", "say what it is about"),
    ("utils", "say what it is about"),
    ("misc", "say what it is about"),
    ("common", "say what they have in common"),
    ("data", "say which"),
    ("info", "say which"),
    ("tmp", "say what it holds"),
    ("slot", "a line, a frame, an index"),
    ("speed", "throughput or latency"),
    ("v0", "versions are the repository's"),
];

/// Names that mean something else than they seem to: file and name.
const EXCEPTIONS: [(&str, &str); 1] = [
    // GET is the method, over TLS.
    ("crates/fairlead/src/demo/scene.rs", "get_tls"),
];

/// The words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in name.trim_start_matches("r#").chars() {
        if letter == '_' || letter.is_uppercase() {
            words.push(String::new());
        }
        if letter != '_' {
            let word = words.last_mut().expect("never empty");
            word.extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn banned(name: &str) -> Option<&'static str> {
    let words = words(name);
    let last = words.last()?;
    let (_, instead) = BANNED.iter().find(|(word, _)| word == last)?;
    Some(instead)
}

fn complaints(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let code: Vec<_> = source
        .tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .collect();
    for pair in code.windows(2) {
        let declares = ["struct", "enum", "trait", "union", "type", "mod", "fn"]
            .iter()
            .any(|keyword| pair[0].is(keyword));
        if !declares || pair[1].kind != Kind::Word {
            continue;
        }
        let excepted = EXCEPTIONS
            .iter()
            .any(|(path, name)| source.path == *path && pair[1].text == *name);
        // The names of tests are sentences.
        let in_test = pair[0].is("fn") && !source.is_code(pair[0].line);
        if excepted || in_test {
            continue;
        }
        if let Some(instead) = banned(pair[1].text) {
            let (line, name) = (pair[1].line, pair[1].text);
            complaints.push(format!("{}:{line}: {name}: {instead}", source.path));
        }
        if pair[0].is("fn") && pair[1].text.starts_with("get_") {
            let (line, name) = (pair[1].line, pair[1].text);
            complaints.push(format!("{}:{line}: {name}: without `get_`", source.path));
        }
    }
    complaints
}

#[test]
fn names_say_something() {
    let mut found: Vec<_> = sources().iter().flat_map(complaints).collect();
    for source in sources() {
        for part in source.path.trim_end_matches(".rs").split('/') {
            if let Some(instead) = banned(&part.replace('-', "_")) {
                found.push(format!("{}: {part}: {instead}", source.path));
            }
        }
    }
    report("names say something", &found);
}

#[test]
fn words_are_cut_at_capitals_and_underlines() {
    assert_eq!(words("RouteInfo"), ["route", "info"]);
    assert_eq!(words("with_data"), ["with", "data"]);
    assert!(banned("RouteInfo").is_some() && banned("Slot").is_some() && banned("tmp").is_some());
    assert!(banned("database").is_none() && banned("info_text").is_none());
}
