"""Random sequences against an engine's manager, until so many operations are done."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """An engine's manager that can be asked.

    Attributes:
        engine: Whose it is.
        version: The engine's.
        traits: What of the rules of hits it has.
    """

    engine: str
    version: str
    traits: dict[str, bool]

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        """``kind``, ``says`` and ``at`` of what broke; empty where nothing did."""


SHORT, STUBBORN = 20, 5
"""Operations that are short enough to read, and failures that are shrunk to get there."""


@dataclass(frozen=True)
class Failure:
    """An invariant that broke.

    Attributes:
        kind: Which of ``INVARIANTS``.
        says: What was seen, at the end of the shortest sequence.
        sequence: The shortest that was found.
        found_after: Operations that had been done when it was first seen.
    """

    kind: str
    says: str
    sequence: Sequence
    found_after: int


@dataclass
class Verdict:
    """What came of a check.

    Attributes:
        operations: Done, and how many sequences they were.
        sequences: See there.
        failures: By invariant, the shortest of each that was found.
        broken: Sequences by the invariant that broke first.
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
        verdict.sequences += 1
        verdict.operations += answer.get("at", len(sequence.operations))
        if answer:
            _note(verdict, manager, sequence, answer["kind"])
        show(verdict)
    return verdict


def _note(verdict: Verdict, manager: Manager, sequence: Sequence, kind: str) -> None:
    """Count a sequence that broke, and keep what can be made of it if it is the shortest."""
    verdict.broken[kind] += 1
    known = verdict.failures.get(kind)
    if known and (len(known.sequence.operations) <= SHORT or verdict.broken[kind] > STUBBORN):
        return
    after = known.found_after if known else verdict.operations
    found = _shortest(manager, sequence, kind, after)
    if known is None or len(found.sequence.operations) < len(known.sequence.operations):
        verdict.failures[kind] = found


def _shortest(manager: Manager, sequence: Sequence, kind: str, after: int) -> Failure:
    def broken(shorter: Sequence) -> bool:
        return manager.ask(expect(shorter)).get("kind") == kind

    found = expect(shrink(sequence, broken))
    return Failure(kind, manager.ask(found)["says"], found, after)
