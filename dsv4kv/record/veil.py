"""What must not leave, as numbers that are equal where it was equal.

Tokens are replaced block by block, names one by one, by keyed BLAKE2b with the recording's secret.
Who has the secret can test a guess; who does not cannot. Blocks below ``LEAST_TOKENS`` tokens are
never hashed by their content: a number for every token would be a cipher that counting breaks.

Ids of chains are made of the numbers of their blocks alone, so they need no secret: an id stands
for a block and everything before it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import pack

LEAST_TOKENS = 16
GRAIN_TOKENS = 64
"""What an id of a recording stands for by default, where the server's blocks can be cut so."""
ROOT = 0
"""The id before a chain's first."""


class Veil:
    """Makes the numbers of one recording.

    Attributes:
        grain: Tokens that an id of a prompt stands for.
    """

    def __init__(self, salt: bytes, grain: int = GRAIN_TOKENS) -> None:
        self.grain = grain
        self._tokens = blake2b(digest_size=8, key=salt, person=b"tokens")
        self._names = blake2b(digest_size=8, key=salt, person=b"names")

    def name(self, text: str | bytes | int) -> int:
        """A number for a session, a request's id, an adapter, a server's own hash of a block."""
        found = self._names.copy()
        found.update(repr(text).encode("utf-8", "surrogatepass"))
        return _number(found.digest())

    def content(self, tokens: Sequence[int], grain: int, extra: object = None) -> list[int]:
        """A number for every full ``grain`` of tokens, without what comes before.

        ``extra``: what else distinguishes blocks of equal tokens: an adapter, an image, a tenant.

        Raises:
            TypeError: They are no tokens.
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

    def grain_of(self, block_tokens: int) -> int:
        """Tokens that one number of a server's block stands for."""
        return block_tokens if block_tokens % self.grain else self.grain

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
