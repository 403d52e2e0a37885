"""How HiCache names pages of a prefix, and its files.

Source: SGLang 0.5.23, ``mem_cache/cpp_utils/hash_binding.cpp``, ``mem_cache/utils.py``,
``mem_cache/hicache_storage.py`` (``HiCacheFile``).
"""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import ArrayLike

PAGE_TOKENS = 256
ANCHOR = "kv"
"""The pool that says which pages there are; of V4 it holds nothing, and its files are empty."""


def page_digests(
    tokens: ArrayLike, page_tokens: int = PAGE_TOKENS, before: bytes = b""
) -> list[bytes]:
    """A digest for every whole page of a prompt, each over the one before and the page's tokens.

    Args:
        tokens: int[n], ids of 32 bits.
        page_tokens: Of one page.
        before: Digest of the page before the first, or ``namespace_digest``.
    """
    ids = np.ascontiguousarray(tokens, dtype="<u4")
    digests = []
    for page in ids[: len(ids) // page_tokens * page_tokens].reshape(-1, page_tokens):
        before = sha256(before + page.tobytes()).digest()
        digests.append(before)
    return digests


def namespace_digest(extra_key: str | None = None, cache_salt: str | None = None) -> bytes:
    """What comes before the first page of requests with such fields; nothing without them."""
    if extra_key is None and cache_salt is None:
        return b""
    named = b"sglang-cache-namespace-v1"
    for part in (extra_key, cache_salt):
        text = b"" if part is None else part.encode()
        named += b"\0" if part is None else b"\1" + len(text).to_bytes(8, "little") + text
    return sha256(named).digest()


def event_id(digest: bytes) -> int:
    """What KV events call a page: the first eight bytes, signed."""
    return int.from_bytes(digest[:8], "big", signed=True)


@dataclass(frozen=True)
class PageFiles:
    """The files of one pipeline stage; tensor parallel ranks share them.

    Attributes:
        model: Name as the server was given it.
        stages: Pipeline stages.
        stage: Which of them.
        context_ranks: Ranks that share the tokens of a prompt (context parallelism).
        context_rank: Which of them.
    """

    model: str
    stages: int = 1
    stage: int = 0
    context_ranks: int = 1
    context_rank: int = 0

    def name(self, digest: bytes, pool: str = ANCHOR) -> str:
        """The file of a page in a pool, by the pool's name in ``engines.sglang.host``."""
        part = "" if pool == ANCHOR else f".{pool}"
        shard = f"_{self.stages}_{self.stage}" if self.stages > 1 else ""
        if self.context_ranks > 1:
            shard += f"_cp{self.context_rank}_{self.context_ranks}"
        return f"{digest.hex()}{part}_{self.model.replace('/', '-')}{shard}.bin"
