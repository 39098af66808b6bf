//! `make install` and `make uninstall`.

use std::collections::BTreeSet;
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
    std::fs::remove_dir_all(&folder).unwrap();
}
