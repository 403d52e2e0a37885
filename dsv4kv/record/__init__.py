"""Recordings of a running server: its KV events, requests and metrics.

A recording is an append-only folder of lines. Whatever identifies a prompt, session or user is
replaced before it is written by keyed numbers, equal where the originals were equal. A data set of
conversations becomes a trace by the same numbers.

Blocks of tokens and names are hashed by BLAKE2b keyed with the recording's secret, so that only
its owner can test a guess. Blocks below ``LEAST_TOKENS`` tokens are never hashed by content, as
single tokens could be found by counting. Ids of chains are made of their blocks' numbers: an id
stands for a block and everything before it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import pack

LEAST_TOKENS = 16
GRAIN_TOKENS = 64
"""Tokens of an id by default, where they divide the server's blocks."""
ROOT = 0
"""The id before a chain's first."""


class Veil:
    """Makes the numbers of one recording; ``grain``: tokens that an id of a prompt stands for."""

    def __init__(self, salt: bytes, grain: int = GRAIN_TOKENS) -> None:
        self.grain = grain
        self._tokens = blake2b(digest_size=8, key=salt, person=b"tokens")
        self._names = blake2b(digest_size=8, key=salt, person=b"names")

    def name(self, text: object) -> int:
        """A number for a session, a request's id, an adapter, a server's own hash of a block."""
        found = self._names.copy()
        found.update(repr(text).encode("utf-8", "surrogatepass"))
        return _number(found.digest())

    def content(self, tokens: Sequence[int], grain: int, extra: object = None) -> list[int]:
        """A number for every full ``grain`` of tokens, without what comes before; ``TypeError``.

        ``extra``: what else distinguishes blocks of equal tokens: an adapter, an image, a tenant.
        """
        start = self._tokens
        if extra is not None:
            start = start.copy()
            start.update(repr(extra).encode("utf-8", "surrogatepass"))
        try:
            packed = array("q", tokens).tobytes()
        except OverflowError:  # no server has such tokens; the row is kept
            packed = array("Q", (token % 2**64 for token in tokens)).tobytes()
        step = grain * 8
        numbers = []
        for begin in range(0, len(packed) - step + 1, step):
            found = start.copy()
            found.update(packed[begin : begin + step])
            numbers.append(_number(found.digest()))
        return numbers

    def prompt(self, tokens: Sequence[int], extra: object = None) -> list[int]:
        """Ids of a prompt's full blocks of ``grain`` tokens, and of those before each."""
        return list(chained(self.content(tokens, self.grain, extra)))


def chained(contents: Iterable[int], before: int = ROOT) -> Iterator[int]:
    """An id for every block and everything before it."""
    for content in contents:
        before = _number(blake2b(pack("<qq", before, content), digest_size=8).digest())
        yield before


def _number(digest: bytes) -> int:
    """Of 63 bits: no reader takes it for a negative one."""
    return int.from_bytes(digest, "little") >> 1
