"""``bench transfer``: a request moves from a prefill cache, in another process, to a decode cache.

The prefill process has its pools in a file that both map. The decode side reads a request's rows
out of it into blocks, rings and slots of its own, proves that it is that, and decodes on.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from mmap import mmap
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile
from time import perf_counter_ns
from typing import IO, Any

import numpy as np
import torch

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.bench.device import timed_ns
from dsv4kv.bench.objects import (
    CacheBytes,
    Geometry,
    coalesce,
    describe,
    geometry_of,
    rows_needed,
    stretches,
)
from dsv4kv.bench.serve.executor import Call, Recorder, StepTokens
from dsv4kv.bench.serve.inputs import EntryChooser, StepInputs
from dsv4kv.bench.serve.loop import Requests
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SideSection, TransferConfig
from dsv4kv.errors import ConfigError, Dsv4kvError, StoreFull, StoreUnavailable, VerificationError
from dsv4kv.model.plan import Family
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.processes import Child, python, with_package
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.statistics import Estimate, divide, summarize
from dsv4kv.units import format_bytes

_ALIGN = 4096
_SHARED = Path("/dev/shm")  # where Linux has memory as files
_DIGEST_BYTES = 16


def shared_file() -> IO[bytes]:
    """A file without a name, in memory where there is such a folder."""
    try:
        return TemporaryFile(dir=_SHARED if _SHARED.exists() else None)
    except OSError as error:
        raise StoreUnavailable(
            f"no shared memory can be had ({error}): let {_SHARED} be written."
        ) from None


def share(manager: KVCacheManager, file: int) -> memoryview:
    """Move all pools into a file, and return its bytes.

    Before the cache's layers are bound to operations. Raises ``StoreFull`` where there is too
    little of it.
    """
    tensors = [tensor for _, _, tensor in manager.tensors()]
    starts = [0, *accumulate(-(-tensor.nbytes // _ALIGN) * _ALIGN for tensor in tensors)]
    size = starts[-1]
    free = disk_usage(_SHARED).free if _SHARED.exists() else size
    if size > free:
        raise StoreFull(
            f"the cache has {format_bytes(size)} and {_SHARED} {format_bytes(free)} free: "
            "make it larger, or the cache smaller."
        )
    os.ftruncate(file, size)
    memory = memoryview(mmap(file, size))
    for tensor, start in zip(tensors, starts, strict=False):
        data = torch.frombuffer(memory[start : start + tensor.nbytes], dtype=tensor.dtype)
        tensor.set_(data.view(tensor.shape).copy_(tensor))  # type: ignore[call-overload]
    return memory


class Memory(CacheBytes):
    """The memory of a cache.

    ``regions`` are the layers' pools as bytes, a family's one after another from the region in
    ``numbers`` on; ``geometries`` say where rows are in a layer.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.geometries = {name: geometry_of(each) for name, each in self.families.items()}
        self.regions: list[memoryview] = []
        self.numbers: dict[str, int] = {}
        for name, pools in self.pools.items():
            self.numbers[name] = len(self.regions)
            self.regions += [pool.numpy().reshape(-1).data for pool in pools]

    def places(self, memory: memoryview) -> list[slice]:
        """Where regions are in memory that ``share`` has moved them to."""
        views = (memory, *self.regions)
        base, *starts = (np.frombuffer(each, np.uint8).ctypes.data for each in views)
        sizes = map(len, self.regions)
        return [slice(at - base, at - base + n) for at, n in zip(starts, sizes, strict=True)]

    def rows(self, family: Family, tokens: int) -> range:
        return rows_needed(family, tokens, self.manager.plan.config.window_tokens)

    def digests(self, family: Family, ids: Ids, rows: range, page_rows: int) -> list[str]:
        """A digest of every ``page_rows`` rows, of all layers: equal rows, equal digest."""
        geometry, first = self.geometries[family.name], self.numbers[family.name]
        pools, digests = self.regions[first : first + len(family.layers)], []
        for start in range(rows.start // page_rows * page_rows, rows.stop, page_rows):
            page = range(max(start, rows.start), min(start + page_rows, rows.stop))
            found = blake2b(digest_size=_DIGEST_BYTES)
            for pool, numbers in zip(pools, ids, strict=True):
                for part in stretches(geometry, numbers, page):
                    found.update(pool[part])
            digests.append(found.hexdigest())
        return digests


@dataclass(frozen=True)
class FamilyRows:
    """A family of a request: ``rows`` of every layer."""

    first_region: int  # number of the first layer's pool in the memory
    geometry: Geometry
    rows: range
    ids: Ids  # int64[layers, n]: pages, or the slot
    digests: list[str]  # of the rows of every page, in their order


@dataclass(frozen=True)
class Manifest:
    """Where a request's rows are, by family, and their digests."""

    tokens: int
    families: dict[str, FamilyRows]


def make_manifest(memory: Memory, slot: int, tokens: int) -> Manifest:
    """Describe a request of ``tokens`` tokens in a slot, with digests of its rows."""
    families = {}
    for name, family in memory.families.items():
        rows, geometry = memory.rows(family, tokens), memory.geometries[name]
        ids = memory.units(family, slot, tokens)
        digests = memory.digests(family, ids, rows, geometry.rows)
        families[name] = FamilyRows(memory.numbers[name], geometry, rows, ids, digests)
    return Manifest(tokens, families)


def cache_of(config: TransferConfig, section: SideSection, requests: int) -> BenchConfig:
    """A side's cache as ``dsv4kv bench`` would be asked for it."""
    tokens = max(config.tokens + config.decode_steps, config.timed_tokens) + section.draft_tokens
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": config.model,
            "cache": {
                "block_tokens": section.block_tokens,
                "max_context_tokens": tokens,
                "num_slots": requests,
                "state": config.state,
            },
            "workload": {
                "concurrency": requests,
                "step_tokens": config.chunk_tokens,
                "step": "gather",
                "speculative": {"draft_tokens": section.draft_tokens},
            },
            "measure": {"seed": config.seed},
        }
    )


