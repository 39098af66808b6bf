//! The examples and the reference of the configuration file, held to the loader.

use std::path::{Path, PathBuf};

use fairlead::config::{Described, load, parse, schema};
use fairlead_splice::backends::policy::REGISTRY;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn reference() -> String {
    std::fs::read_to_string(root().join("docs/configuration.md")).unwrap()
}

/// The examples of the reference, each with the number of its first line.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        match (inside, line) {
            (false, "```toml") => {
                inside = true;
                blocks.push((index + 2, String::new()));
            }
            (true, "```") => inside = false,
            (true, line) => {
                let (_, block) = blocks.last_mut().unwrap();
                *block += line;
                block.push('\n');
            }
            (false, _) => {}
        }
    }
    blocks
}

/// The tables that an example lacks to be a whole file.
fn completed(block: &str) -> String {
    let mut text = block.to_owned();
    if !block.contains("[network]") {
        text += "[network]\nsnat = \"100.64.0.0/24\"\n";
    }
    if !block.contains("[[service]]") {
        text += "[[service]]\nname = \"web\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"http\"\n\
                 [[service.route]]\npool = \"pages\"\n";
    }
    if !block.contains("[[pool]]") {
        text += "[[pool]]\nname = \"pages\"\nserver = [{ address = \"10.2.0.9:80\" }]\n";
    }
    text
}

#[test]
fn every_example_file_loads_without_a_warning() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let loaded = load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loaded.warnings.warnings(), 0, "{}", loaded.warnings);
            seen.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    seen.sort();
    assert!(
        ["edge.toml", "tls-sni.toml", "transparent.toml"]
            .iter()
            .all(|name| seen.iter().any(|found| found == name))
    );
}

#[test]
fn the_readme_shows_a_whole_file() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = blocks(&text);
    assert_eq!(blocks.len(), 1, "one configuration");
    let loaded = parse(&blocks[0].1, "README.md").unwrap_or_else(|report| panic!("{report}"));
    assert!(
        loaded.warnings.diagnostics().is_empty(),
        "{}",
        loaded.warnings
    );
}

#[test]
fn every_example_of_the_reference_loads() {
    let text = reference();
    let blocks = blocks(&text);
    assert!(blocks.len() >= 8, "{} examples", blocks.len());
    for (line, block) in blocks {
        let name = format!("docs/configuration.md from line {line}");
        let loaded = parse(&completed(&block), &name).unwrap_or_else(|report| panic!("{report}"));
        let warnings = loaded.warnings.to_string();
        let odd = warnings
            .lines()
            .any(|line| line.contains("warning:") && !line.contains("default route"));
        assert!(!odd, "{warnings}");
    }
}

const REFERENCE: &str = "docs/configuration.md";

/// The tables of the reference: below which heading, with which header, and their rows.
fn tables() -> Vec<(String, &'static str, Vec<String>)> {
    let of_keys = |keys: &[Described]| -> Vec<String> {
        let row =
            |key: &Described| format!("| `{}` | {} | {} |", key.name, key.default, key.meaning);
        keys.iter().map(row).collect()
    };
    let header = "| key | default | meaning |";
    let mut tables: Vec<_> = schema::TABLES
        .into_iter()
        .filter(|table| table.title.starts_with('['))
        .map(|table| {
            let mut keys = table.described().to_vec();
            // They have a table of their own.
            let conditions: Vec<_> = schema::conditions().iter().map(|one| one.name).collect();
            keys.retain(|key| {
                table.title != "[[service.route]]" || !conditions.contains(&key.name)
            });
            (format!("## `{}`", table.title), header, of_keys(&keys))
        })
        .collect();
    tables.push((
        "### Conditions".to_owned(),
        "| key | services | matches |",
        of_keys(&schema::conditions()),
    ));
    let policies = REGISTRY.iter();
    let policies = policies.map(|one| format!("| `{}` | {} |", one.name, one.chooses));
    tables.push((
        "### Balance policies".to_owned(),
        "| `balance` | chooses |",
        policies.collect(),
    ));
    tables
}

/// The reference with its tables as they are declared.
fn generated(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (heading, header, rows) in tables() {
        let section = lines.iter().position(|line| line.starts_with(&heading));
        let section = section.unwrap_or_else(|| panic!("{REFERENCE} has no section {heading}"));
        let table = lines[section..].iter().position(|line| line == header);
        let table = table.unwrap_or_else(|| panic!("{REFERENCE}: no {header} below {heading}"));
        let first = section + table + 2;
        let end = lines[first..]
            .iter()
            .position(|line| !line.starts_with('|'));
        let end = end.map_or(lines.len(), |end| first + end);
        lines.splice(first..end, rows);
    }
    lines.join("\n") + "\n"
}

#[test]
fn tables_of_the_reference_are_those_that_are_declared() {
    let text = reference();
    let expected = generated(&text);
    if text == expected {
        return;
    }
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(root().join(REFERENCE), expected).unwrap();
        return;
    }
    panic!(
        "{REFERENCE} is not up to date: UPDATE=1 cargo test -p fairlead --test config documents"
    );
}

#[test]
fn the_reference_shows_every_key_in_an_example() {
    let text = reference();
    let examples: String = blocks(&text).into_iter().map(|(_, block)| block).collect();
    for table in schema::TABLES {
        for key in table.keys() {
            let shown = examples.lines().any(|line| {
                let line = line.trim_start_matches(['{', ' ', '[', '#']);
                line.starts_with(&format!("{key} =")) || line.starts_with(&format!("{key}]"))
            });
            let inline = examples.contains(&format!("{{ {key} ="))
                || examples.contains(&format!(", {key} ="))
                || examples.contains(&format!(".{key}]]"));
            assert!(shown || inline, "{key} of {} is in no example", table.title);
        }
    }
}

#[test]
fn the_defaults_in_the_reference_are_the_loaders() {
    // Writing a default out changes nothing.
    let frame = completed("");
    let plain = parse(&frame, "frame").unwrap().settings;
    let mut written_out = 0;
    for (table, place) in [
        (&schema::INSTANCE, "[network]\n"),
        (&schema::NETWORK, "[network]\n"),
        (&schema::FASTPATH, "[network]\n"),
        (&schema::LIMITS, "[network]\n"),
        (&schema::SERVICE, "protocol = \"http\"\n"),
        (&schema::ROUTE, "[[service.route]]\n"),
        (&schema::POOL, "[[pool]]\nname = \"pages\"\n"),
    ] {
        for key in table.described() {
            // These take another key besides, or a default in words.
            let beside = ["hash", "tcb_cache_lines"].contains(&key.name);
            let value = key.default.split('`').nth(1);
            let Some(value) = value.filter(|_| key.default.starts_with('`') && !beside) else {
                continue;
            };
            let line = format!("{} = {value}\n", key.name);
            let with = match place {
                "[network]\n" if table.title != "[network]" => {
                    format!("{}\n{line}{place}", table.title)
                }
                place => format!("{place}{line}"),
            };
            let full = frame.replacen(place, &with, 1);
            let full = parse(&full, key.name).unwrap_or_else(|report| panic!("{report}"));
            assert_eq!(
                format!("{:?}", full.settings),
                format!("{plain:?}"),
                "{line}"
            );
            written_out += 1;
        }
    }
    assert!(written_out > 20, "{written_out}");
}
