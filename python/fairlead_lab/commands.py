"""The command ``fairlead-lab``: the core's commands, and those that need Python: distributed
sweeps, the report, and advice as a page."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, NoReturn, Optional, Sequence

from . import _core
from .errors import Interrupted, LabError, PlanError
from .terminal import Progress
from .words import visible

__all__ = ["entry", "main"]

#: What a shell expects after Ctrl-C.
INTERRUPTED = 130


def entry() -> NoReturn:
    """The process ``fairlead-lab``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names with characters that the terminal cannot encode are still printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = main()
    if code == INTERRUPTED:
        # Everything is written. Libraries may take long to clean up (Dask: half a second), which
        # the end of the process makes unnecessary; Ctrl-C must take effect within a second.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    sys.exit(code)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command line and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    quiet = words[:1] in (["-q"], ["--quiet"])
    if quiet and words[1:2] and words[1] in OWN:
        words = [words[1], "--quiet", *words[2:]]
    if words[:1] == ["help"] and words[1:2] and words[1] in OWN:
        words = [words[1], "--help"]
    own = OWN.get(words[0]) if words else None
    if words[:1] == ["advise"] and not any(word.split("=")[0] in ASKS for word in words):
        own = None
    try:
        if own:
            return own(words[1:])
        if not words or words[0] in ("-h", "--help", "help") and len(words) == 1:
            code = _core.cli(["fairlead-lab", "--help"])
            print(MORE)
            return code
        return _core.cli(["fairlead-lab", *words])
    except (Interrupted, KeyboardInterrupt):
        # The line may show a progress bar.
        clear = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{clear}interrupted; what is finished is kept", file=sys.stderr)
        return INTERRUPTED
    except LabError as error:
        _say(f"error: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except BrokenPipeError:
        # The output pipe is closed.
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"error: standard output: {error.strerror or error}", file=sys.stderr)
        return 1


def _say(text: str) -> None:
    """A line to the terminal."""
    print(visible(text), file=sys.stderr)


MORE = """
From Python:
  sweep     As above, into Parquet; with --scheduler tcp://... on several machines (Dask)
  paper     Every figure and table of the paper on available traces, as one HTML page
  advise    With --html FILE: the advice as a summary page"""

MORE_ADVICE = """
From Python:
      --html <FILE>
          Write the advice to this file, as a summary page"""

#: This command once more. Not by `-m`, which looks for modules in the folder it is called in first:
#: what lies there is the user's.
AGAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from fairlead_lab.commands import main; sys.exit(main())"
)

HELP = ("-h", "--help")
#: What makes `advise` a command of this package.
ASKS = ("--html", *HELP)


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"fairlead-lab {command}", description=about)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    return parser


def _sweep(words: List[str]) -> int:
    from .sweep import sweep, tasks_of

    parser = _parser("sweep", "Runs a plan. Existing results are not computed again.")
    parser.add_argument("plan", metavar="PLAN.toml", type=Path)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="where results go, as Parquet and CSV (default: the plan's name with -results)",
    )
    parser.add_argument(
        "--scheduler", metavar="tcp://...", help="a Dask scheduler; without one, the cores here"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads here; 0: as many as cores")
    parser.add_argument("--dry-run", action="store_true", help="only print the number of runs")
    given = parser.parse_args(words)
    if given.dry_run:
        tasks = tasks_of(given.plan)
        streams = len({task.stream for task in tasks})
        print(visible(f"{given.plan}: {len(tasks)} runs over {streams} streams"))
        return 0
    out = given.out or given.plan.with_name(given.plan.stem + "-results")
    with Progress("sweep", quiet=given.quiet) as progress:
        outcome = sweep(given.plan, out, given.scheduler, given.threads, progress)
    if not given.quiet:
        for note in outcome.notes:
            _say(f"note: {note}")
    for problem in outcome.failed:
        _say(f"error: {problem}")
    print(visible(f"{out / 'results.parquet'}: {outcome}"))
    if outcome.interrupted:
        left = outcome.planned - outcome.found - outcome.computed
        print(f"interrupted; {left} runs are left, the same command goes on with them", file=sys.stderr)
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _paper(words: List[str]) -> int:
    from .paper import write_paper

    parser = _parser("paper", "Every figure and table of the paper on the traces at hand.")
    parser.add_argument(
        "traces", nargs="*", type=Path, metavar="TRACE",
        help="log files, or directories with files recognized by their archive names",
    )
    parser.add_argument("--out", type=Path, default=Path("lab-report"), metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=0, help="threads; 0: as many as cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and points, for a quick overview")
    parser.add_argument(
        "--max-bad", type=float, default=0.01, metavar="SHARE",
        help="maximum share of unreadable rows per trace (default: 0.01)",
    )
    given = parser.parse_args(words)
    with Progress("paper", quiet=given.quiet) as progress:
        report = write_paper(
            given.traces, given.out, seed=given.seed, threads=given.threads,
            quick=given.quick, progress=progress, max_bad=given.max_bad,
        )
    print(visible(f"the report: {report.resolve()}"))
    print(visible(f"its tables, as Parquet and CSV: {(given.out / 'tables').resolve()}"))
    failed = json.loads((given.out / "paper.json").read_text(encoding="utf-8"))["failed"]
    for failure in failed:
        _say(f"error: {failure['trace']}: {failure['problem']}")
    return 1 if failed else 0


def _advise(words: List[str]) -> int:
    from .advice import advice_page
    from .files import write_text

    if any(word in HELP for word in words):
        code = _core.cli(["fairlead-lab", "advise", "--help"])
        print(MORE_ADVICE)
        return code
    parser = argparse.ArgumentParser(prog="fairlead-lab advise", add_help=False)
    parser.add_argument("--html", type=Path, required=True)
    given, rest = parser.parse_known_args(words)
    if "--json" in rest:
        raise PlanError("--html and --json are mutually exclusive")
    # In a separate process: its output is captured, and its progress goes to the terminal.
    command = [sys.executable, "-c", AGAIN, "advise", "--json", *rest]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        return done.returncode
    advice = json.loads(done.stdout)
    advice["version"] = _core.version()
    write_text(advice_page(advice), given.html)
    print(visible(f"the advice: {given.html.resolve()}"))
    return 0


OWN: Dict[str, Callable[[List[str]], int]] = {"sweep": _sweep, "paper": _paper, "advise": _advise}
