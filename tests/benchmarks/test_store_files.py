"""The file store beside what the disk does: the same threads, sizes, memory and ``O_DIRECT``.

Beside it stand files of the same size written and read with nothing around (``files``), and one
large file that is there already (``disk``). All take turns in every round, each in every place of
it; a share is the median of the rounds' own.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from dsv4kv.tiers.stores.file import FileStore
from dsv4kv.tiers.stores.lanes import THREADS, Lanes, aligned
from dsv4kv.tiers.stores.memory import MemoryStore
from dsv4kv.tiers.stores.namespace import Namespace
from tests.benchmarks.medians import Measure, Remark

NAMESPACE = Namespace("deepseek-ai/DeepSeek-V4-Flash", "0731", {})
ROUNDS = 9
O_DIRECT = getattr(os, "O_DIRECT", 0)
FLAGS = os.O_CREAT | os.O_RDWR | O_DIRECT


class Disk:
    """Objects of a size moved in every way, always under new names."""

    def __init__(self, folder: Path, size: int, objects: int) -> None:
        self.folder, self.size, self.objects = folder, size, objects
        self.store, self.lanes, self.names = FileStore(folder, NAMESPACE), Lanes(), count()
        self.memory = [aligned(size) for _ in range(objects)]
        for number, each in enumerate(self.memory):
            each[:] = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
        self.one = os.open(folder / "one", FLAGS)
        self.write_one()

    def write_one(self) -> None:
        self.lanes.each(
            lambda n: os.pwritev(self.one, [self.memory[n].data], n * self.size), self.objects
        )

    def read_one(self) -> None:
        self.lanes.each(
            lambda n: os.preadv(self.one, [self.memory[n].data], n * self.size), self.objects
        )

    def moves(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """All ways, by name, with files and objects that no round has seen: writes first."""
        turn = next(self.names)
        names = [f"{turn}/{number}" for number in range(self.objects)]
        fan = self.folder / str(turn)
        fan.mkdir()

        def move(call: Callable[[int, list[memoryview], int], int]) -> Callable[[], None]:
            def one(number: int) -> None:
                file = os.open(fan / str(number), FLAGS)
                call(file, [self.memory[number].data], 0)
                os.close(file)

            return lambda: self.lanes.each(one, self.objects)

        writes: list[tuple[str, Callable[[], object]]] = [
            ("write files", move(os.pwritev)),
            ("put", lambda: self.store.put(names, self.memory)),
            ("write disk", self.write_one),
        ]
        reads: list[tuple[str, Callable[[], object]]] = [
            ("read files", move(os.preadv)),
            ("get", lambda: self.store.get(names, self.memory)),
            ("read disk", self.read_one),
        ]
        for ways in (writes, reads):
            yield from ways[turn % 3 :] + ways[: turn % 3]


@pytest.mark.parametrize(("size", "objects"), [(1 << 20, 48), (40 << 10, 500)])
def test_files(measure: Measure, remark: Remark, tmp_path: Path, size: int, objects: int) -> None:
    disk, seconds = Disk(tmp_path, size, objects), dict[str, list[float]]()

    def take_turns() -> None:
        for name, call in disk.moves():
            start = time.perf_counter()
            call()
            seconds.setdefault(name, []).append(time.perf_counter() - start)

    group = f"{objects} objects of {size >> 10} KiB, {THREADS} threads, {disk.store.cold}"
    measure(group, "six ways", take_turns, rounds=ROUNDS)
    for ours, plain in {"put": "write", "get": "read"}.items():
        for other in ("files", "disk"):
            turns = zip(seconds[f"{plain} {other}"], seconds[ours], strict=True)
            share = median(theirs / mine for theirs, mine in turns)
            rate = size * objects / median(seconds[ours]) / 1e9
            remark(f"{group}: {ours} {rate:.2f} GB/s, {share:.0%} of {plain} {other}")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_lookups(measure: Measure, remark: Remark, tmp_path: Path, kind: str) -> None:
    names = [f"{'3f' * 16}/{number:064x}.entries" for number in range(20_000)]
    store = MemoryStore(1 << 30) if kind == "memory" else FileStore(tmp_path, NAMESPACE)
    store.put(names[::20], [np.zeros(1, np.uint8)] * len(names[::20]))
    group = f"look {len(names):,} names up"
    took_ns = measure(group, kind, lambda: store.exists(names), rounds=20)
    if took_ns:
        remark(f"{group} in {kind}: {len(names) / took_ns * 1e9:,.0f} names/s")
