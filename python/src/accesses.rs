//! What a cache of connection state sees, for Python: a stream that is ready to simulate.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use fairlead_base::{Address, Endpoint};
use fairlead_lab::load::{CountedOnce, Provenance, ReadNote, accessed, in_order};
use fairlead_lab::notes::{expansion_notes, lost_in_oracle_general, reading_notes};
use fairlead_lab::{Fingerprint, LabError, Loader, Stream, StreamSpec};
use fairlead_trace::{Accesses, Report};
use fairlead_workload::{Expanded, Expansion};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::attend::attend;
use crate::column::Column;
use crate::control::{finish, parsed, written};
use crate::errors::Class;
use crate::requests::{PyRequests, Reading, addresses, check_times, report_dict};

/// Accesses by time, column by column.
#[pyclass(frozen, name = "Accesses")]
#[derive(Debug)]
pub(crate) struct PyAccesses {
    pub(crate) stream: Arc<Stream>,
}

/// What accesses are called that were in no file.
const OF_A_TABLE: &str = "a table";

/// What is known of accesses beside themselves.
#[derive(Default)]
struct Known {
    name: String,
    warm_up: usize,
    report: Option<Report>,
    expanded: Option<Expanded>,
    notes: Vec<String>,
    made: StreamSpec,
}

impl PyAccesses {
    fn new(accesses: Accesses, known: Known) -> Self {
        let ticks = accesses.ticks(u64::from(known.made.tick_ms) * 1_000);
        let Accesses {
            time_us,
            id,
            keys,
            hint,
        } = accesses;
        let note = Provenance {
            trace: known.name,
            synthetic: false,
            stream: Fingerprint::of_stream(&id, &ticks, &hint, &keys, known.warm_up),
            accesses: id.len() as u64,
            warm_up: known.warm_up as u64,
            sessions: accessed(&id, keys.len()),
            span_s: time_us.last().map_or(0.0, |last| *last as f64 / 1e6),
            made: known.made,
            read: known.report.as_ref().map(ReadNote::new),
            expanded: known.expanded,
            notes: known.notes,
        };
        let stream = Stream {
            ids: id,
            ticks,
            time_us,
            hints: hint,
            keys,
            counted_from: known.warm_up,
            note,
            report: known.report,
            counted_once: CountedOnce::default(),
        };
        Self {
            stream: Arc::new(stream),
        }
    }

    /// As the writers of files take them.
    fn accesses(&self) -> Accesses {
        Accesses {
            time_us: self.stream.time_us.clone(),
            id: self.stream.ids.clone(),
            keys: self.stream.keys.clone(),
            hint: self.stream.hints.clone(),
        }
    }
}

