"""Run random sequences against an engine's manager and keep the shortest that fail."""

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dsv4kv.diagnose.conform.sequences import DRAWN, Sequence, expect, shrink
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
    """A driver that answers; ``traits``: which variants of the hit rules its version has."""

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
def drive(engine: str, python: str | None = None, package: Path | None = None) -> Iterator[Driven]:
    """Start a driver, which ends with the block; ``python``: the engine's, None for this one.

    ``package``: the folder that the engine's package is in, where it is not installed. Raises
    ``PeerUnavailable`` where there is no such Python, or no such engine that it can import.
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
    start, where = _START.format(folder=str(FOLDER)), str(package.resolve()) if package else ""
    ask, command = os.fdopen(given, "w"), [program, "-c", start, engine, where, str(questions)]
    with os.fdopen(answered) as hear:
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
            with suppress(BrokenPipeError):
                ask.close()


INVARIANTS = {
    "blocks": "no block is lost, or held by two that do not share it",
    "reads": "what a step reads is there in every family, of the request's own tokens",
    "hits": "a prompt hits what the rule says",
    "ends": "every request ends, and then the pool is empty",
    "calls": "the engine raises nothing",
}
"""What must hold after every operation, by name."""


SHORT, STUBBORN = 20, 5
"""Operations that are short enough to read, and failures that are shrunk to get there."""
_ASKED_AGAIN = 3  # a fault that depends on the past may come back by chance


@dataclass(frozen=True)
class Failure:
    """An invariant that broke."""

    kind: str  # which of ``INVARIANTS``
    says: str
    """What was seen: at the end of the shortest sequence, or at first if it did not repeat."""
    sequence: Sequence  # the shortest that was found; the first if it did not repeat
    found_after: int  # operations that had been done when it was first seen
    repeats: bool  # whether the invariant breaks each time that the sequence is asked


@dataclass
class Verdict:
    """What came of a check."""

    operations: int = 0  # operations done
    sequences: int = 0  # sequences they were in
    failures: dict[str, Failure] = field(default_factory=dict)
    """By invariant, the shortest of each that was found."""
    broken: Counter[str] = field(default_factory=Counter)
    """In how many sequences each invariant broke."""


def conform(
    manager: Driven,
    operations: int,
    seed: int,
    show: Callable[[Verdict], None] = lambda _: None,
) -> Verdict:
    """Run sequences for a number of operations; the first that break an invariant are shrunk.

    Shrinking ends when one sequence per invariant is ``SHORT``; some cannot get that short.
    """
    verdict = Verdict()
    while verdict.operations < operations:
        source = random.Random(f"{seed} {verdict.sequences}")
        sequence = DRAWN[manager.engine](source, manager.traits)
        answer = manager.ask(sequence)
        for kind, (says, after) in answer["broken"].items():
            first = Failure(kind, says, sequence, verdict.operations + after, repeats=False)
            _note(verdict, manager, first)
        verdict.sequences += 1
        verdict.operations += answer["done"]
        show(verdict)
    return verdict


def _note(verdict: Verdict, manager: Driven, first: Failure) -> None:
    """Count a sequence that broke, and keep what can be made of it if it is the shortest."""
    verdict.broken[first.kind] += 1
    known = verdict.failures.get(first.kind)
    if known is None:
        verdict.failures[first.kind] = _shortest(manager, first)
    elif _rank(known) > (False, SHORT) and verdict.broken[first.kind] <= STUBBORN:
        found = replace(_shortest(manager, first), found_after=known.found_after)
        verdict.failures[first.kind] = min(known, found, key=_rank)


def _rank(failure: Failure) -> tuple[bool, int]:
    return not failure.repeats, len(failure.sequence.operations)


def _shortest(manager: Driven, first: Failure) -> Failure:
    """The failure by its shortest sequence; as it is where that does not break it each time."""

    def said(sequence: Sequence) -> str:
        says, _ = manager.ask(sequence)["broken"].get(first.kind, ("", 0))
        return str(says)

    def repeats(sequence: Sequence) -> bool:
        return all(said(sequence) for _ in range(_ASKED_AGAIN))

    if repeats(first.sequence):
        found = expect(shrink(first.sequence, lambda shorter: bool(said(expect(shorter)))))
        if repeats(found) and (says := said(found)):
            return replace(first, says=says, sequence=found, repeats=True)
    return first
