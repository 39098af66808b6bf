//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// One file.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with `/` between.
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    /// Its text; `None` for a binary file.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes)
            .ok()
            .filter(|text| !text.contains('\0'))
    }

    pub(crate) fn ends_with(&self, end: &str) -> bool {
        self.path.ends_with(end)
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.ancestors().nth(2).expect("tests/house lies two below");
        root.to_owned()
    })
}

/// Everything that is committed, or would be if the tree is no checkout: all files but those of
/// builds.
pub(crate) fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut paths = tracked().unwrap_or_else(|| {
            let mut paths = Vec::new();
            walk(root(), &mut paths);
            paths
        });
        paths.sort();
        let read = |path: String| {
            // A file that is being moved is listed, but not there.
            let bytes = std::fs::read(root().join(&path)).ok()?;
            Some(File { path, bytes })
        };
        let files: Vec<File> = paths.into_iter().filter_map(read).collect();
        assert!(files.len() > 50, "only {} files were found", files.len());
        files
    })
}

fn tracked() -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(folder: &Path, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || matches!(name.as_str(), "target" | "artifacts") {
            continue;
        }
        if path.is_dir() {
            walk(&path, paths);
        } else if let Ok(path) = path.strip_prefix(root()) {
            paths.push(path.to_string_lossy().into_owned());
        }
    }
}

/// The file of this path.
pub(crate) fn file(path: &str) -> Option<&'static File> {
    files().iter().find(|file| file.path == path)
}

/// All Rust files. One that is no text is `words.rs`'s to complain of.
pub(crate) fn rust() -> impl Iterator<Item = (&'static File, &'static str)> {
    files()
        .iter()
        .filter(|file| file.ends_with(".rs"))
        .filter_map(|file| Some((file, file.text()?)))
}
