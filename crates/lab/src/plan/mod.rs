//! Plans of sweeps, in TOML.
//!
//! ```toml
//! name = "how large, how many ways"
//! seeds = [1, 2, 3]          # of the expansion and of the index functions
//! bounds = true              # fully associative LRU and MIN beside each result
//!
//! [[trace]]
//! path = "nasa.log.zst"      # relative to the plan
//! expansion = { concurrent_sessions = [2000, 4000] }
//!
//! [[trace]]
//! standard = { sessions = 4000, seconds = 60 }
//!
//! [[run]]
//! scheme = ["mod", "2-universal", "spec"]
//! capacity = ["16K", "32K", "64K"]
//! ways = [4, 8]
//! ```
//!
//! A list stands for a run with each of its values, in `[[trace]]` as in `[[run]]`; so do
//! `{ from = 1, to = 8, step = 1 }` and `{ from = 1, to = 8, times = 2 }`, with fractions, too.

mod place;
pub mod ranges;

use std::collections::HashSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::error::{LabError, in_words};
use crate::load::StreamSpec;
use crate::spec::RunSpec;
use place::{Place, line_of};

/// A plan, its ranges resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is called.
    pub name: String,
    /// Streams, each with its seed.
    pub streams: Vec<StreamSpec>,
    /// Configurations.
    pub runs: Vec<PlannedRun>,
    /// Whether bounds stand beside each result.
    pub bounds: bool,
}

/// A configuration of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedRun {
    /// What is run.
    pub spec: RunSpec,
    /// Whether its table gives it a seed; otherwise it takes each stream's.
    pub own_seed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    #[serde(default)]
    seeds: Option<Value>,
    #[serde(default)]
    bounds: bool,
    trace: Vec<Table>,
    run: Vec<Table>,
}

impl Plan {
    /// Reads a plan. `place` is its name in messages; paths in it are relative to `folder`.
    ///
    /// # Errors
    /// The problem, with line or table, and what to write.
    pub fn parse(text: &str, place: &str, folder: &Path) -> Result<Self, LabError> {
        let complain = |problem: String| LabError::Plan {
            place: place.to_owned(),
            problem,
        };
        let written: Written =
            toml::from_str(text).map_err(|error| complain(one_line(text, &error)))?;
        let seeds = match &written.seeds {
            None => vec![1],
            Some(value) => seeds(value).map_err(|problem| {
                let line = line_of(text, None, &["seeds"]);
                complain(format!("line {line}: {problem}"))
            })?,
        };
        let mut streams = Vec::new();
        for (at, table) in written.trace.iter().enumerate() {
            let list = "trace";
            let place = Place {
                text,
                file: place,
                list,
                at,
            };
            for mut spec in resolve::<StreamSpec>(table, &place)? {
                spec.resolve(folder);
                spec.check().map_err(|problem| place.complain(&problem))?;
                place.check(&spec)?;
                let own = table.contains_key("seed");
                let seeds = if own { vec![spec.seed] } else { seeds.clone() };
                for seed in seeds {
                    streams.push(StreamSpec {
                        seed,
                        ..spec.clone()
                    });
                }
            }
        }
        let streams = each_once(streams);
        let runs = runs(&written.run, text, place)?;
        if streams.is_empty() || runs.is_empty() {
            let problem = "a plan needs at least one [[trace]] and one [[run]]".to_owned();
            return Err(complain(problem));
        }
        Ok(Self {
            name: written.name.unwrap_or_else(|| place.to_owned()),
            streams,
            runs,
            bounds: written.bounds,
        })
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// As [`Plan::parse`], or when the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|error| LabError::file(path, error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &path.display().to_string(), folder)
    }

    /// The configurations to run over a stream, without duplicates: a seed equal to the stream's is
    /// the same as none.
    pub fn runs_for(&self, stream: &StreamSpec) -> Vec<RunSpec> {
        let runs = self.runs.iter().map(|run| RunSpec {
            seed: if run.own_seed {
                run.spec.seed
            } else {
                stream.seed
            },
            ..run.spec.clone()
        });
        each_once(runs.collect())
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        let runs = |stream| self.runs_for(stream).len();
        self.streams.iter().map(runs).sum()
    }
}

/// The configurations of a text that has nothing but `[[run]]`.
///
/// # Errors
/// As [`Plan::parse`].
pub fn runs_of(text: &str, place: &str) -> Result<Vec<RunSpec>, LabError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Runs {
        run: Vec<Table>,
    }
    let written: Runs = toml::from_str(text).map_err(|error| LabError::Plan {
        place: place.to_owned(),
        problem: one_line(text, &error),
    })?;
    let runs = runs(&written.run, text, place)?;
    Ok(runs.into_iter().map(|run| run.spec).collect())
}

fn runs(tables: &[Table], text: &str, file: &str) -> Result<Vec<PlannedRun>, LabError> {
    let mut runs = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let list = "run";
        let place = Place {
            text,
            file,
            list,
            at,
        };
        let specs = resolve::<RunSpec>(table, &place)?;
        for spec in &specs {
            crate::run::check(spec).map_err(|error| place.complain(&error.to_string()))?;
        }
        let own_seed = table.contains_key("seed");
        runs.extend(specs.into_iter().map(|spec| PlannedRun { spec, own_seed }));
    }
    Ok(each_once(runs))
}

/// Without those that are there before: tables may overlap, and rows of one run that is there twice
/// would be counted as two samples.
fn each_once<T: Serialize>(all: Vec<T>) -> Vec<T> {
    let mut met = HashSet::new();
    let new = |one: &T| serde_json::to_string(one).map_or(true, |text| met.insert(text));
    all.into_iter().filter(new).collect()
}

