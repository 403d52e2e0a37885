"""What somebody else's code offers: some operations of the contract, for some formats."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsv4kv.ops.contract import Backend

Operation = Callable[..., None]

OPERATIONS = tuple(name for name in vars(Backend) if not name.startswith("_"))
"""Names of all operations."""

PARAMETERS = {
    name: tuple(inspect.signature(getattr(Backend, name)).parameters)[1:] for name in OPERATIONS
}
"""Parameter names of every operation, in order; they are passed by position."""


@dataclass(frozen=True)
class Foreign:
    """Operations from elsewhere.

    Attributes:
        operations: By name in the contract.
        version: Of the package they come from, where known.
        formats: Entry formats they take; None takes all.
        bridging: The same operations around functions that do nothing: all that a call does
            besides. Empty where the operations take the contract's arguments as they are.
    """

    operations: Mapping[str, Operation]
    version: str | None
    formats: tuple[str, ...] | None = None
    bridging: Mapping[str, Operation] = field(default_factory=dict)


def pages_position(operation: str) -> int | None:
    """Which argument of an operation its pages are; None for ``state_append``, without pages."""
    parameters = PARAMETERS[operation]
    return next((i for i, name in enumerate(parameters) if name in ("store", "ring")), None)
