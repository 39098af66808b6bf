//! Which traces are at hand, and which of the paper's they are.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::published;
use crate::error::LabError;
use crate::load::StreamSpec;
use crate::table::visible_name;

/// A file recognized by its name.
struct Known {
    /// Prefix of its name.
    begins: &'static str,
    /// The paper's trace of which it is all or a part.
    paper_trace: Option<&'static str>,
    /// What it is.
    what: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        begins: "NASA_access_log_Jul95",
        paper_trace: Some("NASA"),
        what: "July 1995, the archive's file",
    },
    Known {
        begins: "NASA_access_log_Aug95",
        paper_trace: Some("NASA"),
        what: "August 1995, the archive's file",
    },
    Known {
        begins: "nasa-1995-07-09",
        paper_trace: Some("NASA"),
        what: "one day, 9 July 1995, of the paper's NASA log",
    },
    Known {
        begins: "nasa",
        paper_trace: Some("NASA"),
        what: "a part of the paper's NASA log",
    },
    Known {
        begins: "clarknet_access_log_",
        paper_trace: Some("ClarkNet"),
        what: "one week, one of the archive's two files",
    },
    Known {
        begins: "clarknet_access_log",
        paper_trace: Some("ClarkNet"),
        what: "the archive's two files, of a week each, as one",
    },
    Known {
        begins: "UofS_access_log",
        paper_trace: Some("Saskatchewan"),
        what: "the archive's file",
    },
    Known {
        begins: "usask_access_log",
        paper_trace: Some("Saskatchewan"),
        what: "the archive's file",
    },
    Known {
        begins: "epa-http",
        paper_trace: None,
        what: "EPA-HTTP, 30 August 1995; not a trace of the paper",
    },
    Known {
        begins: "sdsc-http",
        paper_trace: None,
        what: "SDSC-HTTP, 22 August 1995; not a trace of the paper",
    },
    Known {
        begins: "airisdata-blog",
        paper_trace: None,
        what: "a blog of 2016; not a trace of the paper",
    },
    Known {
        begins: "almhuette-2015",
        paper_trace: None,
        what: "a guest house's site, 2015 and 2016; not a trace of the paper",
    },
];

/// A trace that the figures are run over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Given {
    /// What it is called in tables.
    pub name: String,
    /// The paper's trace of which it is all or a part.
    pub paper_trace: Option<&'static str>,
    /// True for synthetic workloads.
    pub synthetic: bool,
    /// What it is, in a line.
    pub what: String,
    /// Its recipe.
    pub made: StreamSpec,
    /// TCB(Mod)'s published miss ratio, to which the concurrency is fitted; without one the
    /// concurrency is what the caller says.
    pub fitted_to: Option<f64>,
}

fn published_mod(trace: &str) -> Option<f64> {
    let row = published::FIGURE_12.iter().find(|row| row.trace == trace);
    row.map(|row| row.miss_ratios[0])
}

/// Recognises a file by its name.
pub fn recognise(path: &Path, seed: u64) -> Option<Given> {
    let name = visible_name(&path.file_name()?.to_string_lossy());
    let known = KNOWN.iter().find(|known| name.starts_with(known.begins))?;
    Some(Given {
        name,
        paper_trace: known.paper_trace,
        synthetic: false,
        what: known.what.to_owned(),
        made: StreamSpec {
            seed,
            ..StreamSpec::file(path)
        },
        fitted_to: known.paper_trace.and_then(published_mod),
    })
}

/// A file that is not recognised: not a trace of the paper.
pub fn unknown(path: &Path, seed: u64) -> Given {
    let made = StreamSpec {
        seed,
        ..StreamSpec::file(path)
    };
    Given {
        name: made.name(),
        paper_trace: None,
        synthetic: false,
        what: "not a trace of the paper".to_owned(),
        made,
        fitted_to: None,
    }
}

