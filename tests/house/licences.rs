//! Licences and sources of everything that becomes part of a build.

use crate::metadata::packages;
use crate::tree;
use crate::{report, spdx};

/// What may be linked. No copyleft.
const ALLOWED: [&str; 11] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "0BSD",
    "Unlicense",
    "CC0-1.0",
];

/// Packages with another licence that was looked at: name, expression, and why it is no harm.
const LOOKED_AT: [(&str, &str, &str); 0] = [];

const OURS: &str = "MIT OR Apache-2.0";

#[test]
fn licences_are_on_the_list() {
    let mut found = Vec::new();
    for package in packages() {
        let place = format!("{} {}", package.name, package.version);
        let Some(licence) = &package.licence else {
            found.push(format!("{place}: no licence is given"));
            continue;
        };
        if package.is_ours() {
            if licence != OURS {
                found.push(format!("{place}: {licence}; ours is {OURS}"));
            }
            continue;
        }
        let looked_at = LOOKED_AT
            .iter()
            .any(|(name, expression, _)| package.name == *name && licence == expression);
        match spdx::satisfied(licence, &ALLOWED) {
            Some(true) => {}
            _ if looked_at => {}
            Some(false) => found.push(format!("{place}: {licence} is not on the list")),
            None => found.push(format!("{place}: {licence:?} is no licence expression")),
        }
    }
    report(
        "licences of what is linked: tests/house/licences.rs",
        &found,
    );
}

#[test]
fn packages_come_from_the_registry() {
    let found: Vec<_> = packages()
        .iter()
        .filter_map(|package| Some((package, package.source.as_ref()?)))
        .filter(|(_, source)| !source.starts_with("registry+"))
        .map(|(package, source)| format!("{} comes from {source}", package.name))
        .collect();
    report(
        "packages come from the registry, none from a branch",
        &found,
    );
}

#[test]
fn our_own_licence_is_here() {
    for (path, words) in [
        ("LICENSE", "LICENSE-APACHE"),
        (
            "LICENSE-MIT",
            "Permission is hereby granted, free of charge",
        ),
        ("LICENSE-APACHE", "Version 2.0, January 2004"),
    ] {
        let text = tree::file(path)
            .and_then(|file| file.text())
            .unwrap_or_default();
        assert!(
            text.contains(words),
            "{path} is missing or not what it should be"
        );
    }
}
