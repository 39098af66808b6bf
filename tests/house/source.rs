//! What of a Rust file is test, and which functions it has.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use crate::rust::{self, Kind, Token};
use crate::tree;

/// A Rust file, looked into.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
    pub(crate) tokens: Vec<Token<'static>>,
    /// True when all of it is test.
    pub(crate) is_test: bool,
    /// Lines of test modules inside.
    pub(crate) tests: Vec<RangeInclusive<usize>>,
    /// Modules declared with `mod name;`, and whether they are tests.
    pub(crate) modules: Vec<(&'static str, bool)>,
}

/// One function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) line: usize,
    /// From `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// All Rust files.
pub(crate) fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let mut sources: Vec<Source> = tree::rust()
            .map(|(file, text)| Source::new(&file.path, text))
            .collect();
        let mut roots = BTreeSet::new();
        for source in &sources {
            let folder = module_folder(source.path);
            for (name, _) in source.modules.iter().filter(|(_, is_test)| *is_test) {
                roots.insert(format!("{folder}{name}.rs"));
                roots.insert(format!("{folder}{name}/"));
            }
        }
        for source in &mut sources {
            let below = |root: &String| match root.strip_suffix('/') {
                Some(_) => source.path.starts_with(root.as_str()),
                None => source.path == root,
            };
            source.is_test |= roots.iter().any(below);
        }
        sources
    })
}

/// The folder in which the modules of a file are.
pub(crate) fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        _ => format!("{}/", path.trim_end_matches(".rs")),
    }
}

impl Source {
    fn new(path: &'static str, text: &'static str) -> Self {
        let tokens = rust::tokens(text);
        let (tests, modules) = modules(&tokens);
        let folders = path.split('/').rev().skip(1);
        Self {
            path,
            text,
            is_test: folders
                .into_iter()
                .any(|folder| matches!(folder, "tests" | "benches")),
            tests,
            modules,
            tokens,
        }
    }

    /// True when a line is no test.
    pub(crate) fn is_code(&self, line: usize) -> bool {
        !self.is_test && !self.tests.iter().any(|range| range.contains(&line))
    }

    /// Lines that are no tests.
    pub(crate) fn code_lines(&self) -> usize {
        let lines = self.text.lines().count();
        (1..=lines).filter(|line| self.is_code(*line)).count()
    }

    /// Tokens that are no tests, comments among them.
    pub(crate) fn code(&self) -> Vec<Token<'static>> {
        self.tokens
            .iter()
            .filter(|token| self.is_code(token.line))
            .copied()
            .collect()
    }

    /// The functions with a body, tests among them.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let code: Vec<_> = self
            .tokens
            .iter()
            .filter(|token| token.kind != Kind::Comment)
            .copied()
            .collect();
        let mut functions = Vec::new();
        for (at, pair) in code.windows(2).enumerate() {
            if !pair[0].is("fn") || pair[1].kind != Kind::Word {
                continue;
            }
            let Some(open) = body(&code, at + 2) else {
                continue;
            };
            let end = rust::closing(&code, open);
            let last = code.get(end).map_or(pair[0].line, |token| token.line);
            functions.push(Function {
                name: pair[1].text,
                line: pair[0].line,
                lines: last - pair[0].line + 1,
            });
        }
        functions
    }
}

/// The brace that opens a function's body; `None` for a declaration.
fn body(code: &[Token<'_>], mut at: usize) -> Option<usize> {
    while let Some(token) = code.get(at) {
        if token.is("{") {
            return Some(at);
        }
        if token.is(";") {
            return None;
        }
        at = if token.is("(") || token.is("[") {
            rust::closing(code, at) + 1
        } else {
            at + 1
        };
    }
    None
}

type Modules = (Vec<RangeInclusive<usize>>, Vec<(&'static str, bool)>);

/// The lines of test modules, and the modules in files of their own.
fn modules(tokens: &[Token<'static>]) -> Modules {
    let code: Vec<_> = tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .copied()
        .collect();
    let (mut tests, mut modules) = (Vec::new(), Vec::new());
    for at in 0..code.len() {
        let is_module =
            code[at].is("mod") && code.get(at + 1).is_some_and(|name| name.kind == Kind::Word);
        if !is_module {
            continue;
        }
        let begin = attributes_begin(&code, at);
        let is_test = is_cfg_test(&code[begin..at]);
        match code.get(at + 2) {
            Some(mark) if mark.is(";") => modules.push((code[at + 1].text, is_test)),
            Some(mark) if mark.is("{") && is_test => {
                let end = rust::closing(&code, at + 2);
                let last = code.get(end).map_or(usize::MAX, |token| token.line);
                tests.push(code[begin].line..=last);
            }
            _ => {}
        }
    }
    (tests, modules)
}

/// Where the attributes and the visibility in front of `at` begin.
fn attributes_begin(code: &[Token<'_>], at: usize) -> usize {
    let mut begin = at;
    loop {
        let visible = begin >= 1 && code[begin - 1].is("pub");
        if visible {
            begin -= 1;
            continue;
        }
        if begin == 0 || !(code[begin - 1].is("]") || code[begin - 1].is(")")) {
            return begin;
        }
        let open = (0..begin)
            .rev()
            .find(|open| {
                let mark = &code[*open];
                (mark.is("[") || mark.is("(")) && rust::closing(code, *open) == begin - 1
            })
            .unwrap_or(0);
        if open >= 1 && (code[open - 1].is("#") || code[open - 1].is("pub")) {
            begin = open - 1;
        } else {
            return begin;
        }
    }
}

fn is_cfg_test(attributes: &[Token<'_>]) -> bool {
    attributes
        .windows(4)
        .any(|four| four[0].is("cfg") && four[1].is("(") && four[2].is("test") && four[3].is(")"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "mod a;\n#[cfg(test)]\nmod b;\npub(crate) mod c;\n\
        fn long(x: [u8; 3]) -> u8 {\n    if x {\n    }\n}\ntrait T { fn none(&self); }\n\
        #[cfg(test)]\n#[allow(x)]\npub mod tests {\n    fn inside() {}\n}\nfn after() {}\n";

    #[test]
    fn tests_are_told_from_code() {
        let source = Source::new("crates/x/src/lib.rs", TEXT);
        assert_eq!(source.modules, [("a", false), ("b", true), ("c", false)]);
        assert_eq!(source.tests, [10..=14]);
        assert_eq!(source.code_lines(), 10);
        assert!(!source.is_test && Source::new("crates/x/tests/y.rs", TEXT).is_test);
        assert_eq!(module_folder("a/src/lib.rs"), "a/src/");
        assert_eq!(module_folder("a/src/b.rs"), "a/src/b/");
    }

    #[test]
    fn functions_have_names_and_lengths() {
        let source = Source::new("crates/x/src/lib.rs", TEXT);
        let found: Vec<_> = source
            .functions()
            .iter()
            .map(|function| (function.name, function.line, function.lines))
            .collect();
        assert_eq!(found, [("long", 5, 4), ("inside", 13, 1), ("after", 15, 1)]);
    }
}
