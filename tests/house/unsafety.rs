//! `unsafe` only in few rooms, each use with its reason.

use crate::report;
use crate::rust::{Kind, Token};
use crate::source::{Source, sources};

/// Where `unsafe` may be: where the kernel or the allocator is spoken to.
const ROOMS: [&str; 13] = [
    "crates/bpf-loader/",
    "crates/bypass/",
    "crates/driver-tun/",
    "crates/driver-xdp/",
    "crates/netns/",
    "crates/os-memory/",
    "crates/os-ring/",
    "crates/os-tcp/",
    "crates/survey/",
    // Marks have names that the tracer finds.
    "tracer/",
    // The counting allocators.
    "bench/",
    "crates/content/tests/allocations.rs",
    "crates/http-cache/tests/allocations.rs",
];

fn complaints(source: &Source) -> Vec<String> {
    let allowed = ROOMS.iter().any(|room| source.path.starts_with(room));
    let mut complaints = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if !token.is("unsafe") {
            continue;
        }
        let place = format!("{}:{}", source.path, token.line);
        if !allowed {
            complaints.push(format!("{place}: no `unsafe` here; it belongs to a driver"));
        }
        let mut next = source.tokens[at + 1..]
            .iter()
            .filter(|token| token.kind != Kind::Comment);
        let first = next.next();
        // `unsafe extern "C" fn name`, which is no type, or the attribute of such a function.
        let is_extern = first.is_some_and(|first| first.is("extern"))
            && next.nth(1).is_some_and(|third| third.is("fn"))
            && next.next().is_some_and(|fourth| !fourth.is("("));
        let is_attribute = first.is_some_and(|first| first.is("("));
        let is_fn = is_extern || first.is_some_and(|first| first.is("fn"));
        let mark = if is_fn { "# Safety" } else { "SAFETY:" };
        if is_attribute && has_reason(&source.tokens, at, "# Safety") {
            continue;
        }
        if is_fn && is_of_a_trait(&source.tokens, at) {
            continue;
        }
        if !has_reason(&source.tokens, at, mark) {
            complaints.push(format!(
                "{place}: say before it, with `{mark}`, why it is sound"
            ));
        }
    }
    complaints
}

/// True inside `unsafe impl`: what the functions must keep is said by the trait.
fn is_of_a_trait(tokens: &[Token<'_>], at: usize) -> bool {
    (0..at).rev().any(|open| {
        tokens[open].is("{")
            && crate::rust::closing(tokens, open) > at
            && tokens[..open]
                .iter()
                .rev()
                .take_while(|token| !(token.is("}") || token.is(";")))
                .any(|token| token.is("impl"))
            && tokens[..open]
                .iter()
                .rev()
                .take_while(|token| !(token.is("}") || token.is(";")))
                .any(|token| token.is("unsafe"))
    })
}

/// Whether a comment with `mark` stands between the end of the statement before and this.
fn has_reason(tokens: &[Token<'_>], at: usize, mark: &str) -> bool {
    tokens[..at]
        .iter()
        .rev()
        .take_while(|token| {
            token.kind == Kind::Comment || !(token.is(";") || token.is("{") || token.is("}"))
        })
        .any(|token| token.kind == Kind::Comment && token.text.contains(mark))
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why() {
    let found: Vec<_> = sources().iter().flat_map(complaints).collect();
    report("unsafe code", &found);
}

#[test]
fn a_missing_reason_is_found() {
    let good = crate::rust::tokens("f(); // SAFETY: g is fine\nlet a = unsafe { g() };");
    let bad = crate::rust::tokens("// SAFETY: f\nf(); let a = unsafe { g() };");
    let at = |tokens: &[Token<'_>]| tokens.iter().position(|token| token.is("unsafe"));
    assert!(has_reason(&good, at(&good).expect("there"), "SAFETY:"));
    assert!(!has_reason(&bad, at(&bad).expect("there"), "SAFETY:"));
}
