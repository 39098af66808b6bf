//! Which files are read, and which of the paper's logs they are.

use std::path::{Path, PathBuf};

use fairlead_trace::Format;

use super::published;
use crate::content::Responses;
use crate::control::Control;
use crate::error::LabError;
use crate::load::{Loader, StreamSpec};
use crate::paper::Failure;

const BLOCK_ACCESSES: &str = "rows are accesses to disk blocks, not responses of a server";

/// A log that was read.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its file's name.
    pub name: String,
    /// Its responses.
    pub responses: Responses,
}

impl Log {
    /// The paper's log of which it is all or a part.
    pub fn paper_log(&self) -> Option<&'static str> {
        published::recognise(&self.name).map(|log| log.name)
    }
}

/// The files of a path: itself, or the regular files of a folder by name.
///
/// # Errors
/// When it cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, LabError> {
    let failed = |error| LabError::file(path, error);
    if !path.metadata().map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let is_text = file.extension().is_some_and(|extension| extension == "md");
        if file.is_file() && !is_text {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads all logs of these paths that have response sizes. The others are named with the reason.
///
/// # Errors
/// A path that does not exist; a stop; no log with sizes.
pub fn read(
    paths: &[PathBuf],
    max_bad: f64,
    control: &dyn Control,
) -> Result<(Vec<Log>, Vec<Failure>), LabError> {
    let (mut logs, mut left_out) = (Vec::new(), Vec::new());
    for path in paths {
        for file in files(path)? {
            let made = StreamSpec {
                max_bad,
                ..StreamSpec::file(&file)
            };
            let name = made.name();
            let read = Loader::with_unknown_clients()
                .log(&file, &made, control)
                .and_then(|log| match log.report.format {
                    Format::Vscsi => Err(LabError::Trace(BLOCK_ACCESSES.to_owned())),
                    _ => Responses::of(&log.requests, &name),
                });
            match read {
                Ok(responses) => logs.push(Log { name, responses }),
                Err(LabError::Stopped) => return Err(LabError::Stopped),
                Err(error) => {
                    let problem = error.to_string();
                    let named = format!("{name}: ");
                    left_out.push(Failure {
                        problem: problem.strip_prefix(&named).unwrap_or(&problem).to_owned(),
                        trace: name,
                    });
                }
            }
        }
    }
    if logs.is_empty() {
        let why: Vec<String> = left_out
            .iter()
            .map(|failure| format!("\n  {}: {}", failure.trace, failure.problem))
            .collect();
        let problem = format!("no log with response sizes{}", why.concat());
        return Err(LabError::option("PATH", "", problem));
    }
    Ok((logs, left_out))
}
