//! A plan's runs as tasks that can be done anywhere: each says all that it needs, and its key
//! stands for the trace's content, the configuration and the version.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_lab::plan::Plan;
use fairlead_lab::sweep::{VERSION, check_file};
use fairlead_lab::{
    Control, Fingerprint, LabError, Loader, Printer, RunResult, RunSpec, Stream, StreamSpec, Wanted,
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::control::{finish, parsed, raised, written};
use crate::simulate::run_all;

/// One run, by itself.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// Stands for all of it.
    key: Fingerprint,
    /// Stands for the stream: equal for tasks over the same accesses.
    stream: Fingerprint,
    /// The file's content; nothing for synthetic streams.
    content: Option<Fingerprint>,
    made: StreamSpec,
    run: RunSpec,
    bounds: bool,
    /// What the plan's machine computes with; what computes must be the same.
    version: String,
}

/// A finished task.
#[derive(Debug, Serialize)]
struct Row<'a> {
    key: Fingerprint,
    version: &'static str,
    trace: &'a str,
    synthetic: bool,
    stream: Fingerprint,
    made: &'a StreamSpec,
    #[serde(flatten)]
    run: &'a RunSpec,
    #[serde(flatten)]
    result: &'a RunResult,
}

/// Stands for what is in a file.
fn content(path: &Path, control: &dyn Control) -> Result<Fingerprint, LabError> {
    let failed = |error| LabError::file(path, error);
    check_file(path)?;
    let file = File::open(path).map_err(failed)?;
    let print = Fingerprint::of_content(file, control).map_err(failed)?;
    print.ok_or(LabError::Stopped)
}

/// Stands for a stream, without making it: the recipe, with what is in the file in place of where
/// it is.
fn stream_print(made: &StreamSpec, content: Option<Fingerprint>) -> Fingerprint {
    let placeless = StreamSpec {
        path: None,
        ..made.deciding()
    };
    Printer::default()
        .json(&placeless)
        .json(&content)
        .bytes(VERSION.as_bytes())
        .finish()
}

fn tasks(path: &Path, control: &dyn Control) -> Result<Vec<Task>, LabError> {
    let plan = Plan::read(path)?;
    let mut tasks = Vec::with_capacity(plan.tasks());
    // What the plan names twice is run once: two names of a file, two files of one content, seeds
    // that draw nothing.
    let mut known = HashSet::new();
    // Streams of one file come one after the other.
    let mut last: Option<(PathBuf, Fingerprint)> = None;
    for made in &plan.streams {
        let mut made = made.clone();
        let mut content_print = None;
        if let Some(path) = &mut made.path {
            *path = std::path::absolute(&*path).map_err(|error| LabError::file(path, error))?;
            // A task is text, wherever it is done.
            if path.to_str().is_none() {
                let problem = "its name is not UTF-8: give it another, or a link with another";
                return Err(LabError::Trace(format!("{}: {problem}", path.display())));
            }
            let before = last.as_ref().filter(|(known, _)| known == path);
            let print = match before {
                Some((_, print)) => *print,
                None => content(path, control)?,
            };
            last = Some((path.clone(), print));
            content_print = Some(print);
        }
        let stream = stream_print(&made, content_print);
        for run in plan.runs_for(&made) {
            let key = fairlead_lab::sweep::task_key(stream, &run, plan.bounds);
            if !known.insert(key) {
                continue;
            }
            tasks.push(Task {
                key,
                stream,
                content: content_print,
                made: made.clone(),
                run,
                bounds: plan.bounds,
                version: VERSION.to_owned(),
            });
        }
    }
    Ok(tasks)
}

/// The runs that a plan stands for: key, stream and the task itself, each as text.
#[pyfunction]
pub(crate) fn plan_tasks(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(String, String, String)>> {
    let tasks = finish(py, None, move |control| tasks(&path, control))?;
    tasks
        .iter()
        .map(|task| {
            Ok((
                task.key.to_string(),
                task.stream.to_string(),
                written(py, task)?,
            ))
        })
        .collect()
}

/// The stream of a task, as [`plan_tasks`] calls it.
#[pyfunction]
pub(crate) fn stream_of_task(py: Python<'_>, task: &str) -> PyResult<String> {
    Ok(parsed::<Task>(py, "task", task)?.stream.to_string())
}

/// A stream that tasks are run over.
#[pyclass(frozen, name = "TaskStream")]
#[derive(Debug)]
pub(crate) struct PyTaskStream {
    stream: Arc<Stream>,
    print: Fingerprint,
}

#[pymethods]
impl PyTaskStream {
    /// Reads and expands what a task is over.
    #[staticmethod]
    fn of_task(py: Python<'_>, task: &str) -> PyResult<Self> {
        let task: Task = parsed(py, "task", task)?;
        if task.version != VERSION {
            let error = LabError::Plan {
                place: "task".to_owned(),
                problem: format!(
                    "it is of a sweep by fairlead-lab {}, and here is {VERSION}; install the same",
                    task.version
                ),
            };
            return Err(raised(py, &error));
        }
        let print = task.stream;
        let stream = finish(py, None, move |control| {
            if let (Some(path), Some(planned)) = (&task.made.path, task.content)
                && content(path, control)? != planned
            {
                return Err(LabError::Trace(format!(
                    "{}: not the file that the sweep was planned with; copy that one here",
                    path.display()
                )));
            }
            let stream = Loader::default().stream(&task.made, control)?;
            stream.note.check_concurrency()?;
            Ok(stream)
        })?;
        Ok(Self {
            stream: Arc::new(stream),
            print,
        })
    }

    /// Things to know before believing the numbers, with the trace's name.
    fn notes(&self) -> Vec<String> {
        let note = &self.stream.note;
        let named = note.notes.iter();
        named
            .map(|text| format!("{}: {text}", note.trace))
            .collect()
    }

    /// Runs tasks over this stream; gives rows as JSON, finished first. After Ctrl-C
    /// `Interrupted.finished` has those that are finished.
    #[pyo3(signature = (tasks, threads=0, progress=None))]
    fn run_tasks(
        &self,
        py: Python<'_>,
        tasks: Vec<String>,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<String>> {
        let mut parts = Vec::with_capacity(tasks.len());
        for text in &tasks {
            let task: Task = parsed(py, "task", text)?;
            if task.stream != self.print {
                let error =
                    LabError::option("task", task.key.to_string(), "is over another stream");
                return Err(raised(py, &error));
            }
            parts.push(task);
        }
        let specs: Vec<RunSpec> = parts.iter().map(|task| task.run.clone()).collect();
        let bounds = parts.iter().any(|task| task.bounds);
        let wanted = if bounds { Wanted::All } else { Wanted::Nothing };
        let note = &self.stream.note;
        run_all(
            py,
            &self.stream,
            specs,
            wanted,
            threads,
            progress,
            |index, result| {
                let task = &parts[index];
                let row = Row {
                    key: task.key,
                    version: VERSION,
                    trace: &note.trace,
                    synthetic: note.synthetic,
                    stream: note.stream,
                    made: &task.made,
                    run: &task.run,
                    result,
                };
                written(py, &row)
            },
        )
    }
}
