"""Converts lists and columns of numpy, pandas, polars and Arrow to the numpy arrays that the core
expects."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, Tuple

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError, LabError

__all__ = ["columns_of", "numbers", "numbers_or", "times_us", "understood"]


@contextmanager
def understood(values: Any, name: str, needed: str) -> Iterator[None]:
    """Whatever a library says of ``values`` from which it cannot make what is ``needed``, as an error
    of this package: which classes those are, nobody can list for all kinds of tables."""
    try:
        yield
    except (LabError, MemoryError):
        raise
    except Exception as error:
        kind = type(values).__name__
        raise ArgumentError(f"{name}: {needed} needed, not {kind} ({error})") from error


def _array(values: Any, name: str) -> npt.NDArray[Any]:
    """A one-dimensional numpy array, without a copy if possible."""
    with understood(values, name, "a column is"):
        array = _made(values, name)
    if array.ndim == 0:
        raise ArgumentError(f"{name}: a column is needed, not {type(values).__name__}")
    if array.ndim != 1:
        raise ArgumentError(f"{name}: one column is needed, not {array.ndim} dimensions")
    return array


def _made(values: Any, name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any]
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(values).sum())
        if masked:
            raise ArgumentError(f"{name}: {masked} values are missing; fill or drop them")
        array = values.data
    elif isinstance(values, np.ndarray):
        array = values
    elif hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        array = _of_arrow(values, name)
    elif hasattr(values, "to_numpy"):
        array = values.to_numpy()
    else:
        array = np.asarray(values)
        if array.dtype.kind == "f" and array.ndim == 1 and _are_whole(values):
            # Values both below and above 2⁶³: no integer type holds all, so numpy would round
            # them.
            array = np.array(values, object)
    if array.dtype.kind == "O" and array.ndim == 1:
        array = _objects(values, array, name)
    return array


def _are_whole(values: Any) -> bool:
    """True for integers of Python or numpy."""
    return all(isinstance(value, (int, np.integer)) for value in values)


def _of_arrow(values: Any, name: str) -> npt.NDArray[Any]:
    """What Arrow makes of ``values`` that can be handed to it, as an array of numpy."""
    import pyarrow

    column: Any
    try:
        if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
            column = values
        elif hasattr(values, "__arrow_c_stream__"):
            column = pyarrow.chunked_array(values)
        else:
            column = pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        # Objects of Python in a column of pandas for which Arrow has no type.
        return np.asarray(values)
    if getattr(values, "dtype", None) == object:
        return _of_objects(column, values, name)
    return _of_column(column, name)


def _of_column(column: Any, name: str) -> npt.NDArray[Any]:
    """An array or a chunked array of Arrow's without missing values, as an array of numpy."""
    import pyarrow

    if column.null_count:
        raise ArgumentError(f"{name}: {column.null_count} values are missing; fill or drop them")
    if isinstance(column.type, pyarrow.BaseExtensionType):
        # The stored numbers have another meaning, such as days or months of pandas' periods.
        raise ArgumentError(f"{name}: numbers, times or addresses are needed, not {column.type}")
    plain: npt.NDArray[Any] = column.to_numpy() if isinstance(column, pyarrow.ChunkedArray) else (
        column.to_numpy(zero_copy_only=False)
    )
    return plain


