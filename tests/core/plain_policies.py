"""Every online policy over plain runs, of which every leaf is looked at."""

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
        self.clock = 0

    def pieces(self) -> list[Piece]:
        found, at = [self.root], 0
        while at < len(found):
            found += found[at].below
            at += 1
        return found[1:]

    def size(self, queue: int | None = None) -> int:
        return sum(len(p.ids) for p in self.pieces() if queue is None or p.queue == queue)

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

    def use(self, piece: Piece) -> None: ...
    def again(self, piece: Piece) -> None: ...
    def store(self, piece: Piece) -> None: ...
    def choose(self, leaves: list[Piece]) -> Piece:
        raise NotImplementedError

    def gone(self, piece: Piece, ids: list[int]) -> None: ...


class Memory:
    """First ids of pieces that were evicted, with their sizes, oldest first."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return sum(size for _, size in self.pieces)

    def __contains__(self, id_: int | None) -> bool:
        return any(known == id_ for known, _ in self.pieces)

    def forget(self, id_: int) -> None:
        self.pieces = [piece for piece in self.pieces if piece[0] != id_]

    def remember(self, id_: int, size: int) -> None:
        self.forget(id_)
        self.pieces.append((id_, size))

    def cut(self, size: int) -> None:
        while self.size > max(0, size):
            self.pieces.pop(0)


def oldest(pieces: list[Piece]) -> Piece:
    return min(pieces, key=lambda piece: piece.stamp)


class PlainS3FIFO(PlainRuns):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.small = capacity // 10
        self.memory, self.full = Memory(), False

    def use(self, piece: Piece) -> None:
        piece.uses = min(3, piece.uses + 1)

    def store(self, piece: Piece) -> None:
        known = piece.ids[0] in self.memory
        self.memory.forget(piece.ids[0])
        early = not self.full and self.size(0) + len(piece.ids) > self.small
        self.clock += 1
        piece.queue, piece.stamp = int(known or early), self.clock

    def choose(self, leaves: list[Piece]) -> Piece:
        self.full = True
        while True:
            small, main = ([p for p in leaves if p.queue == queue] for queue in (0, 1))
            if main and (not small or self.size(1) > self.capacity - self.small):
                piece = oldest(main)
                if not piece.uses:
                    return piece
                piece.uses -= 1
            else:
                piece = oldest(small)
                if piece.uses < 2:
                    return piece
                piece.uses, piece.queue = 0, 1
            self.clock += 1
            piece.stamp = self.clock

    def gone(self, piece: Piece, ids: list[int]) -> None:
        if piece.queue == 0:
            self.memory.remember(ids[0], len(ids))
            self.memory.cut(self.capacity - self.small)


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


PLAIN: dict[str, type[PlainRuns]] = {
    "s3fifo": PlainS3FIFO,
    "lru": PlainLRU,
    "fifo": PlainFIFO,
    "lfu": PlainLFU,
    "sieve": PlainSIEVE,
}
"""By name in the registry."""
