"""Random sequences against an engine's manager, until so many operations are done."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dsv4kv.diagnose.conform.drawn import DRAWN, expect
from dsv4kv.diagnose.conform.sequences import Sequence, shrink
from dsv4kv.errors import PeerUnavailable

INVARIANTS = {
    "blocks": "no block is lost, or held by two that do not share it",
    "reads": "what a step or a copy reads is there in every family, of the request's own tokens",
    "hits": "a prompt hits what the rule says",
    "ends": "every request ends, and then the pool is empty",
    "calls": "the engine raises nothing",
}
"""What must hold after every operation, by name."""


class Manager(Protocol):
    """An engine's manager that can be asked: the engine, its version, and traits of its hits."""

    engine: str
    version: str
    traits: dict[str, bool]

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        """``broken``: by invariant, how it broke and after how many operations; and ``done``."""


SHORT, STUBBORN = 20, 5
"""Operations that are short enough to read, and failures that are shrunk to get there."""


@dataclass(frozen=True)
class Failure:
    """An invariant that broke.

    Attributes:
        kind: Which of ``INVARIANTS``.
        says: What was seen: at the end of the shortest sequence, or at first if it did not repeat.
        sequence: The shortest that was found; the first if it did not repeat.
        found_after: Operations that had been done when it was first seen.
        repeats: Whether the invariant breaks each time that the sequence is asked.
    """

    kind: str
    says: str
    sequence: Sequence
    found_after: int
    repeats: bool


@dataclass
class Verdict:
    """What came of a check.

    Attributes:
        operations: Operations done.
        sequences: Sequences they were in.
        failures: By invariant, the shortest of each that was found.
        broken: In how many sequences each invariant broke.
    """

    operations: int = 0
    sequences: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)


def conform(
    manager: Manager,
    operations: int,
    seed: int,
    show: Callable[[Verdict], None] = lambda _: None,
    *,
    host: bool = False,
) -> Verdict:
    """Ask until so many operations are done; the first sequences that break are made shorter.

    They are shrunk until one of an invariant is ``SHORT``; some have no part that can be left out.
    ``host``: behind every cache there is host memory.

    Raises:
        PeerUnavailable: This engine's host memory is not driven.
    """
    if host and not manager.traits.get("host"):
        raise PeerUnavailable(
            f"host memory of {manager.engine} {manager.version} is not driven: leave out --host, "
            "or take vllm 0.33 or sglang 0.5.23."
        )
    verdict = Verdict()
    while verdict.operations < operations:
        source = random.Random(f"{seed} {verdict.sequences}")
        sequence = DRAWN[manager.engine](source, manager.traits, host=host)
        answer = manager.ask(sequence)
        for kind, (says, after) in answer["broken"].items():
            first = Failure(kind, says, sequence, verdict.operations + after, repeats=False)
            _note(verdict, manager, first)
        verdict.sequences += 1
        verdict.operations += answer["done"]
        show(verdict)
    return verdict


def _note(verdict: Verdict, manager: Manager, first: Failure) -> None:
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


def _shortest(manager: Manager, first: Failure) -> Failure:
    """The failure by its shortest sequence; as it is where that does not break it again."""

    def said(sequence: Sequence) -> str:
        says, _ = manager.ask(sequence)["broken"].get(first.kind, ("", 0))
        return str(says)

    if not said(first.sequence):
        return first
    found = expect(shrink(first.sequence, lambda shorter: bool(said(expect(shorter)))))
    says = said(found)
    return replace(first, says=says, sequence=found, repeats=True) if says else first
