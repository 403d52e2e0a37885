"""The table of operations: what each writes, and in how many ways it can be done.

Variants are kernels that give the same bytes and may differ in speed. A run takes the first that
its GPU has, or the one that ``ops.variant`` names; so one run compares two of them
(``--axis ops.variant.flush=scratch,serial``). On the CPU there is one way each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsv4kv.errors import ConfigError


@dataclass(frozen=True)
class Variant:
    """One way to do an operation.

    Attributes:
        meaning: What sets it apart, to follow its name.
        architectures: That have what it takes, such as ``sm_90a``; None for all.
    """

    meaning: str
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what it takes."""
        return self.architectures is None or architecture in self.architectures


_CLUSTERS = ("sm_90a", "sm_100a")  # with room for three blocks of 74 KiB a multiprocessor

_POOLING = {
    "scratch": Variant("the loads of a batch of rows are under way together"),
    "serial": Variant("loads as the compiler places them, in several rounds"),
    "cluster": Variant(
        "blocks that share an entry are a cluster, which needs no second kernel", _CLUSTERS
    ),
}

_INSERTING = {
    "resident": Variant("a warp has two entries under way, on as many blocks as the GPU holds"),
    "single": Variant("a warp has one entry under way, on up to eight blocks a multiprocessor"),
}

_GATHERING = {
    "ahead": Variant("a warp looks up all its entries at once, four of them under way"),
    "stepwise": Variant("a warp looks up two entries at a time, both under way"),
}

_DEPENDENT = ("sm_90a", "sm_100a", "sm_103", "sm_110", "sm_120", "sm_121")
STEP_LAUNCH = "step_launch"


@dataclass(frozen=True)
class Row:
    """What is to be known of an operation besides its contract.

    Attributes:
        writes: Arguments of the contract that it writes.
        of_slots: It works on rings and states: other block tables give it no other bytes.
        variants: Ways to do it on a GPU, the default first.
    """

    writes: tuple[str, ...]
    of_slots: bool = False
    variants: Mapping[str, Variant] = field(default_factory=dict)


OPERATIONS: dict[str, Row] = {
    "window_insert": Row(("ring",), of_slots=True, variants=_INSERTING),
    "entry_insert": Row(("store",), variants=_INSERTING),
    "indexer_insert": Row(("store",)),
    "norm_rope_insert": Row(("store",)),
    "state_append": Row(("state",), of_slots=True),
    "flush": Row(("store",), of_slots=True, variants=_POOLING),
    "step_write": Row(
        ("ring", "parts"),
        of_slots=True,
        variants={
            "fused": Variant("one kernel for a layer's window, states and entries"),
            "separate": Variant("a kernel for each of them"),
        },
    ),
    "compress_chunk": Row(("state", "store"), variants=_POOLING),
    "gather_topk": Row(("out",), variants=_GATHERING),
    "gather_all": Row(("out",), variants=_GATHERING),
    "gather_window": Row(("out",), of_slots=True, variants=_GATHERING),
    "page_copy": Row(("store",)),
    "indexer_query": Row(("out", "out_weights")),
    "index_scores": Row(("out",)),
    "select_blocks": Row(("out",)),
    "select_topk": Row(("out", "entries")),
    "attend": Row(("out", "lse")),
}
"""Every operation of ``ops.contract``."""

_STEP_LAUNCH = {
    "dependent": Variant("a kernel is set up while the one before it still runs", _DEPENDENT),
    "plain": Variant("a kernel begins when the one before it has ended"),
}

VARIANTS: dict[str, Mapping[str, Variant]] = {
    name: row.variants for name, row in OPERATIONS.items() if row.variants
} | {STEP_LAUNCH: _STEP_LAUNCH}
"""Every operation that has several, and how a step's kernels follow one another; the first is the
default."""

Choice = Mapping[str, str]
"""Variant of every operation in ``VARIANTS``."""


def portable(operation: str) -> str:
    """The first variant that every GPU has: what launch plans make if nobody says otherwise."""
    return next(name for name, one in VARIANTS[operation].items() if not one.architectures)


def best(operation: str, architecture: str) -> str:
    """The first variant that an architecture has."""
    return _available(operation, architecture)[0]


def explain(operation: str) -> str:
    """The variants of an operation and their meanings, in a sentence."""
    meanings = (f"{name} ({variant.meaning})" for name, variant in VARIANTS[operation].items())
    return f"How {operation} is done on a GPU: {', '.join(meanings)}; null takes the first it has."


def choose(asked: Mapping[str, str | None], architecture: str) -> Choice:
    """The variant of every operation: as asked, else the first that the architecture has.

    Raises:
        ConfigError: One that is asked for and that the architecture does not have.
    """
    return {
        operation: _checked(operation, name, architecture)
        if (name := asked.get(operation))
        else best(operation, architecture)
        for operation in VARIANTS
    }


def refuse_choice(asked: Mapping[str, str | None]) -> None:
    """Raise ``ConfigError`` where a variant is asked for and the operations are the CPU's."""
    for operation, name in asked.items():
        if name:
            raise ConfigError(
                f"ops.variant.{operation} is {name}, and the cache is on the CPU, where each "
                "operation has one variant: leave it null, or set device to cuda."
            )


def _available(operation: str, architecture: str) -> list[str]:
    return [name for name, one in VARIANTS[operation].items() if one.runs_on(architecture)]


def _checked(operation: str, name: str, architecture: str) -> str:
    available = _available(operation, architecture)
    if name in available:
        return name
    raise ConfigError(
        f"ops.variant.{operation} is {name}, which {architecture} does not have: "
        f"choose {', '.join(available)}, or null."
    )
