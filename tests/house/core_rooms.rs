//! Core crates know no clock, socket, thread, file or chance: all that comes in as an argument.

use crate::rust::{self, Kind};
use crate::source::{Source, sources};
use crate::{CORE, report};

/// What a path must not begin with, and what to use instead.
const FORBIDDEN: [(&str, &str); 16] = [
    (
        "std::time::Instant",
        "time is an argument: fairlead_base::Instant",
    ),
    (
        "std::time::SystemTime",
        "time is an argument: fairlead_base::Instant",
    ),
    (
        "std::time::UNIX_EPOCH",
        "time is an argument: fairlead_base::Instant",
    ),
    ("std::time::*", "name what is meant"),
    (
        "std::net",
        "addresses are in core::net; sockets belong to drivers",
    ),
    ("std::os", "the system belongs to drivers"),
    ("std::thread", "threads belong to the binary"),
    ("std::fs", "files belong to the binary and to drivers"),
    ("std::env", "settings are arguments"),
    ("std::process", "processes belong to the binary"),
    ("std::io::stdin", "input is an argument"),
    ("std::io::stdout", "output is returned"),
    ("std::io::stderr", "output is returned"),
    (
        "std::collections::HashMap",
        "BTreeMap: hashing by a seed of its own differs by run",
    ),
    (
        "std::collections::HashSet",
        "BTreeSet: hashing by a seed of its own differs by run",
    ),
    (
        "std::hash::RandomState",
        "chance is a seed: fairlead_base::Rng",
    ),
];

/// Rooms whose output is for people at tests: they may print.
const MAY_PRINT: [&str; 2] = ["sim", "testkit"];

const PRINTING: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];

fn room(path: &str) -> Option<&str> {
    let (room, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    (CORE.contains(&room) && rest.starts_with("src/")).then_some(room)
}

fn complaints(source: &Source) -> Vec<String> {
    let code = source.code();
    let mut complaints = Vec::new();
    for (path, line) in rust::paths(&code, "std") {
        let found = FORBIDDEN.iter().find(|(forbidden, _)| {
            path.strip_prefix(forbidden)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        });
        if let Some((_, instead)) = found {
            complaints.push(format!("{}:{line}: {path}: {instead}", source.path));
        }
    }
    if room(source.path).is_some_and(|room| MAY_PRINT.contains(&room)) {
        return complaints;
    }
    let words: Vec<_> = code
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .collect();
    for pair in words.windows(2) {
        if pair[1].is("!") && PRINTING.iter().any(|name| pair[0].is(name)) {
            let (line, name) = (pair[0].line, pair[0].text);
            complaints.push(format!(
                "{}:{line}: {name}!: output is returned",
                source.path
            ));
        }
    }
    complaints
}

#[test]
fn core_crates_are_free_of_the_world() {
    let mut found = Vec::new();
    for source in sources() {
        if room(source.path).is_some() {
            found.extend(complaints(source));
        }
    }
    report("core crates are sans-IO", &found);
}

#[test]
fn core_crates_forbid_unsafe_code() {
    let mut found = Vec::new();
    for room in CORE {
        let path = format!("crates/{room}/src/lib.rs");
        let source = sources().iter().find(|source| source.path == path);
        let forbids = source.is_some_and(|source| {
            let words: Vec<_> = source.tokens.iter().map(|token| token.text).collect();
            words
                .windows(4)
                .any(|four| four == ["forbid", "(", "unsafe_code", ")"])
        });
        if !forbids {
            found.push(format!("{path}: write #![forbid(unsafe_code)]"));
        }
    }
    report("core crates have no unsafe code", &found);
}