class Side(Requests):
    """A cache, filled with what is drawn from a seed: equal on both sides."""

    def __init__(self, config: BenchConfig, file: int | None = None) -> None:
        """Build it; raises ``ConfigError``, or ``StoreFull`` for too little shared memory.

        ``file``: its pools are in this one, at ``places``, and another prompt is interleaved with
        each, so that blocks are scattered.
        """
        torch.set_num_threads(1)
        plan = plan_from(config)
        check_data_path(plan)
        there = capture_environment()["memory_bytes"] or plan.total_bytes
        if plan.total_bytes > there:
            raise ConfigError(
                f"{plan.max_context_tokens:,} tokens need {format_bytes(plan.total_bytes)} and "
                f"there are {format_bytes(there)} of memory: lower tokens or timed_tokens, or "
                "hold fewer layers (model.layers)."
            )
        self._seed, self._chunk_tokens = config.measure.seed, config.workload.step_tokens
        manager, self._crowded = build_manager(config, plan, None), file is not None
        shared = None if file is None else share(manager, file)
        self.memory = Memory(manager)
        self.places = [] if shared is None else self.memory.places(shared)
        drive = build_drive(config, manager, Recorder(), resolve_backend("cpu", "cpu"))
        super().__init__(manager, drive.executor)

    def prefill(self, serial: int | None, tokens: int) -> int:
        """Compute a prompt in a slot of its own.

        Without a serial nothing is computed: the request has blocks with arbitrary bytes.
        """
        slot, other = self.admit(), self.admit() if self._crowded else None
        for start in range(0, tokens, self._chunk_tokens):
            end = min(start + self._chunk_tokens, tokens)
            if other is not None:
                prepare_forward(self.manager, [other], [start], [end])
            if serial is None:
                prepare_forward(self.manager, [slot], [start], [end])
            else:
                self.compute(slot, serial, end)
        if other is not None:
            self.release(other)
        return slot

    def draw(self) -> None:
        """Fill all pages with random bytes: unwritten memory has no physical pages."""
        random = np.random.default_rng(self._seed)
        for region in self.memory.regions:
            pool = np.frombuffer(region, dtype=np.uint8)
            pool[:] = np.frombuffer(random.bytes(len(pool)), dtype=np.uint8)

    def go_on(self, slot: int, serial: int, steps: int) -> str:
        """Decode some steps; returns a digest of all they read and of the rows at the end."""
        found = blake2b(digest_size=16)

        def look(step: StepTokens, call: Call, inputs: StepInputs) -> None:
            found.update(call.tensors["out"].view(torch.uint8).numpy().data)

        chooser = EntryChooser(self.executor.outputs.index_topk, self._seed)
        executor = replace(self.executor, observer=look, chooser=chooser)
        Requests(self.manager, executor).decode(slot, serial, steps, observed=True)
        memory, tokens = self.memory, int(self.manager.tokens[slot])
        for family in memory.families.values():
            rows, ids = memory.rows(family, tokens), memory.units(family, slot, tokens)
            # of all together, whatever pages they are in
            found.update("".join(memory.digests(family, ids, rows, tokens + 1)).encode())
        return found.hexdigest()


