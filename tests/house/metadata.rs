//! What cargo knows of the packages.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::tree;

/// A package that is built for Linux, ours or another's.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// What a package asks for.
#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

impl Package {
    /// True for a package of this workspace.
    pub(crate) fn is_ours(&self) -> bool {
        self.source.is_none()
    }
}

/// All packages that can become part of a build for Linux, which is all that Fairlead runs on.
pub(crate) fn packages() -> &'static [Package] {
    static PACKAGES: OnceLock<Vec<Package>> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let ask = |offline: bool| {
            let mut command = Command::new(&cargo);
            command
                .args(["metadata", "--format-version", "1", "--all-features"])
                .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
                .current_dir(tree::root());
            if offline {
                command.arg("--offline");
            }
            command.output().expect("cargo can be run")
        };
        // What was built is there already; only a tree that was never built needs the network.
        let mut output = ask(true);
        if !output.status.success() {
            output = ask(false);
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata: {complaint}");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let list = metadata["packages"].as_array().expect("packages");
        list.iter().map(package).collect()
    })
}

fn package(value: &Value) -> Package {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let dependencies = value["dependencies"].as_array().expect("dependencies");
    Package {
        name: text("name").expect("a name"),
        version: text("version").expect("a version"),
        licence: text("license"),
        source: text("source"),
        description: text("description"),
        dependencies: dependencies
            .iter()
            .map(|one| Dependency {
                name: one["name"].as_str().expect("a name").to_owned(),
                kind: match one["kind"].as_str() {
                    None => Kind::Normal,
                    Some("dev") => Kind::Dev,
                    Some(_) => Kind::Build,
                },
            })
            .collect(),
    }
}
