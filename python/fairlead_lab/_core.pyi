"""The compiled core. Use the package; this is what it is built on."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

Tell = Optional[Callable[[int, int], None]]

class Column:
    """Numbers where they are; ``numpy.asarray`` makes a read-only view of them."""

    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    def __len__(self) -> int: ...

class Requests:
    @staticmethod
    def read(
        path: str, format: Optional[str] = None, max_bad: float = 0.01, progress: Tell = None
    ) -> Requests: ...
    @staticmethod
    def from_columns(
        time_us: npt.NDArray[np.int64],
        client: npt.NDArray[np.uint32],
        client_address: npt.NDArray[np.uint8],
        port: npt.NDArray[np.uint16],
        bytes: npt.NDArray[np.uint64],
        object: npt.NDArray[np.uint64],
        status: npt.NDArray[np.uint16],
    ) -> Requests: ...
    def column(self, name: str) -> Column: ...
    @property
    def report(self) -> Optional[Dict[str, Any]]: ...
    @property
    def since_1970(self) -> bool: ...
    def __len__(self) -> int: ...

class Accesses:
    @staticmethod
    def read(
        path: str,
        format: Optional[str] = None,
        max_bad: float = 0.01,
        progress: Tell = None,
        sort: bool = False,
    ) -> Accesses: ...
    @staticmethod
    def of_recipe(recipe: str, progress: Tell = None) -> Accesses: ...
    @staticmethod
    def expand(requests: Requests, expansion: str, seed: int, tick_ms: int) -> Accesses: ...
    @staticmethod
    def from_columns(
        time_us: npt.NDArray[np.int64],
        id: npt.NDArray[np.uint32],
        key_address: npt.NDArray[np.uint8],
        key_port: npt.NDArray[np.uint16],
        hint: npt.NDArray[np.uint8],
    ) -> Accesses: ...
    def column(self, name: str) -> Column: ...
    def losses(self, format: str) -> List[str]: ...
    def write(self, path: str, format: str) -> None: ...
    def provenance(self) -> str: ...
    @property
    def report(self) -> Optional[Dict[str, Any]]: ...
    @property
    def sessions(self) -> int: ...
    @property
    def warm_up(self) -> int: ...
    def __len__(self) -> int: ...

class TaskStream:
    @staticmethod
    def of_task(task: str) -> TaskStream: ...
    def notes(self) -> List[str]: ...
    def run_tasks(self, tasks: Sequence[str], threads: int = 0, progress: Tell = None) -> List[str]: ...

def plan_tasks(path: str) -> List[Tuple[str, str, str]]: ...
def stream_of_task(task: str) -> str: ...
def simulate(
    accesses: Accesses,
    configurations: Sequence[str],
    bounds: int = 0,
    threads: int = 0,
    progress: Tell = None,
) -> List[Tuple[int, str]]: ...
def fully_associative(
    accesses: Accesses, lines: int, policies: Sequence[str]
) -> List[Tuple[str, int]]: ...
def advise(
    accesses: Accesses,
    schemes: Sequence[str],
    ways: Sequence[int],
    capacities: Sequence[int],
    tolerance: float,
    threads: int = 0,
    progress: Tell = None,
    seed: Optional[int] = None,
) -> str: ...
def stat(accesses: Accesses) -> str: ...
def paper(
    paths: Sequence[str],
    seed: int = 1,
    threads: int = 0,
    quick: bool = False,
    progress: Tell = None,
    max_bad: float = 0.01,
) -> str: ...
def content_run(
    requests: Requests, asked: str, threads: int = 0, progress: Tell = None
) -> str: ...
def content_advise(
    requests: Requests,
    sizes: Tuple[int, int],
    target: float,
    margin: float,
    caches: int = 1,
    threads: int = 0,
    progress: Tell = None,
) -> str: ...
def content_paper(
    paths: Sequence[str], threads: int = 0, max_bad: float = 0.01, progress: Tell = None
) -> str: ...
def protocol_sweep(trace: str, spec: str, threads: int = 0, progress: Tell = None) -> str: ...
def protocol_layers(
    trace: str, patterns: Optional[str] = None, progress: Tell = None
) -> str: ...
def protocol_caches(
    trace: str,
    i1: Tuple[int, int, int],
    d1: Tuple[int, int, int],
    ll: Tuple[int, int, int],
    progress: Tell = None,
) -> str: ...
def registered() -> List[Tuple[str, str, Optional[int], str]]: ...
def own_scheme() -> Optional[str]: ...
def cli(words: Sequence[str]) -> int: ...
def version() -> str: ...
def _panic_for_tests() -> None: ...
def _wait_for_tests(milliseconds: int, progress: Tell = None, deaf: bool = False) -> int: ...
