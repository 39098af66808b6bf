//! The examples and the reference of the configuration file, held to the loader.

use std::path::{Path, PathBuf};

use fairlead::config::{load, parse, schema};

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
    if !block.contains("[fastpath]") {
        text += "[fastpath]\nsnat = \"100.64.0.0/24\"\n";
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
            // The one without a default route says so on purpose.
            let expected = usize::from(path.ends_with("tls-sni.toml"));
            assert_eq!(
                loaded.warnings.diagnostics().len(),
                expected,
                "{}",
                loaded.warnings
            );
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

#[test]
fn the_reference_describes_every_key_and_shows_it_in_an_example() {
    let text = reference();
    let examples: String = blocks(&text).into_iter().map(|(_, block)| block).collect();
    for table in schema::TABLES {
        for key in table.keys {
            let described = text.contains(&format!("`{key}`"))
                || text.contains(&format!("[{key}]"))
                || text.contains(&format!("[service.{key}]"))
                || text.contains(&format!("{{ {key} ="));
            assert!(described, "{key} of {} is not described", table.title);
            let shown = examples.lines().any(|line| {
                let line = line.trim_start_matches(['{', ' ', '[']);
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
    let text = reference();
    // Writing a default out changes nothing.
    let row = |key: &str| {
        let start = format!("| `{key}` | `");
        let line = text
            .lines()
            .find(|line| line.starts_with(&start))
            .expect(key);
        line[start.len()..].split('`').next().unwrap().to_owned()
    };
    let written = |table: &str, keys: &[&str]| {
        let lines: Vec<_> = keys
            .iter()
            .map(|key| format!("{key} = {}", row(key)))
            .collect();
        format!("{table}\n{}\n", lines.join("\n"))
    };
    let frame = completed("");
    let plain = parse(&frame, "frame").unwrap().settings;
    let instance = written(
        "[instance]",
        &["log_connections", "drain_timeout", "probe_interval"],
    );
    let limits = written(
        "[limits]",
        &[
            "connections",
            "setups",
            "half_read_heads",
            "half_read_heads_per_client",
            "buffered_bytes",
        ],
    );
    let fastpath = written("[fastpath]", &["mode", "device", "mtu"]);
    let service = written(
        "protocol = \"http\"",
        &[
            "source",
            "unmatched",
            "head_limit",
            "head_timeout",
            "idle_timeout",
            "half_closed_timeout",
            "time_wait",
        ],
    );
    let route = written("pool = \"pages\"", &["treatment", "retries"]);
    let pool = written("name = \"pages\"", &["balance", "connect_timeout"]);
    let full = frame
        .replace("[fastpath]\n", &format!("{instance}{limits}{fastpath}"))
        .replace("protocol = \"http\"\n", &service)
        .replace("pool = \"pages\"\n", &route)
        .replace("name = \"pages\"\n", &pool);
    let full = parse(&full, "full")
        .unwrap_or_else(|report| panic!("{report}"))
        .settings;
    assert_eq!(format!("{full:?}"), format!("{plain:?}"));
}
