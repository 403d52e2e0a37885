"""What an engine takes where nothing is given: by what it goes, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

MIB, GIB = 2**20, 2**30

LogitsRoom = Literal["share", "profiled", "headroom"]
"""Where the indexer's logits find their memory: in the share of a GPU that may be used, and no
more than a step needs; there, and at their bound before the cache is sized, whatever a step needs;
or in what that share leaves of the GPU."""


@dataclass(frozen=True)
class Machine:
    """The GPUs of a deployment, as an engine looks at them when it starts.

    Attributes:
        gpu: Name of each in the catalogue.
        memory_bytes: Memory of each.
        tp: Tensor parallel ranks of a replica.
        dp: Replicas in one server, as ranks of its attention.
        pp: Pipeline stages.
        kind: Generation of the model: ``v4``, ``v41``, ``flat``.
        arch: What the GPU's kernels are compiled for: ``sm_90``; None where it is not known.
    """

    gpu: str
    memory_bytes: int
    tp: int = 1
    dp: int = 1
    pp: int = 1
    kind: str = "v4"
    arch: str | None = None


@dataclass(frozen=True)
class Default:
    """A value that nobody gave, and whose it is."""

    value: Any
    reason: str


Given = Mapping[str, Any]
"""What is given, by the name of the input; an engine may go by it."""
Defaults = dict[str, Default]
"""By the name of the input: ``memory_fraction``, ``reserve`` (bytes), ``step_tokens`` (as
the engine takes it: SGLang spreads it over its replicas), ``overlap`` (steps), ``request_limit``
(likewise), ``logits_limit`` (bytes), ``window_slots``. Formats are in a table of their own:
``engines/formats.py``."""

SHARE, RESERVE = Fraction(9, 10), 4 * GIB
"""Of a GPU, the share that this toolkit takes to be usable; of that, what it keeps for all but
weights and cache."""
UNMEASURED = Default(RESERVE, "activations, graphs, communication: this toolkit's guess")
"""Where an engine measures what is neither weights nor cache, and prints it."""
_OWN = "this toolkit's"


def own_defaults() -> Defaults:
    """This toolkit's, for caches that no engine of theirs starts with."""
    return {
        "memory_fraction": Default(SHARE, _OWN),
        "reserve": UNMEASURED,
        "step_tokens": Default(8192, _OWN),
        "overlap": Default(1, _OWN),
        "logits_limit": Default(512 * MIB, "engines score a chunk in pieces, as vLLM does"),
    }
