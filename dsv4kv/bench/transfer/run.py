"""The decode side of ``bench transfer``: receives requests, times reads, and decodes on.

A receiver reads a request out of another cache into its own, and proves that it is that.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from mmap import mmap
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import IO, Any

import numpy as np

from dsv4kv.bench.protocol import timed_ns
from dsv4kv.bench.tiers.rows import Descriptors, coalesce, describe
from dsv4kv.bench.transfer.memory import Manifest, Memory, shared_file
from dsv4kv.bench.transfer.prefill import Side, cache_of
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.config.experiments import TransferConfig
from dsv4kv.errors import Dsv4kvError, StoreUnavailable, VerificationError
from dsv4kv.processes import Child, python, with_package
from dsv4kv.runs.statistics import Estimate, divide, summarize


@dataclass(frozen=True)
class Moved:
    """What was read of one family, and how fast in the rounds that were timed."""

    pieces: int = 0  # descriptors before neighbours were merged
    descriptors: int = 0
    bytes: int = 0
    useful_bytes: int = 0  # of rows alone, without padding
    gbps: Estimate | None = None

    def __add__(self, other: "Moved") -> "Moved":
        counts = ("pieces", "descriptors", "bytes", "useful_bytes")
        return Moved(*(getattr(self, name) + getattr(other, name) for name in counts))


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
        for each in reads.values():
            read(regions, each)
        verify(memory, manifest, slot)
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
    found: Descriptors | None = None
    for i in range(len(family.layers)):
        if found is None or (ids[i] != ids[i - 1]).any() or (theirs[i] != theirs[i - 1]).any():
            each = describe(offered.geometry, theirs[i], ours, ids[i], rows)
            found = coalesce(each)
        pieces += len(each)
        number = np.full(len(found), offered.first_region + i)
        places.append(np.stack([number, found.source, found.lengths], axis=1))
        pool = memory.regions[first + i]
        starts, ends = found.target.tolist(), (found.target + found.lengths).tolist()
        into += [pool[start:end] for start, end in zip(starts, ends, strict=True)]
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


def verify(memory: Memory, manifest: Manifest, slot: int) -> None:
    """Hash every page's rows where decode steps read them, and compare with the sender's.

    Raises ``VerificationError`` with every family that differs.
    """
    wrong = []
    for name, family in memory.families.items():
        offered = manifest.families[name]
        ids = memory.units(family, slot, manifest.tokens)
        found = memory.digests(family, ids, offered.rows, offered.geometry.rows)
        if unlike := sum(a != b for a, b in zip(found, offered.digests, strict=True)):
            wrong.append(f"{name}: {unlike:,} of {len(found):,} pages")
    if wrong:
        raise VerificationError(
            "What has come is not what left, by its digests: " + "; ".join(wrong) + "."
        )


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
        return replace(sum(self.families.values(), Moved()), gbps=self.gbps)


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
            module = "dsv4kv.bench.transfer.prefill"
            child = Child(
                python("-m", module, *map(str, handed)),
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
    """Move a prompt and decode on; then time reads of a long request."""
    on_step("prompt", 0, 2)
    prompt_ns, failures = _move_prompt(config, side, prefill)
    on_step("timed reads", 1, 2)
    manifest: Manifest = prefill.ask("hold")
    _, reads = receive(side.memory, manifest, prefill.regions)
    rates = _measure(reads, prefill.regions, config.rounds)
    return Outcome(
        {name: replace(each.moved, gbps=rates[name]) for name, each in reads.items()},
        *(rates["all"], rates["memcpy"]),
        prompt_ns,
        pages=sum(len(each.digests) for each in manifest.families.values()),
        failures=failures,
    )


def _move_prompt(config: TransferConfig, side: Side, prefill: Prefill) -> tuple[int, list[str]]:
    """Let a prompt be computed, take it in and go on: how long it took, and what is wrong.

    Both sides decode, and what they read must be equal. The request is forgotten by both.
    """
    start, failures = perf_counter_ns(), list[str]()
    manifest: Manifest = prefill.ask("compute")
    try:
        slot, _ = receive(side.memory, manifest, prefill.regions)
    except VerificationError as error:
        failures.append(str(error))
    taken_ns = perf_counter_ns() - start
    stayed = prefill.ask("decode and release")
    if not failures:
        if side.go_on(slot, 0, config.decode_steps) != stayed:
            failures.append(
                f"{config.decode_steps} decode steps do not read what a request reads that never "
                "left."
            )
        side.release(slot)
    return taken_ns, failures


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
    return asdict(outcome, dict_factory=_without_arms)


def _without_arms(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != "arms"}
