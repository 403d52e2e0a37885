"""What an engine does when decoding lacks blocks: it takes them back from requests that run.

The toolkit's own rule, under which requests may wait with their blocks, is ``Pauses``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from dsv4kv.replay.batch import Batch
from dsv4kv.replay.pauses import Pauses
from dsv4kv.replay.served import Served


class Preemption(Protocol):
    """Makes room for the next step.

    Attributes:
        paused: Requests that keep their blocks and do not run, oldest first.
        preempted: Whether the last time somebody was sent back to wait by an engine's rule, which
            admits nobody in that step.
    """

    paused: list[Served]
    preempted: bool

    def settle(self) -> None:
        """Before a step: see to it that all that decode have the blocks for it."""

    def make_room(self) -> None:
        """Nobody runs: the oldest paused request must be able to go on next."""


class EngineRule(NamedTuple):
    """How an engine preempts.

    Attributes:
        keeps: Whom it may preempt, those first that it keeps longest.
        put_back: Where in the queue the preempted wait.
    """

    keeps: Callable[[Batch], list[Served]]
    put_back: Callable[[list[Served], Served], None]


def by_admission(batch: Batch) -> list[Served]:
    """All that run, the last admitted last.

    Source: vLLM 0.33, ``v1/core/sched/scheduler.py``: ``schedule`` gives blocks to what runs in
    order of admission and, first come, first served, preempts ``running[-1]`` until they suffice.
    """
    return sorted([*batch.decoders.members, *batch.prefilling], key=lambda served: served.place)


def by_output(batch: Batch) -> list[Served]:
    """What decodes, the fewest output tokens last; of as many the longest prompt.

    Source: SGLang 0.5.23, ``managers/schedule_batch.py``: ``_get_decode_retraction_order``. The
    last one is kept there. Here prompts are computed beside it and may have its blocks; then it
    goes, too.
    """
    members = batch.decoders.members
    left = dict(zip(members, batch.decoders.left.tolist(), strict=True))

    def lengths(served: Served) -> tuple[int, int]:
        return served.output_tokens - left[served], -served.input_tokens

    return sorted(members, key=lengths, reverse=True)


ENGINES: Mapping[str, EngineRule] = {
    "vllm": EngineRule(by_admission, lambda queue, served: queue.insert(0, served)),
    "sglang": EngineRule(by_output, lambda queue, served: queue.append(served)),
}
"""Rules of the engines, by what their names in ``prefix.rule`` begin with."""


class EnginePreemption:
    """Frees one request after the other until the blocks suffice; see ``Preemption``."""

    def __init__(self, batch: Batch, rule: EngineRule) -> None:
        self.paused: list[Served] = []  # nobody waits with blocks
        self.preempted = False
        self._batch, self._rule = batch, rule

    def settle(self) -> None:
        """Preempt until the others have their blocks."""
        batch, self.preempted = self._batch, False
        if batch.decoders.most_lacking() <= batch.ledger.available:
            return
        lacking, keeps = batch.lacking(), self._rule.keeps(batch)
        while sum(lacking.values()) > batch.ledger.available:
            served = keeps.pop()
            lacking.pop(served, None)
            batch.stop(served)
            self._rule.put_back(batch.waiting, served)
            self.preempted = True

    def make_room(self) -> None:
        """Nobody waits with blocks."""


def open_preemption(rule: str, batch: Batch, most_blocks: int) -> Preemption:
    """The rule that goes with a ``prefix.rule``.

    Args:
        rule: ``prefix.rule``.
        batch: Whose blocks they are.
        most_blocks: Blocks that paused requests may keep, by the toolkit's own rule.
    """
    for name, engine in ENGINES.items():
        if rule.startswith(name):
            return EnginePreemption(batch, engine)
    return Pauses(batch, most_blocks)
