"""How prefixes are named: whose cache, after which tokens, and which family.

A name is ``<namespace>/<key>.<family>``. The namespace stands for model, weights, formats and
layout; bytes of another have equal sizes and mean something else. The key is SGLang 0.5.23's page
hash: SHA-256 over the key before, nothing for the first, and the page's tokens as little-endian
32-bit numbers. Of a page that a prefix fills in part, it is taken over the tokens there are.

Next to the objects a resume point has a manifest, written last: what is not in a manifest that is
there does not count. It holds the digest of every object that the prefix needs.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from dsv4kv.bench.tiers.store import Bytes
from dsv4kv.model.families import Family, Kept, families_of
from dsv4kv.model.plan import CachePlan

DIGEST_BYTES = 16
_MAGIC = b"dsv4kv-1"


def page_digests(tokens: ArrayLike, page_tokens: int) -> list[bytes]:
    """A digest for every whole page of a prompt, int[n], each over the one before and its tokens.

    As SGLang 0.5.23 has it, ``mem_cache/cpp_utils/hash_binding.cpp``.
    """
    ids = np.ascontiguousarray(tokens, dtype="<u4")
    before, digests = b"", []
    for page in ids[: len(ids) // page_tokens * page_tokens].reshape(-1, page_tokens):
        before = sha256(before + page.tobytes()).digest()
        digests.append(before)
    return digests


def namespace_of(plan: CachePlan, revision: str) -> str:
    """32 digits for caches whose bytes mean the same: objects of others may have equal sizes.

    ``revision``: of the weights, which fill the same layout with other numbers.
    """
    layout = {
        "config": plan.config.model_dump(mode="json"),
        "families": [asdict(family) for family in families_of(plan)],
        "hadamard": plan.hadamard,
        "rope": plan.rope,
    }
    facts = {"model": plan.config.name, "revision": revision, "layout": layout}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class Prefix:
    """A prompt as tiers know it; ``keys`` are its whole blocks' keys."""

    def __init__(self, namespace: str, tokens: ArrayLike, block_tokens: int) -> None:
        self._tokens = np.ascontiguousarray(tokens, dtype="<u4")
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._digests = [b"", *page_digests(self._tokens, block_tokens)]
        self.keys = [digest.hex() for digest in self._digests[1:]]
        self._stems = [f"{self._namespace}/{key}." for key in self.keys]

    def __len__(self) -> int:
        return len(self._tokens)

    def key(self, tokens: int) -> str:
        """The key of its first tokens."""
        blocks, rest = divmod(tokens, self._block_tokens)
        if not rest:
            return self.keys[blocks - 1] if blocks else ""
        last = self._tokens[blocks * self._block_tokens : tokens].tobytes()
        return sha256(self._digests[blocks] + last).hexdigest()

    def name(self, tokens: int, what: str) -> str:
        """The name of what belongs to its first tokens: an object of a family, or a manifest."""
        return f"{self._namespace}/{self.key(tokens)}.{what}"

    def block_names(self, what: str, blocks: int) -> list[str]:
        """Names of what belongs to the first blocks: objects of a family, or manifests."""
        return [stem + what for stem in self._stems[:blocks]]

    def names(self, family: Family, tokens: int) -> list[str]:
        """Names of the objects of a family that its first ``tokens`` tokens need."""
        count = family.objects(tokens)
        if family.kept is not Kept.PAGES:
            return [self.name(tokens, family.name)] * count
        names = self.block_names(family.name, min(count, tokens // self._block_tokens))
        if len(names) < count:
            names.append(self.name(tokens, family.name))
        return names


def digest(data: Bytes) -> bytes:
    """16 bytes that stand for an object's: made for accidents, at memory speed."""
    return xxhash.xxh3_128_digest(data.data)


@dataclass(frozen=True)
class Manifest:
    """Objects of a prefix."""

    tokens: int  # of the prefix
    digests: dict[str, list[bytes]]
    """Of the objects of every family that it has, by the family's name."""

    def dump(self) -> Bytes:
        """As it is stored."""
        whole = b"".join(each for digests in self.digests.values() for each in digests)
        data = _MAGIC + self.tokens.to_bytes(8, "little") + whole
        return np.frombuffer(data + xxhash.xxh3_128_digest(data), dtype=np.uint8)

    @staticmethod
    def size(families: Iterable[Family], tokens: int) -> int:
        """Bytes of a manifest of these families."""
        objects = sum(family.objects(tokens) for family in families)
        return len(_MAGIC) + 8 + DIGEST_BYTES * (objects + 1)

    @classmethod
    def load(cls, data: Bytes, families: Iterable[Family], tokens: int) -> "Manifest | None":
        """Read what ``dump`` wrote; None if it is another's, or damaged."""
        content, check = data[:-DIGEST_BYTES].tobytes(), data[-DIGEST_BYTES:].tobytes()
        head = _MAGIC + tokens.to_bytes(8, "little")
        if xxhash.xxh3_128_digest(content) != check or not content.startswith(head):
            return None
        places = range(len(head), len(content), DIGEST_BYTES)
        each = (content[at : at + DIGEST_BYTES] for at in places)
        digests = {f.name: [next(each) for _ in range(f.objects(tokens))] for f in families}
        return cls(tokens, digests)


def resume_points(
    pages: Sequence[NDArray[np.bool_]], tails: Sequence[NDArray[np.bool_]], count: int
) -> NDArray[np.int64]:
    """Blocks after which a request can resume: SGLang's ``batch_exists_v2``.

    A family that every page needs allows 1 … first missing; one that is needed at the resume point
    alone allows wherever it is; what all allow is the answer.

    ``pages`` and ``tails``: of ``count`` blocks, whose objects are there, bool[count] for each
    family of pages and each other family.
    """
    allowed = np.ones(count, dtype=np.bool_)
    for found in pages:
        allowed &= np.logical_and.accumulate(found)
    for found in tails:
        allowed &= found
    return np.flatnonzero(allowed) + 1
