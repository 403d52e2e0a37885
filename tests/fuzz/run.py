"""Odd files for every reader: ``python -m tests.fuzz.run --cases 20000`` (``make fuzz``).

Whatever a file holds, the answer is a sentence or a result: no traceback, no command to the
terminal, none of it later than half a minute or for more than a gigabyte. A case is its number and
the seed; ``--only NUMBER`` runs one again and keeps its file.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.runs.store import dumps
from tests.fuzz.readers import READERS, odd_options
from tests.runs.records import make_record

LONGEST_S = 30  # of the processor; ten times as long by the clock
MOST_BYTES = 1 << 30
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}


class TooLongError(BaseException):
    """A case that takes longer than it may; no code of a reader catches it."""


def run_case(number: int, folder: Path, seed: int = 0) -> tuple[str, str | None]:
    """Run one case in an empty folder: what it was, and what was wrong, if anything."""
    random = Random(f"{seed} {number}")
    names = [*READERS, "options"]
    name = names[number % len(names)]
    (folder / "record").mkdir()
    (folder / "cache" / "dsv4kv").mkdir(parents=True)
    (folder / "record" / "record.json").write_text(dumps(make_record()))
    if name == "options":
        command = odd_options(folder, random)
        return f"{name}: {' '.join(command)[:200]!a}", _problem(command, folder)
    reader = READERS[name]
    path = reader.make_odd(folder, random)
    line = random.choice(reader.commands)
    command = [re.sub(r"^FILE$|\./FILE", lambda _: str(path), word) for word in line.split()]
    return f"{name}: {line}", _problem(command, folder)


def _problem(command: list[str], folder: Path) -> str | None:
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder), "COLUMNS": "80"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ, environment), _bounded():
            result = CliRunner().invoke(app, command)
    except TooLongError:
        return f"took longer than {LONGEST_S} s"
    finally:
        os.chdir(before)
    if result.exception and not isinstance(result.exception, SystemExit):
        error = result.exception
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        where = trace.tb_frame.f_code.co_filename if trace else ""
        line = trace.tb_lineno if trace else 0
        return f"{type(error).__name__}: {str(error)[:150]} ({Path(where).name}:{line})"
    if result.exit_code not in EXIT_CODES:
        return f"exit code {result.exit_code}"
    odd = {
        character
        for character in result.output
        if unicodedata.category(character) == "Cc" and character not in "\n\t"
    }
    return f"gives the terminal {sorted(odd)}" if odd else None


@contextmanager
def _bounded() -> Iterator[None]:
    """Time and memory of a case: too much of either ends it."""

    def end(*_: object) -> None:
        raise TooLongError

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = [(number, signal.signal(number, end)) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.alarm(10 * LONGEST_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def main() -> None:
    """Run cases, tell of those that went wrong, and fail if any did."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    cases = range(options.cases)
    if options.only is not None:
        cases = range(options.only, options.only + 1)
    wrong = Counter[str]()
    for number in cases:
        folder = Path(tempfile.mkdtemp(prefix="dsv4kv-fuzz-"))
        what, problem = run_case(number, folder, options.seed)
        if (number + 1) % 1_000 == 0:
            print(f"up to case {number + 1:,}: {wrong.total()} wrong", flush=True)
        if options.only is None:
            shutil.rmtree(folder)
        else:
            print(f"{folder}: {what}")
        if problem:
            wrong[problem] += 1
            if wrong[problem] == 1:
                print(f"case {number}: {what}: {problem}", flush=True)
    print(f"{len(cases):,} cases, {wrong.total()} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
