//! Runs a plan: every configuration over every stream. Results are written as they finish; existing
//! ones are skipped.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fairlead_workload::Expansion;
use serde::{Deserialize, Serialize};

use crate::bounds::Wanted;
use crate::control::Control;
use crate::error::LabError;
use crate::fingerprint::{Fingerprint, Printer};
use crate::load::{Loader, Stream, StreamSpec, look_at};
use crate::plan::Plan;
use crate::run::{Finished, run_each};
use crate::spec::{RunResult, RunSpec};

/// The version of everything that decides a result. A task of another version is another task.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+8");

/// A finished task: stream, configuration and result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Fingerprint of stream, configuration and version.
    pub key: Fingerprint,
    /// Of the program.
    pub version: String,
    /// The trace's name.
    pub trace: String,
    /// True when nobody ever made these requests.
    pub synthetic: bool,
    /// Fingerprint of the stream's columns.
    pub stream: Fingerprint,
    /// How the stream was made: file, expansion, seed.
    pub made: StreamSpec,
    /// The configuration.
    #[serde(flatten)]
    pub run: RunSpec,
    /// What it counted.
    #[serde(flatten)]
    pub result: RunResult,
}

/// The key of a task.
pub fn task_key(stream: Fingerprint, run: &RunSpec, bounds: bool) -> Fingerprint {
    let mut printer = Printer::default();
    printer.json(&stream).json(run).json(&bounds);
    printer.bytes(VERSION.as_bytes()).finish()
}

/// How a sweep ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tasks that were there already.
    pub there: usize,
    /// Tasks finished now.
    pub finished: usize,
    /// All tasks of the plan.
    pub tasks: usize,
    /// True when it was stopped before the end.
    pub stopped: bool,
    /// Things to know before believing the numbers, with the trace's name.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Each note once: streams of one trace have them in common.
    fn note(&mut self, stream: &Stream) {
        for text in &stream.note.notes {
            let note = format!("{}: {text}", stream.note.trace);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A JSON object a line.
    Lines,
    /// Comma-separated values under a heading.
    Csv,
}

impl Layout {
    /// By the end of the file's name: CSV for `.csv`, else JSON lines.
    pub fn of(path: &Path) -> Self {
        let is_csv = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("csv"));
        if is_csv { Self::Csv } else { Self::Lines }
    }
}

/// A file of results that grows by whole lines.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    layout: Layout,
    keys: BTreeSet<Fingerprint>,
    /// Bytes of all complete lines.
    whole: u64,
}

