//! `make install` and `make uninstall`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn make(folder: &Path, target: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("make")
        .arg("--no-print-directory")
        .arg(target)
        .arg(format!("DESTDIR={}", folder.display()))
        .arg("PREFIX=/opt/edge")
        .arg(format!("PROGRAM={}", env!("CARGO_BIN_EXE_fairlead")))
        .current_dir(root)
        // Of the make that runs the tests.
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The files below a folder, by their paths from there.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => todo.push(path),
                false => {
                    found.insert(path.strip_prefix(folder).unwrap().to_owned());
                }
            }
        }
    }
    found
}

/// A run without a network leaves a lock and folders there, but no lists.
#[test]
fn an_ordinary_user_s_setup_asks_for_lists_of_packages_until_it_has_them() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("setup");
    let _ = std::fs::remove_dir_all(&folder);
    let lists = folder.join(".deps/lists");
    let programs = folder.join("programs");
    for needed in ["partial", "auxfiles"].map(|name| lists.join(name)) {
        std::fs::create_dir_all(needed).unwrap();
    }
    std::fs::write(lists.join("lock"), "").unwrap();
    std::fs::create_dir_all(folder.join("scripts")).unwrap();
    std::fs::create_dir(&programs).unwrap();
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
    std::fs::copy(setup, folder.join("scripts/setup")).unwrap();
    // A machine on which a compiler is missing, and a user who is not root.
    for (name, does) in [
        ("id", "echo 1000"),
        ("apt-get", "echo \"$@\" >>asked"),
        ("apt-cache", ""),
    ] {
        let program = programs.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
    }
    for name in ["dirname", "grep", "ls", "mkdir", "rm", "sort"] {
        std::os::unix::fs::symlink(Path::new("/bin").join(name), programs.join(name)).unwrap();
    }
    let asks = || {
        let _ = std::fs::remove_file(folder.join("asked"));
        let mut command = Command::new("/bin/bash");
        command.args(["scripts/setup", "lab"]).current_dir(&folder);
        let output = command.env("PATH", &programs).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("missing: cc"), "{told}");
        let asked = std::fs::read_to_string(folder.join("asked")).unwrap_or_default();
        asked.lines().any(|line| line.contains(" update "))
    };
    assert!(asks());
    std::fs::write(lists.join("deb.example_dists_stable_main_Packages"), "").unwrap();
    assert!(!asks());
}

#[test]
fn what_is_installed_works_and_goes_again() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install here");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    make(&folder, "install");
    let prefix = folder.join("opt/edge");
    let found = files(&prefix);
    for wanted in [
        "bin/fairlead",
        "lib/systemd/system/fairlead.service",
        "share/bash-completion/completions/fairlead",
        "share/zsh/site-functions/_fairlead",
        "share/fish/vendor_completions.d/fairlead.fish",
        "share/man/man1/fairlead.1",
        "share/man/man1/fairlead-serve.1",
        "share/man/man1/fairlead-lab-sweep.1",
        "share/doc/fairlead/edge.toml",
        "share/doc/fairlead/alerts.yml",
        "share/doc/fairlead/grafana.json",
    ] {
        assert!(found.contains(Path::new(wanted)), "{wanted}: {found:?}");
    }
    let read = |name: &str| std::fs::read_to_string(prefix.join(name)).unwrap();
    let unit = read("lib/systemd/system/fairlead.service");
    assert!(
        unit.contains("\nExecStart=/opt/edge/bin/fairlead serve "),
        "{unit}"
    );
    assert!(!unit.contains("/usr/local"), "{unit}");
    assert!(read("share/man/man1/fairlead-serve.1").contains("Exit codes:"));
    assert!(read("share/zsh/site-functions/_fairlead").starts_with("#compdef fairlead"));

    let edge = prefix.join("share/doc/fairlead/edge.toml");
    let checked = Command::new(prefix.join("bin/fairlead"))
        .args(["check", "-c"])
        .arg(edge)
        .output();
    assert!(checked.unwrap().status.success());
    // What bash completes `fairlead re` to.
    let script = "source \"$1\"; COMP_WORDS=(fairlead re); COMP_CWORD=1; \
                  _fairlead fairlead re fairlead; echo \"${COMPREPLY[@]}\"";
    let completed = Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(prefix.join("share/bash-completion/completions/fairlead"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(completed.stdout).unwrap(),
        "reload replay\n"
    );

    make(&folder, "uninstall");
    assert_eq!(files(&folder), BTreeSet::new());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let slip = Command::new(script)
        .arg("uninstal")
        .env("DESTDIR", &folder)
        .env("PREFIX", "/opt/edge")
        .env("PROGRAM", env!("CARGO_BIN_EXE_fairlead"))
        .status();
    assert_eq!(slip.unwrap().code(), Some(2));
    assert_eq!(files(&folder), BTreeSet::new());
    std::fs::remove_dir_all(&folder).unwrap();
}