/// All values of a table with ranges.
fn resolve<T: DeserializeOwned>(table: &Table, place: &Place<'_>) -> Result<Vec<T>, LabError> {
    ranges::combinations(table, LISTS)
        .map_err(|problem| place.complain(&problem))?
        .into_iter()
        .map(|table| T::deserialize(Value::Table(table)).map_err(|error| place.wrong(&error)))
        .collect()
}

/// Keys with a list as value.
const LISTS: &[&str] = &[];

/// `5` means the seeds 1 to 5; a list or range means its values.
fn seeds(value: &Value) -> Result<Vec<u64>, String> {
    let problem = || {
        "seeds: write a number of seeds (5), the seeds ([1, 2, 3]), or their range \
         ({ from = 1, to = 8, step = 1 })"
            .to_owned()
    };
    let seed = |value: &Value| {
        value
            .as_integer()
            .and_then(|seed| u64::try_from(seed).ok())
            .ok_or_else(problem)
    };
    let seeds: Vec<u64> = match value {
        Value::Integer(count @ 1..=100_000) => (1..=*count as u64).collect(),
        Value::Array(values) if !values.is_empty() => {
            values.iter().map(seed).collect::<Result<_, _>>()?
        }
        Value::Table(table) => {
            let values = ranges::steps("seeds", table)?.ok_or_else(problem)?;
            values.iter().map(seed).collect::<Result<_, _>>()?
        }
        _ => return Err(problem()),
    };
    match given_twice(&seeds) {
        Some(seed) => Err(format!("seeds: duplicate {seed}")),
        None => Ok(seeds),
    }
}

/// A seed that is in the list more than once: its rows would be counted as two samples.
pub(crate) fn given_twice(seeds: &[u64]) -> Option<u64> {
    let mut met = HashSet::new();
    seeds.iter().copied().find(|seed| !met.insert(*seed))
}

/// An error of TOML with its line.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let mut message = in_words(error.message());
    match error.span() {
        Some(span) => {
            if message == "duplicate key" {
                message = format!("duplicate {}", &text[span.clone()]);
            }
            let before = &text[..span.start.min(text.len())];
            let line = before.matches('\n').count() + 1;
            match key_of(before) {
                Some(key) => format!("line {line}: {key}: {message}"),
                None => format!("line {line}: {message}"),
            }
        }
        None => message,
    }
}

/// The key of the value that starts after `before`, if it is on the same line.
fn key_of(before: &str) -> Option<&str> {
    let (_, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let (key, between) = line.split_once('=')?;
    between.trim().is_empty().then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_runs_are_run_once() {
        let text = "[[trace]]\nzipf = { ids = [10, 20] }\n[[trace]]\nzipf = { ids = 10 }\n\
                    [[run]]\nscheme = ['mod', 'spec', 'mod']\n\
                    [[run]]\nscheme = 'spec'\ncapacity = ['32K', '64K']\n";
        let plan = Plan::parse(text, "p", Path::new("")).unwrap();
        let runs: Vec<(&str, u64)> = plan
            .runs
            .iter()
            .map(|run| (run.spec.scheme.as_str(), run.spec.capacity.0))
            .collect();
        let small = 32 << 10;
        assert_eq!(runs, [("mod", small), ("spec", small), ("spec", 2 * small)]);
        assert_eq!((plan.streams.len(), plan.tasks()), (2, 6));
    }

    #[test]
    fn a_seed_of_one_run_is_that_runs_alone() {
        let text = "seeds = [1, 2]\n[[trace]]\nzipf = { ids = 10 }\n\
                    [[run]]\nscheme = 'spec'\nseed = [2, 7]\n\
                    [[run]]\nscheme = ['mod', 'spec']\n";
        let plan = Plan::parse(text, "p", Path::new("")).unwrap();
        let seeds = |stream: usize| -> Vec<(String, u64)> {
            let runs = plan.runs_for(&plan.streams[stream]);
            runs.into_iter().map(|run| (run.scheme, run.seed)).collect()
        };
        let named = |runs: &[(&str, u64)]| -> Vec<(String, u64)> {
            let owned = |(scheme, seed): &(&str, u64)| ((*scheme).to_owned(), *seed);
            runs.iter().map(owned).collect()
        };
        let first = [("spec", 2), ("spec", 7), ("mod", 1), ("spec", 1)];
        assert_eq!(seeds(0), named(&first));
        // Under the second seed the last is the first once more.
        assert_eq!(seeds(1), named(&[("spec", 2), ("spec", 7), ("mod", 2)]));
        assert_eq!(plan.tasks(), 7);
    }

    #[test]
    fn seeds_are_a_number_of_them_or_a_list_of_different_ones() {
        let read = |text: &str| seeds(&text.parse().unwrap());
        assert_eq!(read("3").unwrap(), [1, 2, 3]);
        assert_eq!(read("[7, 5]").unwrap(), [7, 5]);
        assert_eq!(read("{ from = 2, to = 8, step = 3 }").unwrap(), [2, 5, 8]);
        assert_eq!(
            read("{ from = 1, to = 8, times = 2 }").unwrap(),
            [1, 2, 4, 8]
        );
        assert!(read("[7, 5, 7]").unwrap_err().contains("duplicate 7"));
        for bad in [
            "0",
            "[]",
            "[-1]",
            "\"5\"",
            "1000000",
            "{ from = 1 }",
            "{ from = -1, to = 1, step = 1 }",
        ] {
            assert!(
                read(bad).unwrap_err().contains("a number of seeds"),
                "{bad}"
            );
        }
    }
}
