"""Tiers on top of each other: one question, one answer, whichever tier has it.

Of a name there is one digest. Whatever is read is compared with the digest that it must have, and
what differs is deleted, so that it is not found again.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import RLock

import numpy as np

from dsv4kv.tiers.prefixes import digest
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.lanes import aligned_rows
from dsv4kv.tiers.tier import Node, Tier

_READ_BYTES = 32 << 20  # at a time: enough for many threads of a store, little of memory
_REMEMBERED = 1 << 20  # digests; those forgotten are read again


@dataclass(frozen=True)
class Wanted:
    """Objects to be read.

    Attributes:
        names: Theirs.
        digests: That they must have.
        nodes: That they belong to.
        into: Takes their bytes.
    """

    names: Sequence[str]
    digests: Sequence[bytes]
    nodes: Sequence[Node]
    into: Sequence[Bytes]


class Stack:
    """Tiers, the fastest first.

    Attributes:
        tiers: The tiers.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        """What one tier gives up may go to the next."""
        self.tiers = tuple(tiers)
        self._digests: OrderedDict[str, bytes] = OrderedDict()  # of what went through, by name
        self._lock = RLock()
        for above, below in pairwise(self.tiers):
            above.below = below

    @contextmanager
    def serving(self, keys: Sequence[str]) -> Iterator[None]:
        """One request's turn; its path stays where it is."""
        with self._lock, ExitStack() as stack:
            for tier in self.tiers:
                stack.enter_context(tier.serving(keys))
            yield

    def exists(self, names: Sequence[str], tiers: Sequence[Tier]) -> Found:
        """Which objects are in one of some tiers."""
        found = np.zeros(len(names), dtype=np.bool_)
        for tier in tiers:
            if not found.any():  # most often the first tier has all
                found |= tier.exists(names)
            elif not found.all():
                left = np.flatnonzero(~found).tolist()
                found[left] = tier.exists([names[i] for i in left])
        return found

    def read(self, wanted: Wanted, tiers: Sequence[Tier]) -> bool:
        """Read objects from the first tier that has each as it was stored; False if one is not."""
        left = list(range(len(wanted.names)))
        for tier in tiers:
            if left:
                left = self._read_from(tier, wanted, left)
        return not left

    def _read_from(self, tier: Tier, wanted: Wanted, some: list[int]) -> list[int]:
        """Read some objects from one tier; returns those that it has not, or not rightly.

        One that is there and cannot be read has another length than it must.
        """
        names = [wanted.names[i] for i in some]
        found = tier.get(names, [wanted.into[i] for i in some])
        left = list[int]()
        for i, there in zip(some, found.tolist(), strict=True):
            if there and digest(wanted.into[i]) == wanted.digests[i]:
                self._remember(wanted.names[i], wanted.digests[i])
                tier.totals.read += wanted.into[i].nbytes
            else:
                left.append(i)
        still_there = tier.exists([wanted.names[i] for i in left]).tolist() if left else []
        for i, damaged in zip(left, still_there, strict=True):
            if damaged:
                self._digests.pop(wanted.names[i], None)
            tier.lose(wanted.nodes[i], damaged=damaged)
        return left

    def offer(self, nodes: Sequence[Node], data: Sequence[Sequence[Bytes]]) -> None:
        """Let every tier write what it is due: a use of these nodes, whose bytes are at hand."""
        self.write(nodes, data, self.wanted(nodes, leaving=False))

    def wanted(self, nodes: Sequence[Node], *, leaving: bool) -> list[list[bool]]:
        """Which nodes each tier is to be given."""
        return [tier.wanted(nodes, leaving=leaving) for tier in self.tiers]

    def write(
        self,
        nodes: Sequence[Node],
        data: Sequence[Sequence[Bytes]],
        wanted: Sequence[Sequence[bool]],
    ) -> None:
        """Give tiers the nodes they want, unless their bits are not those kept elsewhere."""
        some = [
            i
            for i, (node, parts) in enumerate(zip(nodes, data, strict=True))
            if any(wants[i] for wants in wanted) and self._agrees(node, parts)
        ]
        for tier, wants in zip(self.tiers, wanted, strict=True):
            given = [i for i in some if wants[i]]
            if given:
                tier.keep([nodes[i] for i in given], [data[i] for i in given])

    def learn(
        self, names: Sequence[str], size: int, own: Mapping[str, Bytes]
    ) -> list[bytes] | None:
        """Digests of objects as they are kept, or will be; None if one is nowhere.

        What another process stored is read.

        Args:
            names: Of the objects.
            size: Of each, in bytes.
            own: Those that are about to be written.
        """
        known = {name: self._digests[name] for name in names if name in self._digests}
        known |= {name: digest(own[name]) for name in names if name in own and name not in known}
        strange = [name for name in names if name not in known]
        each = max(1, _READ_BYTES // size)
        room = aligned_rows(min(each, len(strange)), size)
        for at in range(0, len(strange), each):
            read = self._read_strange(strange[at : at + each], room)
            if read is None:
                return None
            known |= read
        return [known[name] for name in names]

    def _read_strange(self, names: Sequence[str], room: Bytes) -> dict[str, bytes] | None:
        """Digests of objects that did not go through here; None if one is nowhere."""
        left = list(range(len(names)))
        for tier in self.tiers:
            if left:
                found = tier.get([names[i] for i in left], [room[i] for i in left])
                left = [i for i, there in zip(left, found.tolist(), strict=True) if not there]
        if left:
            return None
        read = {name: digest(each) for name, each in zip(names, room, strict=False)}
        for name, value in read.items():
            self._remember(name, value)
        return read

    def _agrees(self, node: Node, data: Sequence[Bytes]) -> bool:
        """Whether a node has the bits of what is kept under its names, if anything is."""
        found = dict(zip(node.names, map(digest, data), strict=True))
        other = [name for name, each in found.items() if self._digests.get(name, each) != each]
        if other and self.exists(other, self.tiers).any():
            return False
        for name, each in found.items():
            self._remember(name, each)
        return True

    def _remember(self, name: str, value: bytes) -> None:
        self._digests[name] = value
        if len(self._digests) > _REMEMBERED:
            self._digests.popitem(last=False)