impl Results {
    /// Opens a new or existing results file. An incomplete last line, left by a kill, is truncated.
    ///
    /// Locks the file until dropped: two sweeps writing at once would overwrite each other.
    ///
    /// # Errors
    /// When it cannot be opened, another sweep writes to it, or it holds something else.
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let failed = |error| LabError::file(path, error);
        let layout = Layout::of(path);
        // A pipe would be waited for, and /dev/full read without an end.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(LabError::Plan {
                place: path.display().to_string(),
                problem: "is not a regular file; a sweep reads its results again to resume: give \
                          --out a file name"
                    .to_owned(),
            });
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        // Some file systems have no locks.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(LabError::Plan {
                place: path.display().to_string(),
                problem: "another sweep is writing to it; wait until it is done, or give --out \
                          another name"
                    .to_owned(),
            });
        }
        let foreign = |line: u64| LabError::Plan {
            place: format!("{}: line {line}", path.display()),
            problem: "is not a sweep's results file; give --out a new name".to_owned(),
        };
        let mut keys = BTreeSet::new();
        let mut whole = 0u64;
        let mut line = Vec::new();
        let mut number = 0;
        let mut reader = BufReader::new(&file);
        loop {
            line.clear();
            let count = reader.read_until(b'\n', &mut line).map_err(failed)?;
            if count == 0 {
                break;
            }
            if !line.ends_with(b"\n") {
                // A kill leaves this in our own file; other files must not be truncated.
                if number == 0 && !begins_results(&line, layout) {
                    return Err(foreign(1));
                }
                break;
            }
            number += 1;
            whole += count as u64;
            let is_head = layout == Layout::Csv && number == 1;
            if is_head && line == csv_head().as_bytes() {
                continue;
            }
            let text = std::str::from_utf8(&line).ok().filter(|_| !is_head);
            let key = text.and_then(|text| key_of(text, layout));
            keys.insert(key.ok_or_else(|| foreign(number))?);
        }
        file.set_len(whole).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            layout,
            keys,
            whole,
        })
    }

    /// True when the task is there.
    pub fn has(&self, key: Fingerprint) -> bool {
        self.keys.contains(&key)
    }

    /// Appends a result as a complete line, or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, row: &Row) -> Result<(), LabError> {
        let mut text = String::new();
        match self.layout {
            Layout::Lines => {
                text = serde_json::to_string(row).map_err(|error| LabError::Plan {
                    place: self.path.display().to_string(),
                    problem: error.to_string(),
                })?;
                text.push('\n');
            }
            Layout::Csv => {
                if self.whole == 0 {
                    text = csv_head();
                }
                text += &csv_row(row);
            }
        }
        let written = self.file.write_all(text.as_bytes());
        if let Err(error) = written.and_then(|()| self.file.flush()) {
            // A resumed sweep appends after complete lines. A second failure is not reported.
            let _ = self.file.set_len(self.whole);
            let _ = self.file.seek(SeekFrom::Start(self.whole));
            return Err(LabError::file(&self.path, error));
        }
        self.whole += text.len() as u64;
        self.keys.insert(row.key);
        Ok(())
    }
}

/// True if a results file can start with `line`, given without its end.
fn begins_results(line: &[u8], layout: Layout) -> bool {
    const OBJECT: &[u8] = b"{\"key\":\"";
    match layout {
        Layout::Lines => OBJECT.starts_with(line) || line.starts_with(OBJECT),
        Layout::Csv => csv_head().as_bytes().starts_with(line),
    }
}

fn key_of(line: &str, layout: Layout) -> Option<Fingerprint> {
    #[derive(Deserialize)]
    struct Keyed {
        key: Fingerprint,
    }
    match layout {
        Layout::Lines => serde_json::from_str::<Keyed>(line).ok().map(|row| row.key),
        Layout::Csv => Fingerprint::parse(line.split(',').next()?),
    }
}

const CSV_COLUMNS: [&str; 29] = [
    "key",
    "version",
    "trace",
    "synthetic",
    "stream",
    "made",
    "stream_seed",
    "scheme",
    "capacity",
    "line",
    "ways",
    "index_bits",
    "threshold",
    "seed",
    "accesses",
    "misses",
    "miss_ratio",
    "cold_misses",
    "migrations",
    "second_lookup_hits",
    "bypasses",
    "evicted_on",
    "bound_compulsory",
    "bound_lru",
    "bound_min",
    "bound_set_min",
    "bound_greedy",
    "bound_lru_miss_ratio",
    "bound_min_miss_ratio",
];

fn csv_head() -> String {
    CSV_COLUMNS.join(",") + "\n"
}

