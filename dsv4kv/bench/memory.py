"""Memory of the cache: blocks and slots in use while a workload is served."""

from collections.abc import Callable, Iterator
from functools import partial

from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.reuse import PrefixReuse
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.plan import CachePlan, checkpoint_bytes
from dsv4kv.runs.telemetry import HeldPool, HeldUnits, MemorySeries

MOST_POINTS = 256
"""More cannot be distinguished in a chart, and a record of a hundred cases stays small."""
_ORDER = ("main", "indexer", "window", "state", "checkpoints")


class MemoryWatch:
    """Keeps, of every stretch of steps, the moment at which most blocks were held."""

    def __init__(
        self, manager: KVCacheManager, recorder: Recorder, reuse: PrefixReuse | None
    ) -> None:
        self._manager, self._recorder = manager, recorder
        self._units = list(_list_units(manager, reuse))
        self._start_ns: int | None = None
        self._steps, self._stride = 0, 1
        self._points: list[tuple[int, int, list[int]]] = []  # blocks, time, units held
        self._most = -1  # blocks of the last point

    def look(self) -> None:
        """Another step is done. Most only count their blocks."""
        blocks = self._manager.num_held_blocks
        begins = self._steps % self._stride == 0
        self._steps += 1
        if begins or blocks > self._most:
            self._keep(blocks, self._recorder.now_ns(), begins=begins)

    def series(self) -> MemorySeries:
        """Everything seen so far."""
        return MemorySeries(
            stride_steps=self._stride,
            at_ns=[at_ns for _, at_ns, _ in self._points],
            units=[
                HeldUnits(name=name, units=units, held=[held[n] for *_, held in self._points])
                for n, (name, units, _) in enumerate(self._units)
            ],
            pools=list(_list_pools(self._manager.plan, {name for name, *_ in self._units})),
        )

    def _keep(self, blocks: int, now_ns: int, *, begins: bool) -> None:
        if self._start_ns is None:
            self._start_ns = now_ns
        if not begins:
            self._points.pop()
        elif len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [max(pair, key=lambda point: point[0]) for pair in pairs]
            self._stride *= 2
        self._points.append(
            (blocks, now_ns - self._start_ns, [count() for *_, count in self._units])
        )
        self._most = blocks


def _list_units(
    manager: KVCacheManager, reuse: PrefixReuse | None
) -> Iterator[tuple[str, int, Callable[[], int]]]:
    """What is counted: its name, how many there are, and how many are held now."""
    for table in manager.tables:
        held = partial(getattr, table.allocator, "num_held")
        yield _blocks_name(table.group.name), table.allocator.num_blocks, held
    slots = manager.plan.num_slots
    yield "slots", slots, lambda: slots - manager.num_free_slots
    if reuse is not None:
        blocks = manager.tables[0].allocator.num_blocks
        yield "cached blocks", blocks, lambda: reuse.index.held
        yield "checkpoints", reuse.checkpoints.count, lambda: len(reuse.saved)


def _blocks_name(group: str) -> str:
    return "blocks" if group == "model" else f"{group} blocks"


def _list_pools(plan: CachePlan, units: set[str]) -> Iterator[HeldPool]:
    """Every pool with the bytes of one of its units, layers of a type together."""
    sizes: dict[tuple[str, str, str], int] = {}

    def add(pool: str, layer_type: str, unit: str, size: int) -> None:
        if size:
            sizes[pool, layer_type, unit] = sizes.get((pool, layer_type, unit), 0) + size

    for schema in plan.schemas:
        layer_type = schema.layer.attn.value
        if (group := plan.group_of(schema.layer.layer_idx)) is not None:
            blocks = _blocks_name(group.name)
            for pool, page in (("main", schema.main), ("indexer", schema.indexer)):
                add(pool, layer_type, blocks, page.page_bytes if page else 0)
        add("window", layer_type, "slots", schema.window_bytes)
        add("state", layer_type, "slots", schema.state_bytes)
        if "checkpoints" in units:
            add("checkpoints", "all", "checkpoints", checkpoint_bytes(schema))
    for (pool, layer_type, unit), size in sorted(
        sizes.items(), key=lambda s: _ORDER.index(s[0][0])
    ):
        yield HeldPool(name=pool, layer_type=layer_type, unit=unit, unit_bytes=size)
