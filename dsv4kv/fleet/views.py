"""What a router is asked, what it knows of every replica, and what it remembers of its own."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice


@dataclass(frozen=True)
class Asked:
    """A request, as a router sees it.

    Attributes:
        number: Place in the trace.
        now_s: When it comes.
        input_tokens: Its prompt.
        session: The conversation that it belongs to.
        ids: What the trace calls the whole blocks of its prompt; equal ids mean equal history.
        id_tokens: Tokens that an id stands for; 0 where there are none.
    """

    number: int
    now_s: float
    input_tokens: int
    session: int = 0
    ids: Sequence[int] = ()
    id_tokens: int = 0

    @cached_property
    def blocks(self) -> list[int]:
        """The ids, as a list."""
        whole = self.input_tokens // self.id_tokens if self.id_tokens else 0
        return list(islice(self.ids, whole))


@dataclass(slots=True)
class View:
    """What a router knows of a replica when a request comes.

    Attributes:
        device_tokens: Leading tokens of its prompt that are known to be cached on the GPUs.
        host_tokens: Those behind them, in host memory.
        disk_tokens: Those behind these, on a disk of its own.
        shared_tokens: Those behind ``device_tokens``, in a tier that all replicas share.
        prefill_tokens: Prompt tokens to compute, of the requests that it was given.
        decode_blocks: Blocks in use by the requests that it was given, and by this one.
        requests: Requests that it was given and that have not ended.
        waiting: Of these, without a slot, as it last said.
        running: Of these, with one, as it last said.
        usage: Part of its blocks in use, as it last said.
    """

    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    shared_tokens: int = 0
    prefill_tokens: int = 0
    decode_blocks: int = 0
    requests: int = 0
    waiting: int = 0
    running: int = 0
    usage: float = 0.0


def count_leading(blocks: Sequence[int], known: Container[int]) -> int:
    """How many leading blocks are known: none is without those before it."""
    if not len(blocks) or blocks[0] not in known:
        return 0
    return bisect_left(range(len(blocks)), True, key=lambda place: blocks[place] not in known)


class History:
    """What was sent where, and is taken to be cached there: evictions are not known.

    A prompt's blocks are touched last to first, so what was used least recently is never before
    what is kept.
    """

    def __init__(self, replicas: int, ttl_s: float | None = None) -> None:
        """``ttl_s`` is how long a block counts; None for good."""
        self._kept: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(replicas)]
        self._ttl_s = ttl_s

    def matched_tokens(self, asked: Asked, replica: int) -> int:
        """Leading tokens of a prompt that a replica was sent before."""
        blocks, kept = asked.blocks, self._kept[replica]
        oldest_s = -1.0 if self._ttl_s is None else asked.now_s - self._ttl_s

        def is_unknown(place: int) -> bool:
            return kept.get(blocks[place], -2.0) < oldest_s

        found = bisect_left(range(len(blocks)), True, key=is_unknown)
        return found * asked.id_tokens

    def last_used_s(self, asked: Asked, replica: int, tokens: int) -> float:
        """When the last of so many matched tokens was sent there."""
        return self._kept[replica][asked.blocks[tokens // asked.id_tokens - 1]] if tokens else -1.0

    def add(self, asked: Asked, replica: int, most_tokens: int | None = None) -> None:
        """A request is sent somewhere; ``most_tokens`` of its prompt count."""
        kept, count = self._kept[replica], len(asked.blocks)
        if most_tokens is not None:
            count = min(count, most_tokens // max(1, asked.id_tokens))
        for block in reversed(asked.blocks[:count]):
            kept[block] = asked.now_s
            kept.move_to_end(block)

    def shrink(self, most_blocks: int) -> None:
        """Forget of every replica what was used least recently, beyond so many blocks."""
        for kept in self._kept:
            while len(kept) > most_blocks:
                kept.popitem(last=False)


_POINTS = 160  # of a node: as ketama's


class Ring:
    """Consistent hashing: the replica whose point on a ring comes next after a key's.

    Where the points lie depends on the addresses of servers in reality, so who is chosen is
    arbitrary, and that equal keys go to one replica, is not.
    """

    def __init__(self, replicas: int) -> None:
        points = [(_hash(f"{r}-{n}"), r) for r in range(replicas) for n in range(_POINTS)]
        self._points = sorted(points)
        self._places = [point for point, _ in self._points]

    def find(self, key: object) -> int:
        """The replica of a key."""
        place = bisect_left(self._places, _hash(str(key)))
        return self._points[place % len(self._points)][1]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
