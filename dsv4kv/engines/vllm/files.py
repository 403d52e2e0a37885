"""How vLLM names blocks of a prefix, and the files of its file system tier.

Source: vLLM 0.33.0, ``v1/kv_offload/file_mapper.py``, ``v1/core/kv_cache_utils.py``,
``utils/hashing.py``, ``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

HASH_TOKENS = 4
"""Of V4: what the smallest of its groups has in a block."""
SEED = "vllm-none-hash"
"""Without ``PYTHONHASHSEED``, which is the seed where it is set."""
_DIGITS = 12


def block_hashes(
    tokens: Sequence[int], hash_tokens: int = HASH_TOKENS, *, seed: str = SEED
) -> list[bytes]:
    """A hash for every ``hash_tokens`` of a prompt, each over the one before.

    A group with larger blocks takes the hash at a block's end. Servers that ask for another
    ``prefix_caching_hash_algo`` than ``sha256``, or requests with LoRA, images or a salt, have
    others.
    """
    before, hashes = _hash(seed), []
    ids = [int(token) for token in tokens]
    for start in range(0, len(ids) - hash_tokens + 1, hash_tokens):
        before = _hash((before, tuple(ids[start : start + hash_tokens]), None))
        hashes.append(before)
    return hashes


def _hash(value: object) -> bytes:
    return sha256(pickle.dumps(value, protocol=5)).digest()


@dataclass(frozen=True)
class BlockFiles:
    """The files of one rank.

    Attributes:
        fields: What its ``config.json`` says.
        rank: Which; 0 where ranks share files.
    """

    fields: Mapping[str, object]
    rank: int = 0

    @property
    def folder(self) -> str:
        """Folder of the ``config.json``; those of ranks begin like it."""
        text = json.dumps(dict(self.fields), sort_keys=True, separators=(",", ":"))
        safe = str(self.fields["model_name"]).replace("/", "_")
        return f"{safe}_{sha256(text.encode()).hexdigest()[:_DIGITS]}"

    def name(self, block_hash: bytes, group: int) -> str:
        """The file of a group's block, below the tier's ``root_dir``."""
        digits = block_hash.hex()
        fan = f"{digits[:3]}/{digits[3:5]}_g{group}"
        return f"{self.folder}_r{self.rank}/{fan}/{digits}.bin"
