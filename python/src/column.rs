//! Columns that numpy sees without a copy.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a column's values are, in numpy's words.
pub(crate) trait Value: Copy + Send + Sync + 'static {
    /// numpy's type string for it.
    const TYPE: &'static str;
}

impl Value for u8 {
    const TYPE: &'static str = "|u1";
}
impl Value for u16 {
    const TYPE: &'static str = "<u2";
}
impl Value for u32 {
    const TYPE: &'static str = "<u4";
}
impl Value for u64 {
    const TYPE: &'static str = "<u8";
}
impl Value for i64 {
    const TYPE: &'static str = "<i8";
}
impl Value for f64 {
    const TYPE: &'static str = "<f8";
}

/// A column of numbers that stays where it is: `numpy.asarray` makes a read-only view of it, which
/// keeps it alive.
#[pyclass(frozen)]
pub(crate) struct Column {
    /// Whose memory it is. What an `Arc` holds does not move, and nobody can change it.
    _owner: Arc<dyn Any + Send + Sync>,
    address: usize,
    length: usize,
    value: &'static str,
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({} × {})", self.length, self.value)
    }
}

impl Column {
    /// A column that is a part of `owner`.
    pub(crate) fn part<O, T>(owner: &Arc<O>, part: impl FnOnce(&O) -> &[T]) -> Self
    where
        O: Any + Send + Sync,
        T: Value,
    {
        let values = part(owner);
        Self {
            address: values.as_ptr() as usize,
            length: values.len(),
            value: T::TYPE,
            _owner: Arc::clone(owner) as Arc<dyn Any + Send + Sync>,
        }
    }

    /// A column of its own.
    pub(crate) fn of<T: Value>(values: Vec<T>) -> Self {
        Self::part(&Arc::new(values), Vec::as_slice)
    }
}

#[pymethods]
impl Column {
    /// numpy's protocol: where the values are and what they are.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.length,))?;
        interface.set_item("typestr", self.value)?;
        // True: read-only.
        interface.set_item("data", (self.address, true))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}
