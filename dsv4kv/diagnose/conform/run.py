"""An engine's manager in the engine's own Python."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dsv4kv.diagnose.conform.sequences import Sequence
from dsv4kv.errors import PeerUnavailable
from dsv4kv.processes import Child, find_program

FOLDER = Path(__file__).parent
# older Pythons, as engines have, know no -P: "" is the current folder
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), {folder!r}]; "
    "from driven.serve import main; main()"
)


class _Undriven(PeerUnavailable):
    """Why an engine's Python does not answer."""


class Driven:
    """A driver that answers.

    Attributes:
        engine: Whose manager it drives.
        version: The engine's.
        traits: What of the rules of hits it has.
    """

    def __init__(self, engine: str, given: IO[str], answers: IO[str]) -> None:
        """Wait until the engine is there; raises ``PeerUnavailable`` with why it is not."""
        self.engine, self._given, self._answers = engine, given, answers
        first = self._answer()
        if "missing" in first:
            raise _Undriven(first["missing"])
        self.version: str = first["version"]
        self.traits: dict[str, bool] = first["traits"]

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        """``broken``: by invariant, how it broke and after how many operations; and ``done``."""
        with suppress(BrokenPipeError):  # then there is no answer either
            self._given.write(json.dumps(asdict(sequence)) + "\n")
            self._given.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise _Undriven("its Python has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _asking(given: int) -> Iterator[IO[str]]:
    """What is written to; whether anybody still reads it shows in the answers."""
    file = os.fdopen(given, "w")
    try:
        yield file
    finally:
        with suppress(BrokenPipeError):
            file.close()


@contextmanager
def drive(engine: str, python: str | None = None, package: Path | None = None) -> Iterator[Driven]:
    """Start a driver; it ends with the block.

    Args:
        engine: ``vllm`` or ``sglang``.
        python: The engine's Python; None for this one.
        package: The folder that the engine's package is in, where it is not installed.

    Raises:
        PeerUnavailable: No such Python, or no such engine that it can import.
    """
    program = find_program(python or sys.executable)
    if program is None:
        raise PeerUnavailable(f"there is no Python at {python}: name the engine's own.")
    if package is not None and not (package / engine).is_dir():
        raise PeerUnavailable(
            f"{package} holds no folder {engine}: name the one that the package is in."
        )
    questions, given = os.pipe()
    answered, answers = os.pipe()
    start = _START.format(folder=str(FOLDER))
    where = str(package.resolve()) if package else ""
    with _asking(given) as ask, os.fdopen(answered) as hear:
        command = [program, "-c", start, engine, where, str(questions)]
        child = Child(command, stdout=answers, pass_fds=(questions,))
        os.close(questions)
        os.close(answers)
        try:
            yield Driven(engine, ask, hear)
        except _Undriven as error:
            raise PeerUnavailable(
                f"{engine} cannot be checked with {program}: {error}. Take the Python of an "
                f"environment in which {engine} is installed (--python), or a folder with its "
                "package (--package)."
            ) from None
        finally:
            child.kill()
