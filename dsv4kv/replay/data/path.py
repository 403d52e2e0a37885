"""What a scheduler tells those who move the data of its steps, when it has decided them."""

from collections.abc import Sequence
from typing import Protocol

from dsv4kv.replay.cost import Span
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.served import Served


class DataPath(Protocol):
    """Does what the scheduler has decided; decides nothing itself.

    Whoever is told can rely on the blocks that a call needs being free by then.
    """

    def begin(self, served: Served) -> None:
        """A request has a slot and goes on behind what was found of its prompt."""

    def compute(self, served: Served, chunk: Span) -> None:
        """A step computes a chunk of a request's prompt."""

    def commit(self, served: Served) -> None:
        """What a request has computed may be found, as far as the prefix index took it."""

    def decode(self, decoders: Decoders) -> None:
        """A step takes requests further: ``decoders`` says where they are after it."""

    def end(self, served: Served) -> None:
        """A request gives up its slot and all it holds."""

    def forget(self, keys: Sequence[int]) -> None:
        """Shared blocks were evicted, and the checkpoints behind them."""


class NoData:
    """Blocks are counted and nothing is moved."""

    def begin(self, served: Served) -> None:
        """Nothing."""

    def compute(self, served: Served, chunk: Span) -> None:
        """Nothing."""

    def commit(self, served: Served) -> None:
        """Nothing."""

    def decode(self, decoders: Decoders) -> None:
        """Nothing."""

    def end(self, served: Served) -> None:
        """Nothing."""

    def forget(self, keys: Sequence[int]) -> None:
        """Nothing."""


NO_DATA = NoData()
