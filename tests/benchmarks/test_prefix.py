"""Prefix indexes: long prompts in and out, hashing, and the whole cycle over a real trace."""

import gc
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from dsv4kv.cache.blocks import BlockPool
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.index import HASHES, BlockHasher
from dsv4kv.prefix.radix import PrefixCacheManager, RadixIndex
from dsv4kv.prefix.tree import Ids
from tests.benchmarks.medians import PLAIN, Measure, Remark
from tests.systems.plain import PlainRadix, plain_hashes

PROMPTS, LENGTH = 16, 32_768
TOKENS = PROMPTS * LENGTH
TRACE = Path(__file__).parents[3] / "shared/data/mooncake/conversation_trace.jsonl"
POOL_TOKENS = 9_358_848


@pytest.fixture(scope="module")
def prompts() -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 129_280, LENGTH).astype(np.int32) for _ in range(PROMPTS)]


Prompts = list[np.ndarray[tuple[int], np.dtype[np.int32]]]


def rate(remark: Remark, what: str, median_ns: float | None) -> None:
    if median_ns is not None:
        remark(f"{what}: {TOKENS / median_ns * 1e3:,.1f} M tokens/s")


class Rows:
    """A prefix cache over rows."""

    def __init__(self) -> None:
        self.index = PrefixCacheManager(10**9)

    def fill(self, prompts: Prompts) -> None:
        self.index = PrefixCacheManager(10**9)
        for slot, prompt in enumerate(prompts):
            self.index.insert_row(prompt, slot, 1)

    def find(self, prompts: Prompts) -> int:
        return sum(self.index.find(prompt).length for prompt in prompts)


class Paged:
    """A radix index over blocks of 128 tokens."""

    def __init__(self) -> None:
        self.index = RadixIndex(128)

    def fill(self, prompts: Prompts) -> None:
        self.index = RadixIndex(128)
        for prompt in prompts:
            self.index.insert(prompt, np.arange(LENGTH // 128))

    def find(self, prompts: Prompts) -> int:
        found = 0
        for prompt in prompts:
            lease = self.index.pin(prompt)
            found += lease.length
            self.index.release(lease)
        return found


class Plain:
    """The re-statement, given lists as it needs them."""

    def __init__(self) -> None:
        self.index = PlainRadix()

    def fill(self, prompts: Prompts) -> None:
        self.index = PlainRadix()
        for slot, prompt in enumerate(prompts):
            self.index.insert(prompt.tolist(), slot, 1)

    def find(self, prompts: Prompts) -> int:
        return sum(self.index.find(prompt.tolist())[0] for prompt in prompts)


MAKE: dict[str, type[Rows] | type[Paged] | type[Plain]] = {
    "ours, rows": Rows,
    "ours, blocks": Paged,
    PLAIN: Plain,
}
EACH = pytest.mark.parametrize("name", MAKE, ids=["rows", "blocks", "plain"])


@EACH
def test_insert(measure: Measure, remark: Remark, name: str, prompts: Prompts) -> None:
    scene = MAKE[name]()
    rounds = 3 if name == PLAIN else 30
    group = f"radix: insert {PROMPTS} prompts of {LENGTH:,} tokens"
    median_ns = measure(group, name, lambda: scene.fill(prompts), rounds=rounds)
    rate(remark, f"radix insert, {name}", median_ns)


@EACH
def test_find(measure: Measure, remark: Remark, name: str, prompts: Prompts) -> None:
    scene = MAKE[name]()
    scene.fill(prompts)
    rounds = 3 if name == PLAIN else 30
    group = f"radix: find {PROMPTS} prompts of {LENGTH:,} tokens"
    median_ns = measure(group, name, lambda: scene.find(prompts), rounds=rounds)
    rate(remark, f"radix find, {name}", median_ns)
    assert scene.find(prompts) == TOKENS


@EACH
def test_memory(measure: Measure, remark: Remark, name: str, prompts: Prompts) -> None:
    scene = MAKE[name]()
    gc.collect()
    tracemalloc.start()
    scene.fill(prompts[:4])
    held = tracemalloc.get_traced_memory()[0] / (4 * LENGTH)
    tracemalloc.stop()
    remark(f"radix memory, {name}: {held:.2f} B per cached token")
    measure("radix: fill 4 prompts", name, lambda: scene.fill(prompts[:4]), rounds=1)


@pytest.mark.parametrize("name", [*HASHES, PLAIN], ids=[*HASHES, "plain"])
def test_hashing(measure: Measure, remark: Remark, name: str, prompts: Prompts) -> None:
    hasher = BlockHasher(128, name) if name != PLAIN else None
    tensors = [torch.from_numpy(prompt).long() for prompt in prompts]

    def run() -> None:
        for prompt, tensor in zip(prompts, tensors, strict=True):
            hasher.digest(prompt) if hasher else plain_hashes(tensor, 128)

    group = f"hashing {PROMPTS} prompts of {LENGTH:,} tokens in blocks of 128"
    rate(remark, f"hashing, {name}", measure(group, name, run, rounds=10))


def read_chains(block_tokens: int) -> list[Ids]:
    """Full blocks of every request as chained ids: those of the trace stand for 512 tokens."""
    parts = np.arange(512 // block_tokens)
    chains = []
    with TRACE.open() as file:
        for line in file:
            request = json.loads(line)
            ids = np.array(request["hash_ids"], dtype=np.int64)[:, None] * len(parts) + parts
            chains.append(ids.ravel()[: request["input_length"] // block_tokens])
    return chains


def cycle(chains: list[Ids], num_blocks: int) -> int:
    """Match, evict, allocate, insert, release, for every request in turn; blocks that hit.

    A request's blocks become the index's when they are stored, and are pinned while it runs.
    """
    index, allocator = BlockHashIndex(), BlockPool(num_blocks)
    hit = 0
    for chain in chains:
        lease = index.pin(chain)
        missing = len(chain) - lease.length
        short = missing - allocator.num_free
        if short > 0:
            allocator.release(index.evict(short))
        index.extend(lease, chain[lease.length :], allocator.acquire(missing))
        hit += lease.values.size
        index.release(lease)
    return hit


@pytest.mark.skipif(not TRACE.exists(), reason="the Mooncake trace is not here")
@pytest.mark.parametrize("block_tokens", [64, 256])
def test_whole_cycle(measure: Measure, remark: Remark, block_tokens: int) -> None:
    chains, num_blocks = read_chains(block_tokens), POOL_TOKENS // block_tokens
    group = f"prefix cycle of {len(chains):,} requests, blocks of {block_tokens} tokens"
    measure(group, "ours", lambda: cycle(chains, num_blocks), rounds=5)
    tracemalloc.start()
    hit = cycle(chains, num_blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    remark(
        f"prefix cycle, {block_tokens}: {hit * block_tokens:,} tokens hit, "
        f"{peak / 1e6:.1f} MB at most"
    )