def serve(pipe: Connection, file: int) -> None:
    """Compute, hold and decode a request as the other process asks, while it is there."""
    try:
        config: TransferConfig = pipe.recv()
        side = Side(cache_of(config, config.prefill, 2), file)
        side.draw()
        pipe.send(side.places)
        while True:
            match pipe.recv():
                case "compute":
                    slot = side.prefill(0, config.tokens)
                    pipe.send(make_manifest(side.memory, slot, config.tokens))
                case "hold":
                    slot = side.prefill(None, config.timed_tokens)
                    pipe.send(make_manifest(side.memory, slot, config.timed_tokens))
                case "decode and release":
                    pipe.send(side.go_on(slot, 0, config.decode_steps))
                    side.release(slot)
    except Dsv4kvError as error:
        pipe.send(error)
    except (EOFError, ConnectionError):
        return


@dataclass(frozen=True)
class Moved:
    """Bytes read of one family, and their rate in the timed rounds."""

    pieces: int  # descriptors before neighbours were merged
    descriptors: int
    bytes: int
    useful_bytes: int  # of rows alone, without padding
    gbps: Estimate | None = None


@dataclass(frozen=True)
class Read:
    """Descriptors of a family, as places there and views here."""

    places: Ids  # int64[n, 3]: region, first byte, bytes
    into: list[memoryview]
    moved: Moved  # once it is read


def receive(
    memory: Memory, manifest: Manifest, regions: Sequence[memoryview]
) -> tuple[int, dict[str, Read]]:
    """Read a request into a slot and compare every page with its digest; returns slot and reads.

    ``regions`` are the other cache's.

    Raises:
        CacheError: No slot or blocks are free here.
        VerificationError: Received bytes differ from sent bytes.
        Either way the slot and its blocks are released.
    """
    manager = memory.manager
    slot = manager.admit_request()
    try:
        prepare_forward(manager, [slot], [0], [manifest.tokens])
        reads = {name: plan_read(memory, manifest, slot, name) for name in memory.families}
        wrong = []
        for name, family in memory.families.items():
            read(regions, reads[name])
            offered, ids = manifest.families[name], memory.units(family, slot, manifest.tokens)
            found = memory.digests(family, ids, offered.rows, offered.geometry.rows)
            if unlike := sum(a != b for a, b in zip(found, offered.digests, strict=True)):
                wrong.append(f"{name}: {unlike:,} of {len(found):,} pages")
        if wrong:
            raise VerificationError(
                "What has come is not what left, by its digests: " + "; ".join(wrong) + "."
            )
    except BaseException:
        manager.release_request(slot, manager.generation(slot))
        raise
    return slot, reads


def plan_read(memory: Memory, manifest: Manifest, slot: int, name: str) -> Read:
    """Which bytes of a family there go where here."""
    family, offered, ours = memory.families[name], manifest.families[name], memory.geometries[name]
    ids, rows, theirs = memory.units(family, slot, manifest.tokens), offered.rows, offered.ids
    first, pieces = memory.numbers[name], 0
    places, into = list[Ids](), list[memoryview]()
    found: Ids | None = None
    for i in range(len(family.layers)):
        if found is None or (ids[i] != ids[i - 1]).any() or (theirs[i] != theirs[i - 1]).any():
            each = describe(offered.geometry, theirs[i], ours, ids[i], rows)
            found = coalesce(each)
        pieces += len(each)
        number = np.full(len(found), offered.first_region + i)
        places.append(np.stack([number, found[:, 0], found[:, 2]], axis=1))
        pool = memory.regions[first + i]
        into += [pool[start : start + size] for _, start, size in found.tolist()]
    merged = np.concatenate(places)
    row_bytes = sum(area.row_bytes for area in offered.geometry.areas)
    useful = len(rows) * row_bytes * len(family.layers)
    return Read(merged, into, Moved(pieces, len(merged), int(merged[:, 2].sum()), useful))


def read(regions: Sequence[memoryview], plan: Read) -> int:
    """Copy stretches of regions into views of the same lengths; returns nanoseconds."""
    start = perf_counter_ns()
    for (number, first, size), target in zip(plan.places.tolist(), plan.into, strict=True):
        target[:] = regions[number][first : first + size]
    return perf_counter_ns() - start


@dataclass(frozen=True)
class Outcome:
    """What moved, what it cost, and what is wrong; GB/s are medians of all rounds."""

    families: Mapping[str, Moved]  # reads of each family
    gbps: Estimate | None  # of all families
    memcpy_gbps: Estimate | None  # of one copy of as many bytes
    prompt_ns: int  # from asking for a prompt until it is computed, read and verified
    pages: int  # digests that were compared of the timed request
    failures: list[str] = field(default_factory=list)  # what is wrong, in sentences

    @property
    def total(self) -> Moved:
        """Of all families."""
        each = self.families.values()
        return Moved(
            pieces=sum(moved.pieces for moved in each),
            descriptors=sum(moved.descriptors for moved in each),
            bytes=sum(moved.bytes for moved in each),
            useful_bytes=sum(moved.useful_bytes for moved in each),
            gbps=self.gbps,
        )


