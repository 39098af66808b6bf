"""Input: requests of a log, and the accesses that a cache of connection state sees."""

from __future__ import annotations

import ipaddress
import json
import os
import pathlib
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple, Union, overload

import numpy as np
import numpy.typing as npt

from . import _core
from .arrays import columns_of, numbers, numbers_or, times_us, understood
from .errors import ArgumentError
from .files import write_whole
from .frame import Frame
from .given import path_of, share, teller, text_of, yes_or_no
from .terminal import Progress

__all__ = ["Accesses", "Requests", "read_accesses", "read_requests"]

Path = Union[str, "os.PathLike[str]"]
Tell = Optional[Callable[[int, int], None]]

#: In ``Requests.bytes``: the log does not say.
BYTES_UNKNOWN = 2**64 - 1


class _Columns:
    """Columns of the core as read-only numpy arrays, and tables made from them."""

    _core: Any

    def __len__(self) -> int:
        return len(self._core)

    def to_frame(self) -> Frame:
        """The columns as a table; clients and sessions as numbers."""
        return Frame({name: getattr(self, name) for name in self._shown()})

    def _shown(self) -> List[str]:
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        # Nobody can change it.
        return self

    def __reduce__(self) -> Any:
        kind = type(self).__name__
        raise ArgumentError(
            f"{kind} cannot be pickled: make them in each process, from the same file or seed "
            "(forked ones have them already)"
        )

    @property
    def report(self) -> Optional[Dict[str, Any]]:
        """Report of reading: rows, and unreadable rows by reason."""
        report: Optional[Dict[str, Any]] = self._core.report
        return report

    def to_arrow(self) -> Any:
        """As a ``pyarrow.Table``, without a copy."""
        return self.to_frame().to_arrow()

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``."""
        return self.to_frame().to_pandas()

    def to_polars(self) -> Any:
        """As a ``polars.DataFrame``."""
        return self.to_frame().to_polars()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_frame().__arrow_c_stream__(requested_schema)


class _Column:
    """A column of the core by its name, read-only; ``wide`` values a row."""

    def __init__(self, name: str, said: str, wide: int = 1) -> None:
        self.name, self.wide, self.__doc__ = name, wide, said

    @overload
    def __get__(self, stream: None, owner: Any = None) -> _Column: ...
    @overload
    def __get__(self, stream: _Columns, owner: Any = None) -> npt.NDArray[Any]: ...
    def __get__(
        self, stream: Optional[_Columns], owner: Any = None
    ) -> Union[_Column, npt.NDArray[Any]]:
        if stream is None:
            return self
        column = np.asarray(stream._core.column(self.name))
        return column if self.wide == 1 else column.reshape(-1, self.wide)

    def __set__(self, stream: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} is what the core has; it cannot be set")


#: What columns of addresses are.
_OCTETS = "Addresses by number, 16 bytes each; IPv4 as ``::ffff:a.b.c.d``."


class Requests(_Columns):
    """Requests of a log, in its order; columns are read-only numpy arrays without a copy.

    ``time_us`` (since 1970, or since the log's own beginning), ``client`` (a number), ``port`` (0
    where the log has none), ``bytes`` (2⁶⁴ − 1 where unknown), ``object`` (a hash of its name),
    ``status``. ``client_address`` has a row of 16 bytes for each client.
    """

    def __init__(self, core: _core.Requests) -> None:
        self._core = core

    @classmethod
    def from_columns(
        cls,
        time_us: Any,
        ip: Any,
        port: Any = None,
        bytes: Any = None,
        object: Any = None,
        status: Any = None,
    ) -> Requests:
        """From columns of any supported kind: ``ip`` are addresses as text or as IPv4 numbers. A
        missing value in ``bytes`` is an unknown size."""
        times = times_us(time_us)
        client, addresses = _addresses(ip)
        _same_length(time_us=times, ip=client)

        def column(values: Any, kind: str, name: str, default: int) -> npt.NDArray[Any]:
            if values is None:
                return np.full(len(times), default, kind)
            return numbers(values, kind, name)

        if bytes is not None:
            bytes = numbers_or(values=bytes, missing=BYTES_UNKNOWN, kind="uint64", name="bytes")

        return cls(
            _core.Requests.from_columns(
                times,
                client,
                addresses.reshape(-1),
                column(port, "uint16", "port", 0),
                column(bytes, "uint64", "bytes", BYTES_UNKNOWN),
                column(object, "uint64", "object", 0),
                column(status, "uint16", "status", 0),
            )
        )

    @classmethod
    def from_table(cls, table: Any) -> Requests:
        """From a table (pandas, polars, Arrow, a dict) with columns ``time_us`` and ``ip``, and if
        it has them ``port bytes object status``."""
        columns = columns_of(table)
        _needed(columns, "time_us", "ip")
        known = {"time_us", "ip", "port", "bytes", "object", "status"}
        return cls.from_columns(**{name: columns[name] for name in columns if name in known})

    time_us = _Column("time_us", "Microseconds.")
    client = _Column("client", "Number of the client.")
    port = _Column("port", "The client's port; 0 where the log has none.")
    bytes = _Column("bytes", "Bytes of the response; 2⁶⁴ − 1 where the log does not say.")
    object = _Column("object", "A stable hash of the requested object.")
    status = _Column("status", "Status of the response; 0 where unknown.")
    client_address = _Column("client_address", _OCTETS, wide=16)

    @property
    def client_named(self) -> npt.NDArray[Any]:
        """By client number: true if the log has a name, and the address is a hash of it."""
        return np.asarray(self._core.column("client_named")).view(bool)

    def _shown(self) -> List[str]:
        return ["time_us", "client", "port", "bytes", "object", "status"]

    def to_frame(self) -> Frame:
        """The columns as a table; clients as numbers. Sizes that the log does not say are masked,
        and null in Arrow, pandas and polars."""
        columns = {name: getattr(self, name) for name in self._shown()}
        unknown = columns["bytes"] == BYTES_UNKNOWN
        if unknown.any():
            columns["bytes"] = np.ma.MaskedArray(columns["bytes"], unknown)
        return Frame(columns)

    def __repr__(self) -> str:
        return f"Requests({len(self):,} rows, {len(self.client_named):,} clients)"


class Accesses(_Columns):
    """Accesses by time: when, which session, and whether the connection opens or closes.

    ``time_us`` counts from the first access; ``id`` is the number of the session; ``hint`` is empty
    or 1 where the connection closes and 2 where it opens.
    """

    def __init__(self, core: _core.Accesses) -> None:
        self._core = core

    @classmethod
    def from_columns(cls, time_us: Any, ip: Any, port: Any, hint: Any = None) -> Accesses:
        """From columns of any kind, in any order of time: ``ip`` are addresses as text or as IPv4
        numbers. Address and port together are the session."""
        times = times_us(time_us)
        client, addresses = _addresses(ip)
        ports = numbers(port, "uint16", "port")
        hints = np.empty(0, "uint8") if hint is None else numbers(hint, "uint8", "hint")
        if hints.size and hints.max() > 2:
            raise ArgumentError("hint: 0 is none, 1 closing, 2 opening; there is nothing above 2")
        _same_length(time_us=times, ip=client, port=ports)
        both = client.astype("uint64") << 16 | ports
        keys, ids = np.unique(both, return_inverse=True)
        if len(keys) > 2**32 - 2:
            raise ArgumentError("more than 2^32 - 2 sessions; take a part of them")
        return cls(
            _core.Accesses.from_columns(
                times,
                np.ascontiguousarray(ids.reshape(-1).astype("uint32")),
                np.ascontiguousarray(addresses[(keys >> 16).astype("int64")]).reshape(-1),
                (keys & 0xFFFF).astype("uint16"),
                hints,
            )
        )

    @classmethod
    def from_table(cls, table: Any) -> Accesses:
        """From a table (pandas, polars, Arrow, a dict) with columns ``time_us``, ``ip`` and
        ``port``, and ``hint`` if it has one."""
        columns = columns_of(table)
        _needed(columns, "time_us", "ip", "port")
        known = {"time_us", "ip", "port", "hint"}
        return cls.from_columns(**{name: columns[name] for name in columns if name in known})

    time_us = _Column("time_us", "Microseconds since the first access; never steps back.")
    id = _Column("id", "Number of the session.")
    hint = _Column("hint", "Empty, or 1 where the connection closes and 2 where it opens.")
    tick = _Column("tick", "Ticks of the lifetime counters, counted from the first access.")
    key_address = _Column("key_address", _OCTETS, wide=16)
    key_port = _Column("key_port", "Ports by session number.")

    @property
    def warm_up(self) -> int:
        """Number of warm-up accesses at the beginning, which are not counted."""
        count: int = self._core.warm_up
        return count

    @property
    def provenance(self) -> Dict[str, Any]:
        """Origin of the stream: trace, parameters, seed, report of reading."""
        provenance: Dict[str, Any] = json.loads(self._core.provenance())
        return provenance

    @property
    def sessions(self) -> int:
        """Sessions that are accessed. The tables of keys may have more: those of a synthetic
        workload that is too short for all its sessions."""
        count: int = self._core.sessions
        return count

    def write(self, path: Path, format: Optional[str] = None) -> None:
        """Writes a file, whole or not at all: ``lab`` (compact, times in full) or libCacheSim's
        ``oracleGeneral``; by the end of its name when left out, ``lab`` where that says neither.

        What the file does not hold of these accesses is warned of: of ``oracleGeneral`` what is
        below whole seconds, longer addresses and hints, of both how many of them are warm-up."""
        if format is None:
            # As `fairlead-lab convert` takes it, in whatever case.
            name = path_of(path).lower()
            if name.endswith(".csv"):
                raise ArgumentError(f"{path}: write does not make tables; `fairlead-lab convert` does")
            if name.endswith((".gz", ".zst")):
                raise ArgumentError(f"{path}: write does not pack; leave out what the name ends in")
            is_oracle = name.endswith((".oraclegeneral", ".oraclegeneral.bin"))
            format = "oracleGeneral" if is_oracle else "lab"
        if format not in ("lab", "oracleGeneral"):
            raise ArgumentError(f"format {format}: write lab or oracleGeneral")
        write_whole(pathlib.Path(path_of(path)), lambda to: self._core.write(to, format))
        lost = self._core.losses(format)
        if self.warm_up:
            lost.append(f"the first {self.warm_up:,} accesses are warm-up; the file does not say so")
        for text in lost:
            warnings.warn(text, stacklevel=2)

    def _shown(self) -> List[str]:
        return ["time_us", "id", "hint"] if len(self.hint) else ["time_us", "id"]

    def __repr__(self) -> str:
        return f"Accesses({len(self):,} rows, {self.sessions:,} sessions)"


def read_requests(
    path: Path, format: Optional[str] = None, max_bad: float = 0.01, progress: Tell = None
) -> Requests:
    """Reads a log (``.gz`` and ``.zst`` directly); the format is told by its content.

    Rows that cannot be read are counted by reason (:attr:`Requests.report`); where they are more
    than ``max_bad`` of all, a :class:`TraceError` names file, line and reason.
    """
    name = path_of(path)
    with Progress(f"read {os.path.basename(name)}") as shown:
        return Requests(
            _core.Requests.read(name, _format(format), share(max_bad, "max_bad"), teller(progress, shown))
        )


def read_accesses(
    path: Path,
    format: Optional[str] = None,
    max_bad: float = 0.01,
    progress: Tell = None,
    sort: bool = False,
) -> Accesses:
    """Reads what has ports already: captures, ``time_us,ip,port`` tables, oracleGeneral, the lab's
    own files. Rows out of order are a :class:`TraceError`; with ``sort`` they are sorted by time,
    as captures always are, and :attr:`Accesses.report` says how often it stepped back. Otherwise as
    :func:`read_requests`."""
    name = path_of(path)
    with Progress(f"read {os.path.basename(name)}") as shown:
        return Accesses(
            _core.Accesses.read(
                name, _format(format), share(max_bad, "max_bad"), teller(progress, shown),
                yes_or_no(sort, "sort"),
            )
        )


def _format(given: Optional[str]) -> Optional[str]:
    return None if given is None else text_of(given, "format")


def _needed(columns: Dict[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise ArgumentError(
            f"the table has no column {' nor '.join(missing)}; it has {', '.join(columns) or 'none'}"
        )


def _same_length(**columns: npt.NDArray[Any]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"columns of different lengths: {lengths}")


def _addresses(values: Any) -> Tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Addresses as numbers, and 16 bytes for each number."""
    with understood(values, "ip", "a column of addresses is"):
        return _coded(values)


