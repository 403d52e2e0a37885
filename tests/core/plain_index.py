"""A prefix index told plainly: what is cached for every prefix, who holds it, what goes next."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tests.core.plain_policies import PLAIN, Piece


class PlainIndex:
    """Keys are whole prefixes, so that equal keys are one place; each has the block it is in."""

    def __init__(self, policy: str) -> None:
        self.rules = PLAIN[policy]()
        self.block_of: dict[Any, int] = {}
        self.leases: dict[Hashable, list[Any]] = {}

    def match(self, chain: Sequence[Any]) -> list[Any]:
        """The part of a chain that is cached."""
        return [key for key in chain if key in self.block_of]

    def pin(self, owner: Hashable, chain: Sequence[Any]) -> None:
        rules = self.rules
        rules.clock += 1
        found = self.match(chain)
        for piece in rules.walk(list(chain)):
            rules.use(piece)
        self.leases[owner] = found

    def insert(
        self, owner: Hashable, chain: Sequence[Any], blocks: Sequence[int], short: int = 0
    ) -> list[int]:
        """Store a chain with a block for each key; returns those that are taken over.

        Args:
            owner: Who pinned it before; without, it is one more use and nobody holds it.
            chain: The keys.
            blocks: Their blocks.
            short: How many there is no room for, unless others go; the chain itself does not.
        """
        rules, found = self.rules, self.match(chain)
        rules.clock += 1
        path = rules.walk(list(chain))
        for piece in path:
            (rules.again if owner in self.leases else rules.use)(piece)
        if short > 0:
            chain = chain[: len(chain) - short + self.make_room(short, found)]
        above = path[-1] if path else rules.root
        taken = self.store(above, chain[len(found) :], blocks[len(found) :])
        if owner in self.leases:
            self.leases[owner] = list(chain)
        return taken

    def store(self, above: Piece, new: Sequence[Any], blocks: Sequence[int]) -> list[int]:
        """Hang new keys and their blocks below a piece."""
        if not new:
            return []
        self.block_of |= dict(zip(new, blocks, strict=False))
        piece = Piece(list(new), above)
        self.rules.store(piece)
        above.below.append(piece)
        return self.own(piece)

    def make_room(self, short: int, kept: list[Any]) -> int:
        """Evict what may go, ``short`` at most; returns how many went."""
        self.leases[self] = kept
        count = min(short, len(self.held()) - self.pinned())
        assert len(list(self.evict(count))) == count
        del self.leases[self]
        return count

    def release(self, owner: Hashable) -> None:
        del self.leases[owner]

    def evict(self, count: int) -> Iterator[int]:
        """Give up blocks from the ends of the pieces that the policy chooses."""
        rules = self.rules
        while count:
            piece = rules.choose(self.free_leaves())
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