fn csv_row(row: &Row) -> String {
    let Row { run, result, .. } = row;
    let bounds = result.bounds.as_ref();
    let bound = |value: Option<u64>| value.map(|count| count.to_string()).unwrap_or_default();
    let ratio = |value: Option<f64>| value.map(|share| share.to_string()).unwrap_or_default();
    let cells = [
        row.key.to_string(),
        row.version.clone(),
        row.trace.clone(),
        row.synthetic.to_string(),
        row.stream.to_string(),
        serde_json::to_string(&row.made).unwrap_or_default(),
        row.made.seed.to_string(),
        run.scheme.clone(),
        run.capacity.0.to_string(),
        run.line.0.to_string(),
        run.ways.to_string(),
        run.index_bits.clone().unwrap_or_default(),
        run.threshold.map(|at| at.to_string()).unwrap_or_default(),
        run.seed.to_string(),
        result.accesses.to_string(),
        result.misses.to_string(),
        result.miss_ratio.to_string(),
        result.cold_misses.to_string(),
        result.migrations.to_string(),
        result.second_lookup_hits.to_string(),
        result.bypasses.to_string(),
        result.evicted_on.to_string(),
        bound(bounds.map(|bounds| bounds.compulsory)),
        bound(bounds.map(|bounds| bounds.lru)),
        bound(bounds.map(|bounds| bounds.min)),
        bound(bounds.and_then(|bounds| bounds.set_min)),
        bound(bounds.and_then(|bounds| bounds.greedy)),
        ratio(bounds.map(|bounds| bounds.lru_miss_ratio)),
        ratio(bounds.map(|bounds| bounds.min_miss_ratio)),
    ];
    // One line per row, even if a file name contains line breaks.
    let in_line = cells.map(|cell| cell.replace('\n', "\\n").replace('\r', "\\r"));
    crate::table::csv_line(&in_line)
}

/// Ends a run when its results cannot be written, too.
struct WhileWritten<'a> {
    control: &'a dyn Control,
    error: RefCell<Option<LabError>>,
}

impl WhileWritten<'_> {
    fn failed(&self) -> bool {
        self.error.borrow().is_some()
    }
}

impl Control for WhileWritten<'_> {
    fn stopped(&self) -> bool {
        self.failed() || self.control.stopped()
    }

    fn begin(&self, what: &str, steps: u64) {
        self.control.begin(what, steps);
    }

    fn reached(&self, step: u64) {
        self.control.reached(step);
    }

    fn end(&self) {
        self.control.end();
    }
}

/// Runs what is missing from the results. A stop keeps finished results.
///
/// # Errors
/// A trace that cannot be read, results that cannot be written.
pub fn sweep(
    plan: &Plan,
    results: &mut Results,
    threads: usize,
    control: &dyn Control,
) -> Result<Outcome, LabError> {
    let mut outcome = Outcome {
        tasks: plan.tasks(),
        ..Outcome::default()
    };
    look_at_all(plan)?;
    let mut loader = Loader::default();
    for (number, made) in plan.streams.iter().enumerate() {
        let stream = match loader.stream(made, control) {
            Err(LabError::Stopped) => {
                outcome.stopped = true;
                return Ok(outcome);
            }
            other => other?,
        };
        stream.note.check_concurrency()?;
        outcome.note(&stream);
        let (keys, runs, there) = missing(plan, &stream, made, results);
        outcome.there += there;
        if runs.is_empty() {
            continue;
        }
        let (trace, all) = (&stream.note.trace, plan.streams.len());
        let what = format!("{trace} ({}/{all})", number + 1);
        let written = WhileWritten {
            control,
            error: RefCell::default(),
        };
        let ended = run_each(
            &stream,
            &runs,
            if plan.bounds {
                Wanted::All
            } else {
                Wanted::Nothing
            },
            threads,
            &what,
            &written,
            &mut |Finished { index, result }| {
                if written.failed() {
                    return;
                }
                let row = row(keys[index], &stream, made, &runs[index], result);
                match results.append(&row) {
                    Ok(()) => outcome.finished += 1,
                    Err(error) => *written.error.borrow_mut() = Some(error),
                }
            },
        );
        if let Some(error) = written.error.take() {
            return Err(error);
        }
        match ended {
            Err(LabError::Stopped) => {
                outcome.stopped = true;
                return Ok(outcome);
            }
            other => other?,
        }
    }
    Ok(outcome)
}

