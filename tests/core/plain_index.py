"""A prefix index told plainly: what is cached for every prefix, who holds it, what goes next."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any


class Piece:
    """Blocks stored together and used together ever since."""

    def __init__(self, ids: list[int], above: "Piece | None") -> None:
        self.ids, self.above = ids, above
        self.below: list[Piece] = []
        self.stamp = 0  # when it was used last


class PlainRuns:
    """A prefix-closed cache of pieces; the leaf that was used longest ago goes first."""

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
        lower.stamp = piece.stamp
        lower.below = piece.below
        for further in lower.below:
            further.above = lower
        piece.ids, piece.below = piece.ids[:size], [lower]

    def use(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            piece.stamp = self.clock


class PlainIndex:
    """Keys are whole prefixes, so that equal keys are one place; each has the block it is in."""

    def __init__(self) -> None:
        self.rules = PlainRuns()
        self.block_of: dict[Any, int] = {}
        self.leases: dict[Hashable, list[Any]] = {}

    def match(self, chain: Sequence[Any]) -> list[Any]:
        """The part of a chain that is cached."""
        return [key for key in chain if key in self.block_of]

    def pin(self, owner: Hashable, chain: Sequence[Any]) -> None:
        rules = self.rules
        rules.clock += 1
        found = self.match(chain)
        rules.use(rules.walk(list(chain)))
        self.leases[owner] = found

    def insert(self, owner: Hashable, chain: Sequence[Any], blocks: Sequence[int]) -> list[int]:
        """Store a chain that its owner pinned, a block for each key; returns those taken over."""
        rules, found = self.rules, self.match(chain)
        rules.clock += 1
        path = rules.walk(list(chain))
        rules.use(path)
        self.leases[owner] = list(chain)
        above, new = path[-1] if path else rules.root, chain[len(found) :]
        if not new:
            return []
        self.block_of |= dict(zip(new, blocks[len(found) :], strict=False))
        piece = Piece(list(new), above)
        rules.use([piece])
        above.below.append(piece)
        return self.own(piece)

    def release(self, owner: Hashable) -> None:
        del self.leases[owner]

    def evict(self, count: int) -> Iterator[int]:
        """Give up blocks from the ends of the pieces that go first."""
        while count:
            piece = min(self.free_leaves(), key=lambda leaf: leaf.stamp)
            own = self.own(piece)
            going = piece.ids
            if len(own) > count:
                own = own[-count:]
                going = [key for key in piece.ids if self.block_of[key] in own]
            piece.ids = piece.ids[: len(piece.ids) - len(going)]
            if not piece.ids:
                assert piece.above is not None
                piece.above.below.remove(piece)
            for key in going:
                del self.block_of[key]
            count -= len(own)
            yield from own

    def free_leaves(self) -> list[Piece]:
        """Pieces that nothing follows and nobody holds."""
        held = {id(piece) for chain in self.leases.values() for piece in self.rules.walk(chain)}
        return [p for p in self.rules.pieces() if not p.below and id(p) not in held]

    def own(self, piece: Piece) -> list[int]:
        """Blocks of a piece in order, without the one that a piece above holds too."""
        blocks = list(dict.fromkeys(self.block_of[key] for key in piece.ids))
        above = piece.above
        while above is not None:
            if blocks[:1] == [self.block_of[key] for key in above.ids[-1:]]:
                return blocks[1:]
            above = above.above
        return blocks

    def held(self) -> list[int]:
        """Every block as often as it is held."""
        return [block for piece in self.rules.pieces() for block in self.own(piece)]

    def pinned(self) -> int:
        """Blocks that leases hold."""
        held = {id(p): p for chain in self.leases.values() for p in self.rules.walk(chain)}
        return sum(len(self.own(piece)) for piece in held.values())
