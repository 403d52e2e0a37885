"""Every online policy over plain runs, of which every leaf is looked at."""

from typing import Any


class Piece:
    """Blocks stored together and used together ever since."""

    def __init__(self, ids: list[int], above: "Piece | None") -> None:
        self.ids, self.above = ids, above
        self.below: list[Piece] = []
        self.uses = 0
        self.stamp: Any = 0


class PlainRuns:
    """A prefix-closed cache of pieces; a subclass says which leaf goes."""

    def __init__(self) -> None:
        self.root = Piece([], None)
        self.clock = 0

    def pieces(self) -> list[Piece]:
        found, at = [self.root], 0
        while at < len(found):
            found += found[at].below
            at += 1
        return found[1:]

    def walk(self, chain: list[int]) -> list[Piece]:
        """Pieces that the chain runs through; the last one is split where it leaves it."""
        path, piece, at = [], self.root, 0
        while at < len(chain):
            below = [p for p in piece.below if p.ids[0] == chain[at]]
            if not below:
                break
            piece = below[0]
            same = 0
            while same < len(piece.ids) and chain[at + same : at + same + 1] == [piece.ids[same]]:
                same += 1
            if same < len(piece.ids):
                self.split(piece, same)
            path.append(piece)
            at += same
        return path

    def split(self, piece: Piece, size: int) -> None:
        lower = Piece(piece.ids[size:], piece)
        lower.uses, lower.stamp = piece.uses, piece.stamp
        lower.below = piece.below
        for further in lower.below:
            further.above = lower
        piece.ids, piece.below = piece.ids[:size], [lower]

    def use(self, piece: Piece) -> None: ...
    def again(self, piece: Piece) -> None: ...
    def store(self, piece: Piece) -> None: ...
    def choose(self, leaves: list[Piece]) -> Piece:
        raise NotImplementedError


def oldest(pieces: list[Piece]) -> Piece:
    return min(pieces, key=lambda piece: piece.stamp)


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


PLAIN: dict[str, type[PlainRuns]] = {
    "lru": PlainLRU,
    "fifo": PlainFIFO,
    "lfu": PlainLFU,
}
"""By name in the registry."""
