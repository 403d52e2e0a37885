"""Every kernel of states and block tables, asked for what there is and for what there is not."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.model.schema import TableGroup
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.prepare import DeviceTable, plan_completed, plan_prepare, plan_release
from dsv4kv.ops.launches.state import (
    plan_compress_chunk,
    plan_flush,
    plan_state_append,
    split_of,
)
from dsv4kv.ops.spec import VARIANTS
from tests.examples import FULL
from tests.kernels.launches import mixed, of_one_module_a_kernel
from tests.kernels.shim.twin import SANITIZED, run
from tests.kernels.state_twin import dirty_scratch
from tests.kernels.step_scenes import make_step
from tests.ops.samples import (
    fresh_online,
    fresh_ring,
    full_size_compressor,
    poisoned_store,
    random_tokens,
)

CSA, HCA = full_size_compressor("csa"), full_size_compressor("hca")
INDEXER = full_size_compressor("indexer")
MAIN, KEYS = FORMATS["main"]["fp8_ds_mla"], FORMATS["indexer"]["mxfp4"]
FARTHEST = 2**63 - 1
BEYOND = [-1, -2, 3, 4, FARTHEST, -FARTHEST - 1]
SLOTS, ENTRIES = 3, 64


def run_all_sanitized() -> None:
    for launch in of_one_module_a_kernel(launches()):
        run(launch, flags=SANITIZED)
        if launch.kernel == "step_write" or launch.cluster > 1:  # their threads share the most
            for seed in (11, 12, 13) if FULL else (11,):
                run(launch, seed=seed, flags=SANITIZED)


def launches() -> Iterator[Launch]:
    yield from _states(CSA, fresh_ring(CSA, SLOTS, drafts=3), MAIN)
    yield from _states(HCA, fresh_ring(HCA, SLOTS), MAIN)
    if FULL:  # the same kernels with other constants
        yield from _states(HCA, fresh_online(HCA, SLOTS), MAIN)
        yield from _states(INDEXER, fresh_ring(INDEXER, SLOTS), KEYS)
    yield from _steps()
    yield from _tables()


def _states(compressor: Compressor, state: Tensor, entry: EntryFormat) -> Iterator[Launch]:
    m, split = compressor.ratio, split_of(compressor)
    store, tokens = poisoned_store(entry, ENTRIES, 1), random_tokens(compressor, 12, seed=1)
    slots, positions = mixed(12, range(SLOTS), BEYOND, 2), mixed(12, range(3 * m), BEYOND, 3)
    yield plan_state_append(compressor, state, *tokens, slots, positions)
    ends = mixed(12, range(1, 5), BEYOND, 4)
    ends = torch.where((ends > 0) & (ends < 5), ends * m - 1, ends)
    entries = mixed(12, range(ENTRIES), [ENTRIES, *BEYOND[-2:]], 5)
    scratch = dirty_scratch(compressor, 12)
    for variant in VARIANTS["flush"]:
        shared: dict[str, Any] = {"variant": variant, "split": split, "scratch": scratch}
        yield from plan_flush(compressor, state, slots, ends, store, entries, **shared)
        for numbers in _chunks(m):
            kv, score = random_tokens(compressor, m + 3, seed=6)
            chunk = torch.tensor(numbers)
            rows = (kv, score, chunk, store, entries[:2])
            yield from plan_compress_chunk(compressor, state, *rows, **shared)


def _chunks(ratio: int) -> Iterator[list[int]]:
    """Slot, start and tokens of chunks in buffers of ratio + 3 tokens."""
    yield from ([0, 0, ratio], [2, ratio - 1, ratio + 3], [1, 2**62, 5])
    for bad in (-1, SLOTS, FARTHEST, -FARTHEST - 1):
        yield from ([bad, 1, ratio], [1, bad, ratio], [1, 3, bad])


def _steps() -> Iterator[Launch]:
    """Steps as they are, and with slots, positions and entries that cannot be."""
    several = [(2, 130, 4), (-1, 8, 4), (0, 0, 4), (5, 126, 4)]
    single = [(2, 131, 1), (0, 127, 1), (-1, 7, 1), (1, 6, 1)]
    for step in (
        make_step(("csa", "indexer"), several, drafts=3),
        make_step(("hca",), several, drafts=3),
        make_step(("hca",), single, online=True),
    ):
        yield step.plan()
        count, slots = len(step.slots), len(step.ring.pages)
        parts = tuple(
            replace(part, entries=mixed(count, range(ENTRIES), [ENTRIES, *BEYOND[-2:]], 5))
            for part in step.parts
        )
        positions = mixed(count, range(3 * 128), BEYOND, 3)
        wild = mixed(count, range(slots), [slots, *BEYOND[-2:], -1], 2)
        yield replace(step, slots=wild, positions=positions, parts=parts).plan()


def _tables() -> Iterator[Launch]:
    group = TableGroup("csa", ratio=4, entries_per_block=32, layers=(2, 3), lanes=2)
    table = DeviceTable.allocate(group, 9, SLOTS, 1000, torch.device("cpu"))
    good = torch.arange(SLOTS)
    for tokens in ([300, 128, 1000], [1000, 1000, 1000], [100, 0, 700], [5, -1, 9]):
        yield from plan_prepare([table, table], good, torch.tensor(tokens))
        yield from plan_prepare([table], good, torch.tensor(tokens))
    for seed in range(4):
        slots, tokens_after = mixed(40, range(SLOTS), BEYOND, seed), mixed(40, range(9), BEYOND, 7)
        yield from plan_prepare([table], slots, tokens_after)
        positions = mixed(40, range(1000), BEYOND, seed + 8)
        entries = torch.empty(len(table.cells), len(slots), dtype=torch.int64)
        yield plan_completed(table.cells, 4, 32, slots, positions, entries)
        yield from plan_release([table], slots)
    yield from plan_release([table], good)
