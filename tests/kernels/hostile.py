"""Every kernel, asked for what there is and for what there is not.

Operations are called as their scenes say, but with slots, positions, indices, lengths and entries
of which every third cannot be; what is no operation is called by hand.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops import cuda
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.launches import Launch, pages, reads
from dsv4kv.ops.launches.pages import plan_completed, plan_gather_entries
from dsv4kv.ops.scenes import make_call
from dsv4kv.ops.spec import VARIANTS
from dsv4kv.ops.storage import Entries, PartWrite
from tests.examples import FULL
from tests.kernels.launches import filled_store, mixed, of_one_module_a_kernel, on_blocks
from tests.kernels.shim.twin import SANITIZED, run
from tests.ops.operations import CPU, SCENES, SEED

SLOTS = 3
BEYOND = [-1, 64, 4, 5, 2**31 - 1, -(2**31)]
FAR_BEYOND = [*BEYOND, 2**63 - 1, -(2**63)]
DEAR = ("attend", "index_scores", "select_topk")
"""Kernels whose launches take a second or more each: ``make full`` runs them on few blocks too."""

RUN = 15
"""Columns of a run: several of them in a row."""


def run_all_sanitized(part: int, parts: int) -> None:
    """Every so many launch, on few blocks and on as many as it asks for."""
    with patch.object(reads, "RUN", RUN):
        for launch in islice(of_one_module_a_kernel(launches()), part, None, parts):
            together = launch.kernel == "step_write" or launch.cluster > 1
            seeds = (11, 12, 13) if FULL and together else (11,)
            for seed in seeds:
                run(launch, seed=seed, flags=SANITIZED)
            again = launch.kernel not in ("merge_topk", *(() if FULL else DEAR))
            if again and not together and launch.grid[1] == 1:
                run(on_blocks(launch, 2), reverse=True, flags=SANITIZED)


def launches() -> Iterator[Launch]:
    """What every scene launches, as it is and with wild numbers, and everything else."""
    for scene in SCENES.values():
        for variant in VARIANTS.get(scene.operation, ("",)):
            for wild in (False, True):
                arguments = make_call(scene.make, CPU, SEED).arguments
                if wild:
                    arguments = {name: _wild(each) for name, each in arguments.items()}
                how = {"variant": variant} if variant else {}
                yield from collected(getattr(cuda, scene.operation), **arguments, **how)
    yield from _others()


def collected(function: Callable[..., None], **arguments: Any) -> list[Launch]:
    """What an operation would launch."""
    found: list[Launch] = []

    def prepare(launch: Launch) -> Callable[[], None]:
        found.append(launch)
        return lambda: None

    with (
        patch.object(launching, "_launcher", lambda: SimpleNamespace(prepare=prepare)),
        suppress(ConfigError),  # entries of other sizes than a kernel takes
    ):
        function(**arguments)
    return found


def _wild(argument: Any) -> Any:
    """Whole numbers of which some cannot be; slots and starts of chunks too."""
    if isinstance(argument, Tensor) and argument.dtype in {torch.int64, torch.int32}:
        bad = torch.tensor(FAR_BEYOND if argument.dtype == torch.int64 else BEYOND)
        random = torch.Generator().manual_seed(argument.numel())
        numbers = bad[torch.randint(0, len(bad), argument.shape, generator=random)]
        some = torch.rand(argument.shape, generator=random) < 1 / 3
        return torch.where(some, numbers.to(argument.dtype), argument)
    if isinstance(argument, Entries):
        indices = None if argument.indices is None else _wild(argument.indices)
        lengths, table = _wild(argument.lengths), _wild(argument.table)
        return replace(argument, table=table, lengths=lengths, indices=indices)
    if isinstance(argument, PartWrite):
        return replace(argument, entries=_wild(argument.entries))
    return tuple(map(_wild, argument)) if isinstance(argument, tuple) else argument


def _others() -> Iterator[Launch]:
    """Physical entries, objects of tiers, peaks, chunks and block tables."""
    scene = next(each for each in SCENES.values() if each.operation == "gather_topk")
    store = make_call(scene.make, CPU, SEED).arguments["store"]
    entries = mixed(35, range(64), BEYOND, seed=6).int()
    out = torch.zeros(35, store.layout.format.dims, dtype=torch.bfloat16)
    for variant in VARIANTS["gather_topk"]:
        yield plan_gather_entries(store, entries, out, variant=variant)
    yield from object_moves(mixed(9, range(32), FAR_BEYOND, 3))
    for chunks in (1, 4001):
        source, target = (torch.zeros(16 * chunks, dtype=torch.uint8) for _ in range(2))
        yield pages.plan_copy_peak(source, target)
        yield pages.plan_write_peak(target)
        yield pages.plan_nothing(target)
        yield pages.plan_read_peak(source, torch.zeros(2 * pages.THREADS, dtype=torch.int32))
    chunk = next(each for each in SCENES.values() if each.operation == "compress_chunk")
    for slot, start in ((-1, 1), (4, 1), (1, -1), (2**63 - 1, 3), (1, 2**62)):
        given = make_call(chunk.make, CPU, SEED).arguments | {"slot": slot, "start": start}
        yield from collected(cuda.compress_chunk, **given)
    blocks = next(each for each in SCENES.values() if each.operation == "select_blocks")
    given = make_call(blocks.make, CPU, SEED).arguments | {"block_entries": 2}
    yield from collected(cuda.select_blocks, **given)
    yield from _tables()


def object_moves(ids: Tensor) -> Iterator[Launch]:
    """Objects of two layers, of pages that are there and that are not."""
    form = next(each for each in SCENES.values() if each.operation == "page_copy")
    layout = make_call(form.make, CPU, SEED).arguments["store"].layout
    pools = [filled_store(layout.format, pages=64).pages for _ in range(2)]
    piece = pools[0].shape[1]
    objects = torch.zeros(len(ids) * (2 * piece + 16), dtype=torch.uint8)
    for way in ("take", "put"):
        both = torch.stack([ids, ids.flip(0)])
        yield pages.plan_objects(
            way, pages.pool_table(pools), both, objects, piece, 2 * piece + 16
        )


def _tables() -> Iterator[Launch]:
    cells = torch.full((2, SLOTS, 8), -1, dtype=torch.int32)
    cells[:, 0, :3] = torch.arange(3)
    for seed in range(4):
        slots = mixed(40, range(SLOTS), FAR_BEYOND, seed)
        positions = mixed(40, range(1000), FAR_BEYOND, seed + 8)
        entries = torch.empty(len(cells), len(slots), dtype=torch.int64)
        yield plan_completed(cells, 4, 32, slots, positions, entries)