def _objects(values: Any, array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Python objects converted by Arrow: integers, times, times with a zone."""
    import pyarrow

    try:
        column = pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return array
    return _of_objects(column, array, name)


def _of_objects(column: Any, values: Any, name: str) -> npt.NDArray[Any]:
    """As :func:`_of_column`. Where some times have a zone, those without are of nobody knows which;
    Arrow takes UTC."""
    import pyarrow

    plain = _of_column(column, name)
    if pyarrow.types.is_timestamp(column.type):
        zoned = {getattr(value, "tzinfo", None) is not None for value in values}
        if len(zoned) > 1:
            raise ArgumentError(f"{name}: some times have a zone and some have none; give all one, or none")
    return plain


def numbers_or(values: Any, missing: int, kind: str, name: str) -> npt.NDArray[Any]:
    """As :func:`numbers`, with ``missing`` where a value is missing."""
    with understood(values, name, "a column is"):
        absent, known = _parted(values)
    if not absent.any():
        return numbers(values, kind, name)
    column = np.full(len(absent), missing, kind)
    column[~absent] = numbers(known, kind, name)
    return column


def _parted(values: Any) -> Tuple[npt.NDArray[Any], Any]:
    """Which values are missing, and those that are not."""
    if isinstance(values, np.ma.MaskedArray):
        absent = np.ma.getmaskarray(values)
        return absent, values.compressed()
    if hasattr(values, "isna"):
        absent = np.asarray(values.isna(), bool)
        return absent, values[~absent]
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        import pyarrow

        is_arrow = isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray))
        column = values if is_arrow else pyarrow.chunked_array(values)
        absent = np.asarray(column.is_null(nan_is_null=True).to_pylist(), bool)
        return absent, column.filter(pyarrow.array(~absent))
    array = values if isinstance(values, np.ndarray) else np.array(list(values), object)
    if array.dtype.kind == "O":
        # NaN differs from itself.
        absent = np.asarray([value is None or value != value for value in array], bool)
    else:
        absent = np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), bool)
    return absent, array[~absent]


def numbers(values: Any, kind: str, name: str) -> npt.NDArray[Any]:
    """``values`` as contiguous integers of numpy's ``kind``.

    A value that does not fit is an error: a wrong number in silence would be worse.
    """
    array = _array(values, name)
    wanted = np.dtype(kind)
    if array.dtype == wanted:
        return np.ascontiguousarray(array)
    if array.size == 0:
        return np.empty(0, wanted)
    whole = array.dtype.kind == "O" and _are_whole(array)
    if array.dtype.kind not in "iufb" and not whole:
        raise ArgumentError(f"{name}: whole numbers are needed, not {array.dtype}")
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array % 1 == 0).all()):
        raise ArgumentError(f"{name}: whole numbers are needed; some are missing or have a fraction")
    limits = np.iinfo(wanted)
    least, most = int(array.min()), int(array.max())
    if least < limits.min or most > limits.max:
        raise ArgumentError(
            f"{name}: values from {least} to {most} do not fit {wanted} ({limits.min} to {limits.max})"
        )
    return np.ascontiguousarray(array.astype(wanted))


def times_us(values: Any, name: str = "time_us") -> npt.NDArray[Any]:
    """Times as integer microseconds: numbers are kept, ``datetime64`` is converted."""
    array = _array(values, name)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise ArgumentError(f"{name}: some times are missing; fill or drop them")
        fine = array.astype("datetime64[us]")
        # Finer units cannot represent times beyond the range of microseconds.
        is_finer = np.datetime_data(array.dtype)[0] in ("ns", "ps", "fs", "as")
        if not is_finer and (fine.astype(array.dtype) != array).any():
            raise ArgumentError(f"{name}: some times are too far from 1970 for 64 bits of microseconds")
        array = fine.view("int64")
    return numbers(array, "int64", name)


def columns_of(frame: Any) -> Dict[str, Any]:
    """The columns of a supported table, by name."""
    with understood(frame, "table", "pandas, polars, Arrow or a dict of columns is"):
        return _columns_of(frame)


def _columns_of(frame: Any) -> Dict[str, Any]:
    if isinstance(frame, dict):
        return dict(frame)
    if hasattr(frame, "to_dict") and type(frame).__name__ == "Frame":
        columns: Dict[str, Any] = frame.to_dict()
        return columns
    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):
        # A lazy frame of polars.
        frame = frame.collect()
    names = getattr(frame, "column_names", None)
    if names is None:
        names = getattr(frame, "columns", None)
    if names is None and hasattr(frame, "__arrow_c_stream__"):
        import pyarrow

        frame = pyarrow.table(frame)
        names = frame.column_names
    if names is None:
        raise ArgumentError(
            f"a table is needed (pandas, polars, Arrow or a dict of columns), not {type(frame)}"
        )
    said = [str(name) for name in names]
    twice = sorted({name for name in said if said.count(name) > 1})
    if twice:
        raise ArgumentError(f"the table has several columns {', '.join(twice)}; which is meant?")
    return {str(name): frame[name] for name in names}
