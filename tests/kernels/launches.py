"""What the kernel tests share: both orders of fibers, small grids, guarded outputs."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.launches import KernelModule, Launch
from dsv4kv.ops.storage import Compressor, PageStore
from tests.examples import FULL
from tests.kernels.shim.twin import run
from tests.ops.samples import generator, nan_output, random_values

each_order = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reversed"])


def on_blocks(launch: Launch, blocks: int) -> Launch:
    """The same launch on so few blocks that threads have to stride."""
    return replace(launch, grid=(blocks, 1))


def of_one_module_a_kernel(launches: Iterable[Launch]) -> Iterator[Launch]:
    """In ``make full`` all; else those of the first module that has the kernel, or clusters of it.

    Its others are compiled from the same source with other constants, for seconds each.
    """
    modules: dict[tuple[str, str, int], KernelModule] = {}
    for launch in launches:
        kernel = launch.module.source, launch.kernel, launch.cluster
        if FULL or modules.setdefault(kernel, launch.module) == launch.module:
            yield launch


def run_all(launches: Iterable[Launch], *, reverse: bool = False) -> None:
    for launch in launches:
        run(launch, reverse=reverse)


def dirty_scratch(compressor: Compressor, entries: int) -> Tensor:
    """Room for pooled channels that nobody has cleared."""
    return torch.full((entries, compressor.dim), torch.nan)


def filled_store(entry: EntryFormat, entries: int = 32, pages: int = 4) -> PageStore:
    """A store whose every entry is random."""
    store = PageStore.allocate(PageLayout(entry, entries), pages, torch.device("cpu"))
    count = store.num_entries
    cpu.entry_insert(store, random_values(entry, count, seed=count), torch.arange(count))
    return store


def decoded(store: PageStore) -> Tensor:
    """Every physical entry of a store by the CPU backend: bf16[n, D]."""
    out = nan_output(1, store.num_entries, store.layout.format.dims)
    table = torch.arange(len(store.pages), dtype=torch.int32)[None]
    cpu.gather_all(store, table, torch.tensor([0]), torch.tensor([store.num_entries]), out)
    return out[0]


def mixed(count: int, good: range, bad: list[int], seed: int) -> Tensor:
    """int64[count] of random good numbers, every fourth of them replaced by a bad one."""
    random = generator(seed)
    numbers = torch.randint(good.start, good.stop, (count,), generator=random)
    choice = torch.randint(0, len(bad), (count,), generator=random)
    return torch.where(torch.arange(count) % 4 == 1, torch.tensor(bad)[choice], numbers)
