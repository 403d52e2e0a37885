"""Which variant of an operation a run takes, and how a step's kernels follow one another.

Variants are kernels that give the same bytes, of ``attend`` sums in another order, and may differ
in speed. A run takes the first that its GPU has, or the one that ``ops.variant`` names; so one
run compares two of them (``--axis ops.variant.flush=scratch,serial``). On the CPU there is one way
each.
"""

from collections.abc import Mapping

from dsv4kv.errors import ConfigError
from dsv4kv.ops.table import OPERATIONS, Variant

_DEPENDENT = ("sm_90a", "sm_100a", "sm_103", "sm_110", "sm_120", "sm_121")
STEP_LAUNCH = "step_launch"

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
