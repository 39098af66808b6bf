"""Simulates caches of TCP connection state on your traffic.

>>> import fairlead_lab as lab
>>> log = lab.read_requests("access.log.gz")            # doctest: +SKIP
>>> stream = lab.expand(log, concurrent_sessions=4000)  # doctest: +SKIP
>>> lab.simulate(stream, [{"scheme": "spec"}])          # doctest: +SKIP
"""

from __future__ import annotations

from . import _core, protocol
from .errors import (
    ArgumentError,
    GeometryError,
    InternalError,
    Interrupted,
    LabError,
    MissingError,
    PlanError,
    TraceError,
)
from . import content
from .advice import advice_page
from .frame import Frame
from .paper import paper, paper_page, write_paper
from .runs import advise, expand, expand_file, fully_associative, schemes, simulate, standard, stat, zipf
from .streams import Accesses, Requests, read_accesses, read_requests
from .sweep import sweep

__all__ = [
    "Accesses",
    "ArgumentError",
    "Frame",
    "GeometryError",
    "InternalError",
    "Interrupted",
    "LabError",
    "MissingError",
    "PlanError",
    "Requests",
    "TraceError",
    "advice_page",
    "advise",
    "content",
    "expand",
    "expand_file",
    "fully_associative",
    "paper",
    "paper_page",
    "protocol",
    "read_accesses",
    "read_requests",
    "schemes",
    "simulate",
    "standard",
    "stat",
    "sweep",
    "write_paper",
    "zipf",
]

__version__ = _core.version()