def _coded(values: Any) -> Tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    if kind is None and len(values) and isinstance(values[0], int) or kind in ("i", "u"):
        whole, index = np.unique(numbers(values, "uint32", "ip"), return_inverse=True)
        octets = np.zeros((len(whole), 16), "uint8")
        octets[:, 10:12] = 0xFF
        octets[:, 12:] = whole.astype(">u4").view("uint8").reshape(-1, 4)
        return index.reshape(-1).astype("uint32"), octets
    import pyarrow

    if kind == "S":
        # Text; Python bytes are addresses in network byte order.
        values = np.char.decode(values, "ascii", "replace")
    if isinstance(values, np.ndarray):
        values = values.tolist()
    try:
        column = values if hasattr(values, "__arrow_c_stream__") else pyarrow.array(values)
    except (pyarrow.ArrowException, TypeError):
        # Of no kind that Arrow knows: addresses of the module `ipaddress`, or a mixture.
        return _distinct(values)
    texts = pyarrow.chunked_array(column if hasattr(column, "__arrow_c_stream__") else [column])
    if texts.null_count:
        raise ArgumentError(f"ip: {texts.null_count} addresses are missing; fill or drop them")
    coded = texts.combine_chunks().dictionary_encode()
    if isinstance(coded, pyarrow.ChunkedArray):
        coded = coded.combine_chunks()
    # One address can be written in several ways, and a category may have no row.
    known: Dict[bytes, int] = {}
    rows = coded.indices.to_numpy()
    counts = np.bincount(rows.astype("int64", copy=False), minlength=len(coded.dictionary))
    place = [
        known.setdefault(_octets(text), len(known)) if count else 0
        for text, count in zip(coded.dictionary.to_pylist(), counts.tolist())
    ]
    octets = np.frombuffer(b"".join(known), "uint8").reshape(-1, 16)
    return np.asarray(place, "uint32")[rows], octets


def _distinct(values: Any) -> Tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Addresses as numbers, one by one."""
    known: Dict[bytes, int] = {}
    index = [known.setdefault(_octets(value), len(known)) for value in values]
    return np.asarray(index, "uint32"), np.frombuffer(b"".join(known), "uint8").reshape(-1, 16)


def _octets(text: Any) -> bytes:
    try:
        # A number is an IPv4 address, here as in a column of numbers.
        address = ipaddress.IPv4Address(text) if isinstance(text, int) else ipaddress.ip_address(text)
    except ValueError:
        raise ArgumentError(f"ip: {text!r} is no address; write 192.0.2.1 or 2001:db8::1") from None
    if address.version == 4:
        return b"\0" * 10 + b"\xff\xff" + address.packed
    return address.packed