/// Checks that a trace can be read again, before opening it: opening a pipe without a writer would
/// block.
///
/// # Errors
/// It is not there, or no file.
pub fn check_file(path: &Path) -> Result<(), LabError> {
    let metadata = std::fs::metadata(path).map_err(|error| LabError::file(path, error))?;
    if metadata.is_file() {
        return Ok(());
    }
    Err(LabError::Trace(format!(
        "{}: a sweep reads its traces more than once, which is not possible for directories, pipes \
         and devices; name a file",
        path.display()
    )))
}

/// Checks all traces before the first run, because the last one may be reached only hours later.
fn look_at_all(plan: &Plan) -> Result<(), LabError> {
    let mut last = None;
    for made in &plan.streams {
        // Streams of the same file are consecutive.
        let mut looked = StreamSpec {
            seed: 0,
            ..made.clone()
        };
        let load = made.expansion.concurrent_sessions.map(|_| 1.0);
        looked.expansion = Expansion {
            concurrent_sessions: load,
            ..Expansion::default()
        };
        if last.as_ref() != Some(&looked) {
            looked.path.as_deref().map_or(Ok(()), check_file)?;
            look_at(&looked)?;
            last = Some(looked);
        }
    }
    Ok(())
}

/// The configurations that have no result yet, with their keys; how many have one.
fn missing(
    plan: &Plan,
    stream: &Stream,
    made: &StreamSpec,
    results: &Results,
) -> (Vec<Fingerprint>, Vec<RunSpec>, usize) {
    let asked = plan.runs_for(made);
    let all = asked.len();
    let (keys, runs): (Vec<Fingerprint>, Vec<RunSpec>) = asked
        .into_iter()
        .map(|run| (task_key(stream.note.stream, &run, plan.bounds), run))
        .filter(|(key, _)| !results.has(*key))
        .unzip();
    let there = all - runs.len();
    (keys, runs, there)
}

