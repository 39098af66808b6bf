//! Links in documents lead somewhere.

use std::collections::BTreeSet;

use crate::report;
use crate::tree::{self, files};

/// The targets of the links in a line of Markdown, code left out.
fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut code = false;
    let mut at = 0;
    while let Some(found) = line[at..].find(['`', ']']) {
        let here = at + found;
        at = here + 1;
        if line.as_bytes()[here] == b'`' {
            code = !code;
            continue;
        }
        if !code
            && let Some(rest) = line[here..].strip_prefix("](")
            && let Some(end) = rest.find(')')
        {
            targets.push(rest[..end].split(' ').next().unwrap_or_default());
        }
    }
    targets
}

/// Lines of a document outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            code = !code;
            return None;
        }
        (!code).then_some((at + 1, line))
    })
}

/// What the headings of a document are called in links to them.
fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .map(|heading| {
            heading
                .trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter_map(|letter| match letter {
                    ' ' => Some('-'),
                    '-' | '_' => Some(letter),
                    letter => letter.is_alphanumeric().then_some(letter),
                })
                .collect()
        })
        .collect()
}

/// A path from the root, for a link in a document at `from`.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn complaint(from: &str, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        from.to_owned()
    } else {
        match resolve(from, path) {
            Some(path) => path,
            None => return Some("it leads out of the repository".into()),
        }
    };
    if !tree::root().join(&path).exists() {
        return Some(format!("there is no {path}"));
    }
    let linked = if path == from {
        Some(text)
    } else {
        tree::file(&path).and_then(|file| file.text())
    };
    let missing = !anchor.is_empty()
        && path.ends_with(".md")
        && !linked.is_some_and(|text| anchors(text).contains(anchor));
    missing.then(|| format!("{path} has no heading #{anchor}"))
}

#[test]
fn links_lead_somewhere() {
    let mut found = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".md")) {
        let Some(text) = file.text() else { continue };
        for (number, line) in prose(text) {
            for target in targets(line) {
                if let Some(why) = complaint(&file.path, text, target) {
                    found.push(format!("{}:{number}: {target}: {why}", file.path));
                }
            }
        }
    }
    report("links in documents", &found);
}

#[test]
fn links_headings_and_paths_are_read() {
    let line = "see [a](b.md#c) and `[no](x)` and ![p](../d.png \"title\")";
    assert_eq!(targets(line), ["b.md#c", "../d.png"]);
    let text = "# Two Words\n```\n# none\n```\n## What it's (not)\n";
    let expected = ["two-words", "what-its-not"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
    assert_eq!(
        resolve("docs/a.md", "../b/./c.md").as_deref(),
        Some("b/c.md")
    );
    assert_eq!(resolve("a.md", "../b.md"), None);
}
