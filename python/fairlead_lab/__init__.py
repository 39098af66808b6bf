"""What a cache of TCP connections' state does on your traffic.

>>> import fairlead_lab as lab
>>> log = lab.read_requests("access.log.gz")            # doctest: +SKIP
>>> stream = lab.expand(log, concurrent_sessions=4000)  # doctest: +SKIP
>>> lab.simulate(stream, [{"scheme": "spec"}])          # doctest: +SKIP
"""

from __future__ import annotations

from . import _core
from .errors import (
    ArgumentError,
    GeometryError,
    InternalError,
    Interrupted,
    LabError,
    PlanError,
    TraceError,
)
from .frame import Frame
from .streams import Accesses, Requests, read_accesses, read_requests

__all__ = [
    "Accesses",
    "ArgumentError",
    "Frame",
    "GeometryError",
    "InternalError",
    "Interrupted",
    "LabError",
    "PlanError",
    "Requests",
    "TraceError",
    "read_accesses",
    "read_requests",
]

__version__ = _core.version()