class Prefill:
    """The prefill process as this one has it: what it computes, and its pools, ``regions``."""

    def __init__(self, config: TransferConfig, pipe: Connection, file: IO[bytes]) -> None:
        """Let it build its cache; raises what it raises, or ``StoreUnavailable``."""
        self._pipe, self._timeout_s = pipe, config.timeout_s
        places = self.ask(config)
        memory = memoryview(mmap(file.fileno(), 0))
        self.regions = [memory[place] for place in places]

    def ask(self, message: object) -> Any:
        """Ask for something: what it sends, or raises; ``StoreUnavailable`` where it is gone."""
        try:
            self._pipe.send(message)
            if not self._pipe.poll(self._timeout_s):
                raise StoreUnavailable(
                    f"the prefill process did not answer within timeout_s, {self._timeout_s:g} s: "
                    "raise timeout_s."
                )
            found = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise StoreUnavailable("the prefill process ended in the middle.") from None
        if isinstance(found, Dsv4kvError):
            raise found
        return found


@contextmanager
def prefill_process(config: TransferConfig) -> Iterator[tuple[Prefill, Child]]:
    """A prefill side in a process of its own, which ends after this."""
    ours, theirs = Pipe()
    with ours, shared_file() as file:
        with theirs:
            handed = theirs.fileno(), file.fileno()
            # by its name, not as __main__: manifests are pickled with the name of their class
            code = "from dsv4kv.bench.transfer import Connection, serve; serve(Connection({}), {})"
            child = Child(
                python("-c", code.format(*handed)),
                stderr=2,
                env=with_package(os.environ),
                pass_fds=handed,
            )
        try:
            yield Prefill(config, ours, file), child
        finally:
            child.kill()


def run_transfer(config: TransferConfig, on_step: Callable[[str, int, int], None]) -> Outcome:
    """Move a request from a prefill process; ``on_step`` is called with the next step.

    Raises ``ConfigError``, ``StoreFull``, and ``StoreUnavailable`` where the process ends or is
    silent.
    """
    with prefill_process(config) as (prefill, _):
        return decode(config, Side(cache_of(config, config.decode, 1)), prefill, on_step)


def decode(
    config: TransferConfig, side: Side, prefill: Prefill, on_step: Callable[[str, int, int], None]
) -> Outcome:
    """Move a prompt and decode on, on both sides, which must read the same; then time reads."""
    on_step("prompt", 0, 2)
    start_ns, failures = perf_counter_ns(), list[str]()
    manifest: Manifest = prefill.ask("compute")
    try:
        slot, _ = receive(side.memory, manifest, prefill.regions)
    except VerificationError as error:
        failures.append(str(error))
    prompt_ns = perf_counter_ns() - start_ns
    stayed = prefill.ask("decode and release")
    if not failures:
        if side.go_on(slot, 0, config.decode_steps) != stayed:
            failures.append(
                f"{config.decode_steps} decode steps do not read what a request reads that never "
                "left."
            )
        side.release(slot)
    on_step("timed reads", 1, 2)
    manifest = prefill.ask("hold")
    _, reads = receive(side.memory, manifest, prefill.regions)
    rates = _measure(reads, prefill.regions, config.rounds)
    return Outcome(
        {name: replace(each.moved, gbps=rates[name]) for name, each in reads.items()},
        *(rates["all"], rates["memcpy"]),
        prompt_ns,
        pages=sum(len(each.digests) for each in manifest.families.values()),
        failures=failures,
    )


def _measure(
    reads: Mapping[str, Read], regions: Sequence[memoryview], rounds: int
) -> dict[str, Estimate | None]:
    """Read everything again and again, each time next to a copy of as many bytes.

    Rates by family, of ``all`` and of ``memcpy``.
    """
    sizes = {name: each.moved.bytes for name, each in reads.items()}
    size, taken = sum(sizes.values()), list[dict[str, int]]()
    left, right = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    for _ in range(rounds + 1):
        spent = {name: read(regions, each) for name, each in reads.items()}
        spent["all"] = sum(spent.values())
        spent["memcpy"] = timed_ns(lambda: np.copyto(right, left))
        taken.append(spent)
    rates: dict[str, Estimate | None] = {}
    for name in taken[0]:  # by the median: other processes make some rounds long
        times = summarize([spent[name] for spent in taken[1:]])  # the first warms up
        rates[name] = divide(Estimate(sizes.get(name, size), 0.0), times.estimate)
    return rates


def document_of(outcome: Outcome) -> dict[str, Any]:
    """All of it for JSON: nanoseconds, bytes and GB/s; intervals as half-widths."""

    def without_arms(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in pairs if name != "arms"}

    return asdict(outcome, dict_factory=without_arms)
