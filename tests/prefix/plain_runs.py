"""A prefix-closed cache of runs in the plainest way: every leaf is looked at."""

from collections.abc import Sequence
from typing import Any


class Piece:
    """Blocks stored together and used together ever since."""

    def __init__(self, ids: list[int], above: "Piece | None") -> None:
        self.ids, self.above = ids, above
        self.below: list[Piece] = []
        self.uses = self.queue = 0
        self.stamp: Any = 0


class PlainRuns:
    """A prefix-closed cache of pieces; a subclass says which leaf goes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.root = Piece([], None)
        self.clock = self.hit = 0
        self.wanted: int | None = None

    def pieces(self) -> list[Piece]:
        found, at = [self.root], 0
        while at < len(found):
            found += found[at].below
            at += 1
        return found[1:]

    def size(self, queue: int | None = None) -> int:
        return sum(len(p.ids) for p in self.pieces() if queue is None or p.queue == queue)

    def request(self, chain: Sequence[int]) -> None:
        self.clock += 1
        path = self.walk(list(chain))
        hit = sum(len(piece.ids) for piece in path)
        self.hit += hit
        for piece in path:
            self.use(piece)
        missing = list(chain[hit:])
        self.wanted = missing[0] if missing else None
        if missing:
            self.miss(missing[0])
        self.make_room(self.size() + len(missing) - self.capacity, path)
        self.clock += 1
        if missing:
            above = path[-1] if path else self.root
            new = Piece(missing, above)
            self.store(new)
            above.below.append(new)

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
        lower.uses, lower.queue, lower.stamp = piece.uses, piece.queue, piece.stamp
        lower.below = piece.below
        for further in lower.below:
            further.above = lower
        piece.ids, piece.below = piece.ids[:size], [lower]

    def make_room(self, count: int, kept: list[Piece]) -> None:
        while count > 0:
            leaves = [p for p in self.pieces() if not p.below and p not in kept]
            piece = self.choose(leaves)
            going = piece.ids[-count:]
            piece.ids = piece.ids[: len(piece.ids) - len(going)]
            count -= len(going)
            if not piece.ids:
                assert piece.above is not None
                piece.above.below.remove(piece)
            self.gone(piece, going)

    def miss(self, id_: int) -> None: ...
    def use(self, piece: Piece) -> None: ...
    def again(self, piece: Piece) -> None: ...
    def store(self, piece: Piece) -> None: ...
    def choose(self, leaves: list[Piece]) -> Piece:
        raise NotImplementedError

    def gone(self, piece: Piece, ids: list[int]) -> None: ...
