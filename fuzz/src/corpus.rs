//! Inputs as files: one folder for each target.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of this package's inputs, `fuzz/corpus`.
pub fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Where inputs are written that broke a promise, `fuzz/artifacts`.
pub fn artifacts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts")
}

/// A name for an input, from its bytes (FNV-1a).
pub fn name(bytes: &[u8]) -> String {
    format!("{:016x}", fingerprint(bytes))
}

/// 64 bits that stand for these bytes; also a seed for choices that must not take input of their
/// own.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// All files of a folder, the small ones first; none when there is no such folder.
///
/// # Errors
/// When the folder or a file in it cannot be read.
pub fn load(folder: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut inputs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            let bytes = fs::read(&path)?;
            inputs.push((path, bytes));
        }
    }
    inputs.sort_by(|(one, a), (other, b)| (a.len(), one).cmp(&(b.len(), other)));
    Ok(inputs)
}

/// Writes an input into a folder, which is made if need be; gives its path.
///
/// # Errors
/// When it cannot be written.
pub fn store(folder: &Path, prefix: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{prefix}{}.bin", name(bytes)));
    fs::write(&path, bytes)?;
    Ok(path)
}