#[pymethods]
impl PyAccesses {
    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, format=None, max_bad=0.01, progress=None, sort=false))]
    fn read(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        max_bad: f64,
        progress: Option<Py<PyAny>>,
        sort: bool,
    ) -> PyResult<Self> {
        let made = StreamSpec {
            format: format.map(str::to_owned),
            max_bad,
            sort,
            ..StreamSpec::file(&path)
        };
        let reading = Reading::new(py, path, format, max_bad)?;
        reading.read(py, progress, move |source, options| {
            let read = fairlead_trace::read_accesses(source, options);
            let (accesses, report) = read.map_err(|error| error.to_string())?;
            in_order(&made, &report).map_err(|error| error.to_string())?;
            let known = Known {
                name: made.name(),
                notes: reading_notes(&report),
                report: Some(report),
                made,
                ..Known::default()
            };
            Ok(Self::new(accesses, known))
        })
    }

    /// Makes the stream of a recipe (JSON, as `[[trace]]` of a plan): a file expanded, the standard
    /// workload, Zipf's law.
    #[staticmethod]
    #[pyo3(signature = (recipe, progress=None))]
    fn of_recipe(py: Python<'_>, recipe: &str, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let made: StreamSpec = parsed(py, "recipe", recipe)?;
        let stream = finish(py, progress, move |control| {
            Loader::with_times().stream(&made, control)
        })?;
        Ok(Self {
            stream: Arc::new(stream),
        })
    }

    /// Accesses out of requests; `expansion` is JSON.
    #[staticmethod]
    fn expand(
        py: Python<'_>,
        requests: &PyRequests,
        expansion: &str,
        seed: u64,
        tick_ms: u32,
    ) -> PyResult<Self> {
        let expansion: Expansion = parsed(py, "expansion", expansion)?;
        if tick_ms == 0 {
            return Err(Class::Argument.error(py, "tick_ms 0: write 1 or more (the paper's: 250)"));
        }
        let source = Arc::clone(&requests.inner);
        let report = requests.report.clone();
        finish(py, None, move |_| {
            let mut expanded = fairlead_workload::expand(&source, &expansion, seed)
                .map_err(|error| LabError::option("expand", "", error.to_string()))?;
            let accesses = std::mem::take(&mut expanded.accesses);
            let mut notes = report.as_ref().map(reading_notes).unwrap_or_default();
            notes.extend(expansion_notes(&expansion, &expanded));
            let made = StreamSpec {
                expansion,
                seed,
                tick_ms,
                ..StreamSpec::default()
            };
            let known = Known {
                name: report
                    .as_ref()
                    .map_or_else(|| OF_A_TABLE.to_owned(), |report| report.name.clone()),
                warm_up: expanded.warm_up_rows,
                report,
                expanded: Some(expanded),
                notes,
                made,
            };
            Ok(Self::new(accesses, known))
        })
    }

    /// From columns, sorted by time here; `key_address` has 16 bytes a session.
    #[staticmethod]
    fn from_columns(
        py: Python<'_>,
        time_us: PyReadonlyArray1<'_, i64>,
        id: PyReadonlyArray1<'_, u32>,
        key_address: PyReadonlyArray1<'_, u8>,
        key_port: PyReadonlyArray1<'_, u16>,
        hint: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<Self> {
        let ports = key_port.as_slice()?;
        let keys: Vec<Endpoint> = addresses(key_address.as_slice()?)
            .zip(ports)
            .map(|(addr, port)| Endpoint { addr, port: *port })
            .collect();
        let times = time_us.as_slice()?;
        let mut accesses = Accesses {
            time_us: Vec::new(),
            id: id.as_slice()?.to_vec(),
            hint: hint.as_slice()?.to_vec(),
            keys,
        };
        let rows = times.len();
        let hints = accesses.hint.len();
        if accesses.id.len() != rows || (hints != rows && hints != 0) {
            return Err(Class::Argument.error(py, "columns of different lengths"));
        }
        let known = accesses.keys.len();
        if ports.len() != known || accesses.id.iter().any(|id| *id as usize >= known) {
            return Err(Class::Argument.error(py, "id: a number without a session identifier"));
        }
        check_times(py, times)?;
        accesses.set_times(times.to_vec());
        let known = Known {
            name: OF_A_TABLE.to_owned(),
            ..Known::default()
        };
        Ok(Self::new(accesses, known))
    }

    /// A column by its name.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let stream = &self.stream;
        let address = |key: &Endpoint| -> [u8; 16] {
            let Address(octets) = key.addr;
            octets
        };
        Ok(match name {
            "time_us" => Column::part(stream, |stream| &stream.time_us),
            "tick" => Column::part(stream, |stream| &stream.ticks),
            "id" => Column::part(stream, |stream| &stream.ids),
            "hint" => Column::part(stream, |stream| &stream.hints),
            "key_address" => Column::of(stream.keys.iter().flat_map(address).collect::<Vec<u8>>()),
            "key_port" => Column::of(stream.keys.iter().map(|key| key.port).collect()),
            _ => return Err(Class::Argument.error(py, format!("no column {name}"))),
        })
    }

    /// What a format does not hold of these accesses.
    fn losses(&self, format: &str) -> Vec<String> {
        match format {
            "oracleGeneral" => lost_in_oracle_general(&self.accesses()),
            _ => Vec::new(),
        }
    }

    /// Writes a file: `lab` or `oracleGeneral`.
    fn write(&self, py: Python<'_>, path: PathBuf, format: &str) -> PyResult<()> {
        let write: fn(&Accesses, File) -> std::io::Result<()> = match format {
            "lab" => |accesses, out| fairlead_trace::format::lab::write(accesses, out),
            "oracleGeneral" => {
                |accesses, out| fairlead_trace::format::oracle_general::write(accesses, 0, out)
            }
            _ => {
                let message = format!("format {format}: write lab or oracleGeneral");
                return Err(Class::Argument.error(py, message));
            }
        };
        let accesses = self.accesses();
        // `write_whole` names the file, which has another name while it is written.
        let written = attend(py, None, move |_| {
            File::create(&path).and_then(|out| write(&accesses, out))
        })?;
        Ok(written.finished(py)??)
    }

    /// What reading came to; `None` for accesses that were not read.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let report = self.stream.report.as_ref();
        report.map(|report| report_dict(py, report)).transpose()
    }

    /// Where the stream comes from and what it is, as JSON.
    fn provenance(&self, py: Python<'_>) -> PyResult<String> {
        written(py, &self.stream.note)
    }

    /// Sessions that are accessed.
    #[getter]
    fn sessions(&self) -> u64 {
        self.stream.note.sessions
    }

    /// Accesses at the beginning that warm the cache and count for nothing.
    #[getter]
    fn warm_up(&self) -> usize {
        self.stream.counted_from
    }

    fn __len__(&self) -> usize {
        self.stream.ids.len()
    }
}
