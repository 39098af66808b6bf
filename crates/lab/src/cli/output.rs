//! What commands write: results to standard output, the rest to standard error.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::error::LabError;

/// Writes to standard output. A reader that has gone away (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to standard error.
pub(crate) fn note(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"));
}

/// Writes JSON to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), LabError> {
    print(&json(value)?);
    Ok(())
}

/// As JSON for people and programs: indented, with an end of line.
pub(crate) fn json(value: &impl Serialize) -> Result<String, LabError> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| LabError::Trace(format!("cannot be written as JSON: {error}")))
}

/// Writes a file, all of it or nothing: beside it first, then renamed.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    let failed = |error| LabError::file(path, error);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}
