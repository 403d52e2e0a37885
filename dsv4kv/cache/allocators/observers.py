"""Telling others what an allocator did, once it is done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dsv4kv.cache.allocator import Ids


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """One change.

    Attributes:
        kind: What happened: blocks were handed out, got another reference, lost one, became
            free, were registered (can be found by hash), or lost their content; ``reset``: all.
        ids: int64: the blocks; the receiver's own copy.
    """

    kind: Literal["acquired", "retained", "released", "registered", "evicted", "reset"]
    ids: Ids


Observer = Callable[[BlockEvent], None]


class Observers:
    """Who is told. One that raises harms nobody: the error is kept and the next is told.

    Attributes:
        errors: How often one raised.
        last_error: What it raised last.
    """

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.errors = 0
        self.last_error: Exception | None = None

    def add(self, observer: Observer) -> None:
        """Tell an observer from now on."""
        self._all.append(observer)

    def remove(self, observer: Observer) -> None:
        """Tell it no longer."""
        self._all.remove(observer)

    def tell(self, kind: str, ids: Ids) -> None:
        """Tell everyone."""
        if not self._all:
            return
        for observer in tuple(self._all):
            try:
                observer(BlockEvent(kind, ids.copy()))  # type: ignore[arg-type]
            except Exception as error:
                self.errors += 1
                self.last_error = error
