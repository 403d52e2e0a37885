"""What is live on a GPU at the peak of a step: from its memory to what is left for KV."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsv4kv.sizing.answer import Answer

Kind = Literal["whole", "taken", "part", "left"]


@dataclass(frozen=True)
class Line:
    """One step from a GPU's memory to its KV.

    Attributes:
        kind: The ``whole``, what is ``taken`` of it, ``part`` of what was taken last, what is
            ``left``.
        what: What it is.
        size_bytes: Bytes.
        source: Who says so.
    """

    kind: Kind
    what: str
    size_bytes: int
    source: str


@dataclass(frozen=True)
class Peak:
    """The tightest GPU.

    Attributes:
        lines: In order; what is taken and what is left add up to the whole.
        not_counted: What no line stands for: nothing says its size.
    """

    lines: tuple[Line, ...]
    not_counted: tuple[str, ...]


def peak_of(found: Answer) -> Peak:
    """The memory of the tightest GPU, with a source for every line."""
    overhead = found.scenario.overhead(found.use.stage, found.context)
    return Peak(tuple(_lines(found)), overhead.unknown)


def _lines(found: Answer) -> Iterator[Line]:
    scenario, use = found.scenario, found.use
    inputs, overhead = scenario.inputs, scenario.overhead(use.stage, found.context)
    left = use.budget - use.weights - use.reserve - use.transient
    if inputs.kv_memory or inputs.kv_blocks:
        yield Line("left", "for KV", left, "as given")
        return
    yield Line("whole", "memory of the GPU", use.memory, scenario.gpu.memory_source)
    share = f"left free, {1 - float(scenario.settings.memory_fraction):.3g} of it"
    yield Line("taken", share, use.memory - use.budget, _reason(found, "memory_fraction"))
    for held in overhead.headroom:
        yield Line("part", *held)
    if use.headroom:
        yield Line("part", "indexer logits", use.headroom, _reason(found, "logits_limit"))
    yield Line("taken", "weights", use.weights, scenario.weights.source)
    if "reserve" in scenario.settings.assumed:
        known = sum(held.size_bytes for held in overhead.reserve)
        for held in overhead.reserve:
            yield Line("taken", *held)
        rest = "the rest of the reserve" if known else "reserve"
        if use.reserve > known:
            yield Line("taken", rest, use.reserve - known, _reason(found, "reserve"))
    else:
        yield Line("taken", "reserve", use.reserve, "as given")
    if use.transient:
        yield Line("taken", "indexer logits", use.transient, _reason(found, "logits_limit"))
    yield Line("left", "for KV" if left >= 0 else "missing for KV", left, "")


def _reason(found: Answer, name: str) -> str:
    assumed = found.scenario.settings.assumed.get(name)
    return assumed.reason if assumed else "as given"