fn row(
    key: Fingerprint,
    stream: &Stream,
    made: &StreamSpec,
    run: &RunSpec,
    result: RunResult,
) -> Row {
    Row {
        key,
        version: VERSION.to_owned(),
        trace: stream.note.trace.clone(),
        synthetic: stream.note.synthetic,
        stream: stream.note.stream,
        made: made.clone(),
        run: run.clone(),
        result,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::control::Silent;

    #[test]
    fn only_a_sweeps_own_file_is_truncated() {
        let folder = std::env::temp_dir().join(format!("fairlead-begun-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text, is_begun) in [
            ("a.jsonl", &b"{\"key\":\"00ff"[..], true),
            ("a.jsonl", b"{\"k", true),
            ("a.jsonl", b"{\"mine\":1}", false),
            ("a.csv", b"key,version,tra", true),
            ("a.jsonl", b"{\"key\":\"00ff\",\"trace\":\"\xc3", true),
            ("a.csv", b"time_us,ip,port", false),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            let opened = Results::open(&path).map_err(|error| error.to_string());
            let left = std::fs::read(&path).unwrap();
            let shown = text.escape_ascii();
            match opened {
                Ok(_) => assert!(is_begun && left.is_empty(), "{shown}"),
                Err(problem) => {
                    assert!(!is_begun && left == text, "{shown}");
                    assert!(
                        problem.contains("line 1: is not a sweep's results file"),
                        "{problem}"
                    );
                }
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tables_of_others_are_left_as_they_are() {
        let folder = std::env::temp_dir().join(format!("fairlead-others-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = "0123456789abcdef0123456789abcdef";
        let ours = format!("{}{key},0.1\n", csv_head());
        for (name, text, foreign) in [
            ("a.csv", "1,2,3\n4,5,6\n".to_owned(), Some(1)),
            ("a.csv", format!("{key},1\n"), Some(1)),
            ("a.csv", ours.replace(key, "123"), Some(2)),
            (
                "a.csv",
                ours.replace(key, &format!("+{}", &key[1..])),
                Some(2),
            ),
            ("a.jsonl", "{\"key\":\"12\"}\n".to_owned(), Some(1)),
            ("a.csv", csv_head(), None),
            ("a.csv", ours.clone(), None),
            ("a.jsonl", format!("{{\"key\":\"{key}\"}}\n"), None),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, &text).unwrap();
            let problem = Results::open(&path).err().map(|error| error.to_string());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let said = foreign.map(|line| format!("line {line}: is not a sweep's results file"));
            match (problem, said) {
                (Some(problem), Some(said)) => assert!(problem.contains(&said), "{problem}"),
                (problem, said) => assert_eq!(problem, said, "{text}"),
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn two_sweeps_do_not_write_to_one_file() {
        let folder = std::env::temp_dir().join(format!("fairlead-sweeps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("results.jsonl");
        let first = Results::open(&path).unwrap();
        let refused = Results::open(&path).unwrap_err().to_string();
        assert!(refused.contains("another sweep is writing"), "{refused}");
        drop(first);
        assert!(Results::open(&path).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Sixty configurations over this trace, as a plan has it.
    fn planned(folder: &Path, trace: &str) -> Plan {
        std::fs::create_dir_all(folder).unwrap();
        let path = folder.join("plan.toml");
        let runs = "[[run]]\nscheme = [\"spec\", \"no-migrate\", \"tide\"]\nways = [2, 4, 8, 16]\n\
                    capacity = [\"8K\", \"16K\", \"32K\", \"64K\", \"128K\"]\n";
        std::fs::write(&path, format!("[[trace]]\n{trace}\n{runs}")).unwrap();
        Plan::read(&path).unwrap()
    }

    #[test]
    fn a_line_break_in_a_name_breaks_no_row() {
        let folder = std::env::temp_dir().join(format!("fairlead-broken-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a\r\nb.csv"), "time_us,ip,port\n1,::1,1\n").unwrap();
        let plan = planned(&folder, "path = \"a\\r\\nb.csv\"");
        let out = folder.join("rows.csv");
        let mut there = Vec::new();
        for _ in 0..2 {
            let mut results = Results::open(&out).unwrap();
            there.push(sweep(&plan, &mut results, 1, &Silent).unwrap().there);
        }
        assert_eq!(there, [0, plan.tasks()]);
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.contains(",a\\r\\nb.csv,"), "{text}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_more_is_computed_when_nothing_can_be_written() {
        struct Steps(Cell<u64>, Cell<u64>);
        impl Control for Steps {
            fn begin(&self, _: &str, steps: u64) {
                self.1.set(steps);
            }
            fn reached(&self, step: u64) {
                self.0.set(step);
            }
        }
        let folder = std::env::temp_dir().join(format!("fairlead-full-{}", std::process::id()));
        let plan = planned(&folder, "zipf = { ids = 1000, accesses = 300000 }");
        let path = Path::new("/dev/full");
        let mut results = Results {
            path: path.to_owned(),
            file: OpenOptions::new().write(true).open(path).unwrap(),
            layout: Layout::Csv,
            keys: BTreeSet::new(),
            whole: 0,
        };
        let steps = Steps(Cell::new(0), Cell::new(0));
        let failed = sweep(&plan, &mut results, 1, &steps)
            .unwrap_err()
            .to_string();
        assert!(failed.contains("/dev/full"), "{failed}");
        let (done, all) = (steps.0.get(), steps.1.get());
        assert!(done < all, "{done} of {all}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn both_formats_name_a_configuration_alike() {
        let run = RunSpec {
            index_bits: Some("16".to_owned()),
            threshold: Some(4),
            ..RunSpec::paper("spec")
        };
        let named = serde_json::to_value(&run).unwrap();
        let named = named.as_object().unwrap();
        assert!(named.len() > 6);
        for name in named.keys() {
            assert!(CSV_COLUMNS.contains(&name.as_str()), "{name}");
        }
    }
}
