"""What the kernel tests share: both orders of fibers, small grids, guarded outputs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.launches.launch import KernelModule, Launch
from dsv4kv.ops.storage import PageStore
from tests.examples import FULL
from tests.kernels.shim.twin import run
from tests.ops.samples import generator, nan_output, random_values

TINY = EntryFormat("bf16", "bf16", 16)
"""Cheap and exact: for tests of where things go."""

each_order = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reversed"])

_GUARD = 64  # values before and after an output
_NEVER = 0xA5


def on_blocks(launch: Launch, blocks: int) -> Launch:
    """The same launch on so few blocks that threads have to stride."""
    return replace(launch, grid=(blocks, 1))


def of_one_module_a_kernel(launches: Iterable[Launch]) -> Iterator[Launch]:
    """In ``make full`` all; else those of the first module that has the kernel.

    Its others are compiled from the same source with other constants, for seconds each.
    """
    modules: dict[tuple[str, str], KernelModule] = {}
    for launch in launches:
        kernel = launch.module.source, launch.kernel
        if FULL or modules.setdefault(kernel, launch.module) == launch.module:
            yield launch


def run_all(launches: Iterable[Launch], *, reverse: bool = False) -> None:
    for launch in launches:
        run(launch, reverse=reverse)


def dirty_scratch(compressor: Compressor, entries: int) -> Tensor:
    """Room for pooled channels that nobody has cleared."""
    return torch.full((entries, compressor.dim), torch.nan)


@dataclass(frozen=True)
class GuardedOutput:
    """An output of NaN, or of 0xA5, between two strips of it that nobody may touch."""

    memory: Tensor
    out: Tensor

    @classmethod
    def of(cls, *shape: int, dtype: torch.dtype = torch.bfloat16) -> "GuardedOutput":
        poison = torch.nan if dtype.is_floating_point else _NEVER
        memory = torch.full((torch.Size(shape).numel() + 2 * _GUARD,), poison, dtype=dtype)
        return cls(memory, memory[_GUARD:-_GUARD].view(shape))

    def content(self) -> Tensor:
        """The output, after a look at the strips."""
        strips = torch.cat([self.memory[:_GUARD], self.memory[-_GUARD:]])
        untouched = strips.isnan() if strips.is_floating_point() else strips == _NEVER
        assert bool(untouched.all()), "wrote outside the output"
        return self.out


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
