//! The lints that keep core crates pure. Clippy reads one file a crate, and a crate's own replaces
//! that of the workspace; so each core crate has the same one, written from `core-clippy.toml`.

use crate::metadata::packages;
use crate::{CORE, report, tree, update};

const TEXT: &str = include_str!("core-clippy.toml");

#[test]
fn core_crates_have_the_lints_of_the_core() {
    let mut found = Vec::new();
    for room in CORE {
        let path = format!("crates/{room}/clippy.toml");
        let there = std::fs::read_to_string(tree::root().join(&path));
        if there.is_ok_and(|there| there == TEXT) {
            continue;
        }
        if update() {
            std::fs::write(tree::root().join(&path), TEXT).expect("written");
        } else {
            found.push(format!(
                "{path}: UPDATE=1 cargo test -p fairlead-house walls"
            ));
        }
    }
    report(
        "core crates have the lints of tests/house/core-clippy.toml",
        &found,
    );
}

#[test]
fn every_package_takes_the_lints_of_the_workspace() {
    let manifests = tree::files()
        .iter()
        .filter(|file| file.ends_with("Cargo.toml"));
    let mut found = Vec::new();
    for file in manifests {
        let text = file.text().unwrap_or_default();
        let package = text.contains("[package]") && !text.contains("[workspace]");
        if package && !text.contains("[lints]\nworkspace = true\n") {
            found.push(format!("{}: write [lints] workspace = true", file.path));
        }
    }
    report("one set of lints", &found);
    assert!(packages().iter().any(|package| package.is_ours()));
}
