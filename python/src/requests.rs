//! What a log has, for Python.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use fairlead_base::Address;
use fairlead_lab::load::is_folder;
use fairlead_trace::{Client, Format, Origin, ReadOptions, Report, Requests, Source, TIME_MAX_US};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::attend::{Watch, attend};
use crate::column::Column;
use crate::errors::Class;

/// Requests of a log, column by column.
#[pyclass(frozen, name = "Requests")]
#[derive(Debug)]
pub(crate) struct PyRequests {
    pub(crate) inner: Arc<Requests>,
    pub(crate) report: Option<Report>,
}

/// What reading is asked to do.
#[derive(Debug)]
pub(crate) struct Reading {
    path: PathBuf,
    format: Option<Format>,
    max_bad: f64,
}

impl Reading {
    pub(crate) fn new(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        max_bad: f64,
    ) -> PyResult<Self> {
        if !(0.0..=1.0).contains(&max_bad) {
            let message = format!("max_bad {max_bad}: write a share from 0 to 1");
            return Err(Class::Argument.error(py, message));
        }
        let parsed = format.map(Format::from_str).transpose();
        let format =
            parsed.map_err(|error| Class::Argument.error(py, format!("format: {error}")))?;
        Ok(Self {
            path,
            format,
            max_bad,
        })
    }

    /// Opens and reads; progress is in bytes of the file, and Ctrl-C ends it.
    pub(crate) fn read<T: Send + 'static>(
        self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        read: impl FnOnce(Source, ReadOptions<'_>) -> Result<T, String> + Send + 'static,
    ) -> PyResult<T> {
        // Told to stop, reading ends with an error of its own, but Ctrl-C is what is raised.
        let read = attend(py, progress, move |watch| self.open(watch, read))?.finished(py)?;
        read.map_err(|message| Class::Trace.error(py, message))
    }

    fn open<T>(
        &self,
        watch: &Watch,
        read: impl FnOnce(Source, ReadOptions<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let fault = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let file = File::open(&self.path).map_err(fault)?;
        let metadata = file.metadata().map_err(fault)?;
        if metadata.is_dir() {
            return Err(is_folder(&self.path).to_string());
        }
        let length = metadata.len();
        let source = fairlead_trace::open(self.path.display().to_string(), file)
            .map_err(|error| error.to_string())?;
        let mut turn = |taken: u64| {
            watch.at(taken, length);
            if watch.stopped() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let options = ReadOptions {
            format: self.format.clone(),
            max_bad: self.max_bad,
            progress: Some(&mut turn),
            ..ReadOptions::default()
        };
        read(source, options)
    }
}

/// What reading came to, as a dictionary.
pub(crate) fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &report.name)?;
    dict.set_item("format", report.format.name())?;
    dict.set_item("rows", report.rows)?;
    dict.set_item("bytes", report.bytes)?;
    dict.set_item("stepped_back", report.stepped_back)?;
    let bad = PyDict::new(py);
    for (reason, count) in &report.bad {
        bad.set_item(reason.to_string(), *count)?;
    }
    dict.set_item("bad", bad)?;
    let passed = PyDict::new(py);
    for (what, count) in &report.passed {
        passed.set_item(what.to_string(), *count)?;
    }
    dict.set_item("passed", passed)?;
    let first = report
        .first_bad
        .map(|(row, reason)| (row, reason.to_string()));
    dict.set_item("first_bad", first)?;
    Ok(dict)
}

/// Are these times that rows may have?
pub(crate) fn check_times(py: Python<'_>, times: &[i64]) -> PyResult<()> {
    let most = TIME_MAX_US.unsigned_abs();
    match times.iter().find(|time| time.unsigned_abs() > most) {
        Some(time) => {
            let message = format!("time_us {time}: write microseconds from -{most} to {most}");
            Err(Class::Argument.error(py, message))
        }
        None => Ok(()),
    }
}

/// Addresses, 16 bytes each.
pub(crate) fn addresses(bytes: &[u8]) -> impl Iterator<Item = Address> {
    bytes.chunks_exact(16).map(|chunk| {
        let mut octets = [0; 16];
        octets.copy_from_slice(chunk);
        Address::v6(octets)
    })
}

#[pymethods]
impl PyRequests {
    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, format=None, max_bad=0.01, progress=None))]
    fn read(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        max_bad: f64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let reading = Reading::new(py, path, format, max_bad)?;
        let (requests, report) = reading.read(py, progress, |source, options| {
            fairlead_trace::read_requests(source, options).map_err(|error| error.to_string())
        })?;
        Ok(Self {
            inner: Arc::new(requests),
            report: Some(report),
        })
    }

    /// From columns; `client_address` has 16 bytes a client.
    #[staticmethod]
    #[pyo3(signature = (time_us, client, client_address, port, bytes, object, status))]
    #[expect(clippy::too_many_arguments, reason = "a column each")]
    fn from_columns(
        py: Python<'_>,
        time_us: PyReadonlyArray1<'_, i64>,
        client: PyReadonlyArray1<'_, u32>,
        client_address: PyReadonlyArray1<'_, u8>,
        port: PyReadonlyArray1<'_, u16>,
        bytes: PyReadonlyArray1<'_, u64>,
        object: PyReadonlyArray1<'_, u64>,
        status: PyReadonlyArray1<'_, u16>,
    ) -> PyResult<Self> {
        let clients: Vec<_> = addresses(client_address.as_slice()?)
            .map(|address| Client {
                address,
                named: false,
            })
            .collect();
        let requests = Requests {
            origin: Origin::Unix,
            time_us: time_us.as_slice()?.to_vec(),
            client: client.as_slice()?.to_vec(),
            clients,
            port: port.as_slice()?.to_vec(),
            bytes: bytes.as_slice()?.to_vec(),
            object: object.as_slice()?.to_vec(),
            status: status.as_slice()?.to_vec(),
        };
        let rows = requests.len();
        let lengths = [
            requests.client.len(),
            requests.port.len(),
            requests.bytes.len(),
            requests.object.len(),
            requests.status.len(),
        ];
        if lengths.iter().any(|length| *length != rows) {
            return Err(Class::Argument.error(py, "columns of different lengths"));
        }
        check_times(py, &requests.time_us)?;
        let known = requests.clients.len();
        if requests
            .client
            .iter()
            .any(|client| *client as usize >= known)
        {
            return Err(Class::Argument.error(py, "client: a number without an address"));
        }
        Ok(Self {
            inner: Arc::new(requests),
            report: None,
        })
    }

    /// A column by its name.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let inner = &self.inner;
        Ok(match name {
            "time_us" => Column::part(inner, |requests| &requests.time_us),
            "client" => Column::part(inner, |requests| &requests.client),
            "port" => Column::part(inner, |requests| &requests.port),
            "bytes" => Column::part(inner, |requests| &requests.bytes),
            "object" => Column::part(inner, |requests| &requests.object),
            "status" => Column::part(inner, |requests| &requests.status),
            "client_address" => Column::of(
                inner
                    .clients
                    .iter()
                    .flat_map(|client| client.address.0)
                    .collect::<Vec<u8>>(),
            ),
            "client_named" => Column::of(
                inner
                    .clients
                    .iter()
                    .map(|client| u8::from(client.named))
                    .collect(),
            ),
            _ => return Err(Class::Argument.error(py, format!("no column {name}"))),
        })
    }

    /// What reading came to; `None` for requests that were not read.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.report
            .as_ref()
            .map(|report| report_dict(py, report))
            .transpose()
    }

    /// True when times count from 1970.
    #[getter]
    fn since_1970(&self) -> bool {
        self.inner.origin == Origin::Unix
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}
