"""LRU, FIFO, LFU, aged LFU and SIEVE over plain runs, beside ``plain_policies``."""

from tests.prefix.plain_policies import PLAIN, oldest
from tests.prefix.plain_runs import Piece, PlainRuns


class PlainFIFO(PlainRuns):
    def store(self, piece: Piece) -> None:
        piece.stamp = self.clock

    def choose(self, leaves: list[Piece]) -> Piece:
        return oldest(leaves)


class PlainLRU(PlainFIFO):
    def use(self, piece: Piece) -> None:
        piece.stamp = self.clock

    again = use


class PlainLFU(PlainFIFO):
    def use(self, piece: Piece) -> None:
        piece.uses += 1
        piece.stamp = (piece.uses, self.clock)

    store = use


class PlainAgedLFU(PlainFIFO):
    age = 0.0

    def use(self, piece: Piece) -> None:
        piece.uses += 1
        piece.stamp = (self.age + piece.uses, self.clock)

    store = use

    def gone(self, piece: Piece, ids: list[int]) -> None:
        self.age = max(self.age, piece.stamp[0])


class PlainSIEVE(PlainFIFO):
    """The hand is the age of the piece it stands at; after the newest it starts over."""

    hand = 0

    def use(self, piece: Piece) -> None:
        piece.uses = 1

    def choose(self, leaves: list[Piece]) -> Piece:
        in_order = sorted(leaves, key=lambda piece: piece.stamp)
        for piece in [p for p in in_order if p.stamp >= self.hand] + in_order + in_order:
            if not piece.uses:
                self.hand = piece.stamp
                return piece
            piece.uses = 0
        raise AssertionError("every piece was passed twice")


RULES: dict[str, type[PlainRuns]] = PLAIN | {
    "lru": PlainLRU,
    "fifo": PlainFIFO,
    "lfu": PlainLFU,
    "lfu-aged": PlainAgedLFU,
    "sieve": PlainSIEVE,
}
"""Every online policy, by its name in the registry."""
