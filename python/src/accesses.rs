//! What a cache of connection state sees, for Python.

use std::fs::File;
use std::sync::Arc;

use fairlead_base::{Address, Endpoint};
use fairlead_trace::{Accesses, Report};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::attend::attend;
use crate::column::Column;
use crate::errors::Class;
use crate::requests::{Reading, addresses, report_dict};

/// Accesses by time, column by column.
#[pyclass(frozen, name = "Accesses")]
#[derive(Debug)]
pub(crate) struct PyAccesses {
    pub(crate) inner: Arc<Accesses>,
    report: Option<Report>,
}

impl From<Accesses> for PyAccesses {
    fn from(accesses: Accesses) -> Self {
        Self {
            inner: Arc::new(accesses),
            report: None,
        }
    }
}

#[pymethods]
impl PyAccesses {
    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, format=None, max_bad=0.01, progress=None))]
    fn read(
        py: Python<'_>,
        path: String,
        format: Option<&str>,
        max_bad: f64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let reading = Reading::new(py, path, format, max_bad)?;
        let (accesses, report) = reading.read(py, progress, fairlead_trace::read_accesses)?;
        Ok(Self {
            inner: Arc::new(accesses),
            report: Some(report),
        })
    }

    /// From columns, sorted by time here; `key_address` has 16 bytes a session.
    #[staticmethod]
    #[pyo3(signature = (time_us, id, key_address, key_port, hint))]
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
        accesses.set_times(times);
        Ok(accesses.into())
    }

    /// A column by its name.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let inner = &self.inner;
        let address = |key: &Endpoint| -> [u8; 16] {
            let Address(octets) = key.addr;
            octets
        };
        Ok(match name {
            "time_us" => Column::part(inner, |accesses| &accesses.time_us),
            "id" => Column::part(inner, |accesses| &accesses.id),
            "hint" => Column::part(inner, |accesses| &accesses.hint),
            "key_address" => Column::of(inner.keys.iter().flat_map(address).collect::<Vec<u8>>()),
            "key_port" => Column::of(inner.keys.iter().map(|key| key.port).collect()),
            _ => return Err(Class::Argument.error(py, format!("no column {name}"))),
        })
    }

    /// Writes a file: `lab` or `oracleGeneral`.
    fn write(&self, py: Python<'_>, path: String, format: &str) -> PyResult<()> {
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
        let inner = &self.inner;
        let written = attend(py, None, |_| {
            File::create(&path).and_then(|out| write(inner, out))
        })?;
        let fault = |error| Class::Trace.error(py, format!("{path}: {error}"));
        written.finished()?.map_err(fault)
    }

    /// What reading came to; `None` for accesses that were not read.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.report
            .as_ref()
            .map(|report| report_dict(py, report))
            .transpose()
    }

    /// Distinct sessions.
    #[getter]
    fn sessions(&self) -> usize {
        self.inner.keys.len()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}