/// All files of a folder that are recognised, by name.
///
/// # Errors
/// When the folder cannot be read.
pub fn in_folder(folder: &Path, seed: u64) -> Result<Vec<Given>, LabError> {
    let failed = |error| LabError::file(folder, error);
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    Ok(paths
        .iter()
        .filter(|path| path.is_file())
        .filter_map(|path| recognise(path, seed))
        .collect())
}

/// Each file once, and traces of one name in different folders by their paths: in tables and
/// figures the name is all that tells them apart.
pub(super) fn told_apart(mut given: Vec<Given>) -> Vec<Given> {
    let mut met = HashSet::new();
    given.retain(|one| match &one.made.path {
        Some(path) => met.insert(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())),
        None => true,
    });
    let names: Vec<String> = given.iter().map(|one| one.name.clone()).collect();
    for one in &mut given {
        if names.iter().filter(|name| **name == one.name).count() > 1
            && let Some(path) = &one.made.path
        {
            one.name = visible_name(&path.display().to_string());
        }
    }
    given
}

/// The standard workload, its sessions fitted to TCB(Mod) of one of the paper's traces. It has
/// nothing else of that trace, and no table calls it by its name.
pub fn stand_in(paper_trace: &'static str, seconds: f64, seed: u64) -> Given {
    let standard = fairlead_workload::Standard {
        seconds,
        ..fairlead_workload::Standard::default()
    };
    let target = published_mod(paper_trace);
    Given {
        name: format!(
            "synthetic, fitted to a TCB(Mod) of {:.0} %",
            target.unwrap_or(0.0) * 100.0
        ),
        paper_trace: None,
        synthetic: true,
        what: format!(
            "the standard workload, only its number of sessions fitted, to {paper_trace}'s \
             TCB(Mod); shares nothing else with that trace"
        ),
        made: StreamSpec::standard(standard, seed),
        fitted_to: target,
    }
}

/// The paper's traces missing from `given`, each with the files needed.
pub fn absent(given: &[Given]) -> Vec<String> {
    published::TRACES
        .iter()
        .filter(|trace| given.iter().all(|one| one.paper_trace != Some(trace.name)))
        .map(|trace| {
            let lines = if trace.published_lines > 0 {
                format!(", {} lines", crate::table::grouped(trace.published_lines))
            } else {
                String::new()
            };
            format!("{} is missing ({}{lines})", trace.name, trace.files)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        let day = recognise(Path::new("x/nasa-1995-07-09.log.zst"), 1).unwrap();
        assert_eq!((day.paper_trace, day.fitted_to), (Some("NASA"), Some(0.50)));
        assert!(day.what.contains("one day"));
        let epa = recognise(Path::new("epa-http.log.zst"), 1).unwrap();
        assert_eq!((epa.paper_trace, epa.fitted_to), (None, None));
        let what = |name: &str| recognise(Path::new(name), 1).unwrap().what;
        assert!(what("clarknet_access_log_Aug28.gz").contains("one week"));
        assert!(what("clarknet_access_log.gz").contains("as one"));
        assert!(recognise(Path::new("other.log"), 1).is_none());
        assert_eq!(absent(&[day, epa]).len(), 3);
    }

    #[test]
    fn traces_of_one_name_are_told_apart_and_a_file_twice_is_one() {
        let paths = ["a/access.log", "b/access.log", "b/access.log", "c.log"];
        let mut given: Vec<Given> = paths.map(|path| unknown(Path::new(path), 1)).to_vec();
        given.push(stand_in(published::TRACES[0].name, 10.0, 1));
        let last = given[4].name.clone();
        let apart = told_apart(given);
        let names: Vec<&str> = apart.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            ["a/access.log", "b/access.log", "c.log", last.as_str()]
        );
    }

    #[test]
    fn a_stand_in_never_has_the_name_of_a_trace() {
        for trace in published::TRACES {
            let given = stand_in(trace.name, 10.0, 1);
            assert!(given.synthetic && given.paper_trace.is_none());
            assert!(!given.name.contains(trace.name));
        }
    }
}
