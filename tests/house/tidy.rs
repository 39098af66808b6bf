//! Lengths of lines, files and functions; dead files; left-over marks.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::rust::Kind;
use crate::source::{module_folder, sources};
use crate::tree::{self, files};
use crate::{report, update};

const LINE_MAX: usize = 100;
const FILE_MAX: usize = 800;
const FUNCTION_MAX: usize = 70;

/// What was longer when the rules were made: a list that only ever gets shorter.
const LONGER: &str = "tests/house/longer.txt";

/// How much of something there is, by `kind path`, or `kind path name`.
type Lengths = BTreeMap<String, usize>;

/// Lines that are too long, counted by file.
fn long_lines() -> Lengths {
    let mut long = Lengths::new();
    for source in sources() {
        // A link cannot be broken.
        let is_long = |line: &&str| line.chars().count() > LINE_MAX && !line.contains("://");
        let count = source.text.lines().filter(is_long).count();
        if count > 0 {
            long.insert(format!("lines {}", source.path), count);
        }
    }
    long
}

/// Files that are too long, tests apart.
fn long_files() -> Lengths {
    sources()
        .iter()
        .map(|source| (format!("file {}", source.path), source.code_lines()))
        .filter(|(_, lines)| *lines > FILE_MAX)
        .collect()
}

/// Functions that are too long, tests apart.
fn long_functions() -> Lengths {
    let mut long = Lengths::new();
    for source in sources() {
        for function in source.functions() {
            if function.lines > FUNCTION_MAX && source.is_code(function.line) {
                let name = format!("function {} {}", source.path, function.name);
                let lines = long.entry(name).or_insert(0);
                *lines = function.lines.max(*lines);
            }
        }
    }
    long
}

fn recorded() -> Lengths {
    let list = std::fs::read_to_string(tree::root().join(LONGER)).unwrap_or_default();
    list.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (name, lines) = line.rsplit_once(' ').expect("what, path, number");
            (name.to_owned(), lines.parse().expect("a number"))
        })
        .collect()
}

/// What is longer than it may be, and longer than recorded.
fn grown(now: &Lengths, recorded: &Lengths) -> Vec<String> {
    now.iter()
        .filter_map(|(name, lines)| match recorded.get(name) {
            None => Some(format!("{name}: {lines}")),
            Some(before) if before < lines => {
                Some(format!("{name}: grew from {before} to {lines}"))
            }
            Some(_) => None,
        })
        .collect()
}

#[test]
fn lengths_are_kept_or_get_shorter() {
    let mut now = long_lines();
    now.extend(long_files());
    now.extend(long_functions());
    let recorded = recorded();
    let rule = format!(
        "lines have at most {LINE_MAX} characters, files {FILE_MAX} lines and functions \
         {FUNCTION_MAX} lines, tests apart"
    );
    report(&rule, &grown(&now, &recorded));
    if now == recorded {
        return;
    }
    let mut text = String::from(
        "# Longer than the rules allow: this list only gets shorter (tests/house/tidy.rs).\n",
    );
    for (name, lines) in &now {
        writeln!(text, "{name} {lines}").expect("to memory");
    }
    if update() {
        std::fs::write(tree::root().join(LONGER), text).expect("written");
        return;
    }
    panic!("{LONGER} can be shortened: UPDATE=1 cargo test -p fairlead-house");
}

#[test]
fn what_grows_is_found_and_what_shrinks_is_not() {
    let lengths = |pairs: &[(&str, usize)]| -> Lengths {
        pairs
            .iter()
            .map(|(name, lines)| ((*name).to_owned(), *lines))
            .collect()
    };
    let recorded = lengths(&[("function a f", 80), ("function a g", 90)]);
    assert!(grown(&lengths(&[("function a f", 79)]), &recorded).is_empty());
    let worse = lengths(&[("function a f", 81), ("function a h", 71)]);
    assert_eq!(grown(&worse, &recorded).len(), 2);
}

#[test]
fn lines_are_clean() {
    let mut found = Vec::new();
    for file in files() {
        let Some(text) = file.text() else { continue };
        let is_ours = [".rs", ".toml", ".md", "Makefile", ".sh", ".py"]
            .iter()
            .any(|end| file.ends_with(end));
        if !is_ours || file.path.starts_with("fuzz/corpus/") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                found.push(format!("{}:{}: blanks at the end", file.path, at + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            found.push(format!("{}: the last line has no end", file.path));
        }
    }
    report("lines have no blanks at their ends", &found);
}

/// Macros that stand for work not done.
const UNDONE: [&str; 3] = ["todo", "unimplemented", "dbg"];

#[test]
fn nothing_is_left_over() {
    let mut found = Vec::new();
    let mark = concat!("FIX", "ME");
    for source in sources() {
        for pair in source.tokens.windows(2) {
            if pair[1].is("!") && UNDONE.iter().any(|name| pair[0].is(name)) {
                found.push(format!(
                    "{}:{}: {}!",
                    source.path, pair[0].line, pair[0].text
                ));
            }
        }
        for token in &source.tokens {
            if token.kind == Kind::Comment && token.text.contains(mark) {
                found.push(format!("{}:{}: {mark}", source.path, token.line));
            }
        }
    }
    report("no left-over marks", &found);
}

/// Files that no `mod` names are not compiled, however well they look.
#[test]
fn no_file_is_dead() {
    let mut alive = std::collections::BTreeSet::new();
    for source in sources() {
        let folder = module_folder(source.path);
        for (name, _) in &source.modules {
            alive.insert(format!("{folder}{name}.rs"));
            alive.insert(format!("{folder}{name}/mod.rs"));
        }
    }
    let mut found = Vec::new();
    for source in sources() {
        let Some((_, inside)) = source.path.split_once("/src/") else {
            continue;
        };
        let is_root = matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/");
        if !is_root && !alive.contains(source.path) {
            found.push(format!("{}: no `mod` leads to it", source.path));
        }
    }
    report("no dead files", &found);
}
