"""The decode side of ``bench transfer``: receives requests, times reads, and decodes on.

A receiver reads a request out of another cache into its own, and proves that it is that.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dsv4kv.bench.transfer.memory import Manifest, Memory, check_manifest, shared_file
from dsv4kv.bench.transfer.prefill import Side, cache_of
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.config.experiments import TransferConfig
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.host import Sent
from dsv4kv.engines.names import ENGINES, TRANSFERS, find_engine
from dsv4kv.errors import ConfigError, Dsv4kvError, StoreUnavailable, VerificationError
from dsv4kv.model.plan import Kept
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
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


@dataclass
class Received:
    """A request that has come: its slot, the slot's generation, its tokens, and what was read."""

    slot: int
    generation: int
    tokens: int
    moved: dict[str, Moved] = field(default_factory=dict)  # by family


@dataclass(frozen=True)
class Read:
    """Descriptors of layers of a family, as places there and views here."""

    places: Ids  # int64[n, 3]: region, first byte, bytes
    into: list[memoryview]
    moved: Moved  # once it is read


@contextmanager
def _arriving(manager: KVCacheManager, tokens: int) -> Iterator[Received]:
    """A request in a new slot, which is given back if the request does not come."""
    slot = manager.admit_request()
    received = Received(slot, manager.generation(slot), tokens)
    try:
        yield received
    except BaseException:
        manager.release_request(slot, received.generation)
        raise


def receive(memory: Memory, manifest: Manifest, regions: Sequence[memoryview]) -> Received:
    """Take a request in, and compare every page with its digest.

    ``regions`` are the other cache's.

    Raises:
        ConfigError: The caches differ.
        CacheError: No slot or blocks are free here.
        VerificationError: Received bytes differ from sent bytes.
        In every case the slot and its blocks are given back.
    """
    with _arriving(memory.manager, manifest.tokens) as received:
        check_manifest(manifest, memory)
        prepare_forward(memory.manager, [received.slot], [0], [manifest.tokens])
        for name in memory.families:
            plan = plan_read(memory, manifest, received.slot, name)
            read(regions, plan.places, plan.into)
            received.moved[name] = plan.moved
        verify(memory, manifest, received.slot)
    return received


def receive_layers(
    memory: Memory, events: Iterable[Manifest | int], regions: Sequence[memoryview]
) -> Received:
    """Take a request in while it is computed: pages of a layer as soon as it has them.

    ``events``: a manifest for each chunk, then each of its layers that is computed; in the end
    the whole request, complete. Windows and states come then, and so do the digests. Raises as
    ``receive``.
    """
    manager, families = memory.manager, memory.families
    with _arriving(manager, 0) as received:
        received.moved = {name: Moved() for name in families}

        def fetch(name: str, manifest: Manifest, layers: Sequence[int] | None = None) -> None:
            plan = plan_read(memory, manifest, received.slot, name, layers)
            read(regions, plan.places, plan.into)
            received.moved[name] += plan.moved

        for event in events:
            if isinstance(event, Manifest):
                manifest = event
                check_manifest(manifest, memory)
                prepare_forward(manager, [received.slot], [received.tokens], [manifest.tokens])
                received.tokens = manifest.tokens
                continue
            for name, family in families.items():
                if family.kept is Kept.PAGES and event in family.layers:
                    fetch(name, manifest, [family.layers.index(event)])
        for name, family in families.items():
            if family.kept is not Kept.PAGES:
                fetch(name, manifest)
        verify(memory, manifest, received.slot)
    return received


def plan_read(
    memory: Memory,
    manifest: Manifest,
    slot: int,
    name: str,
    layers: Sequence[int] | None = None,
) -> Read:
    """Which bytes of a family there go where here; ``layers`` by their place, None for all."""
    family, offered, ours = memory.families[name], manifest.families[name], memory.geometries[name]
    ids, rows, theirs = memory.units(family, slot, manifest.tokens), offered.rows, offered.ids
    first, pieces = memory.numbers[name], 0
    places, into = list[Ids](), list[memoryview]()
    found: Descriptors | None = None
    for i in range(len(family.layers)) if layers is None else layers:
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
    size, useful = int(merged[:, 2].sum()), len(rows) * sum(offered.geometry.row_bytes)
    return Read(merged, into, Moved(pieces, len(merged), size, useful * len(places)))


def read(regions: Sequence[memoryview], places: Ids, into: Sequence[memoryview]) -> int:
    """Copy stretches of regions into views of the same lengths; returns nanoseconds."""
    start = perf_counter_ns()
    for (number, first, size), target in zip(places.tolist(), into, strict=True):
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


_START_S = 30.0  # to import torch and to fill the pools, whatever timeout_s is


@dataclass(frozen=True)
class Outcome:
    """What moved, what it cost, and what is wrong; GB/s are medians of all rounds."""

    families: Mapping[str, Moved]  # reads of each family
    gbps: Estimate | None  # of all families
    memcpy_gbps: Estimate | None  # of one copy of as many bytes
    at_end_ns: int  # from asking for a prompt until it has come, read after its end
    by_layer_ns: int  # the same, read layer by layer while it is computed
    pages: int  # digests that were compared of the timed request
    engines: Mapping[str, Sent | None]
    """What an engine would send for this request; None where that is not known."""
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
        self.send(config)
        places = self.receive(_START_S)
        memory = memoryview(mmap(file.fileno(), 0))
        self.regions = [memory[place] for place in places]

    def send(self, message: object) -> None:
        """Ask for something."""
        try:
            self._pipe.send(message)
        except ConnectionError:
            raise self._gone() from None

    def receive(self, start_s: float = 0.0) -> Any:
        """What it sends next; raises its errors, and ``StoreUnavailable`` where it is gone.

        ``start_s``: seconds that it may take beyond timeout_s, as it starts.
        """
        try:
            if not self._pipe.poll(self._timeout_s + start_s):
                limit = f"timeout_s, {self._timeout_s:g} s"
                limit += f", and {start_s:g} s for its start" if start_s else ""
                raise StoreUnavailable(
                    f"the prefill process did not answer within {limit}: raise timeout_s."
                )
            found = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._gone() from None
        if isinstance(found, Dsv4kvError):
            raise found
        return found

    def compute(self, what: str = "compute") -> Iterator[Manifest | int]:
        """Let it ``compute`` a prompt, or ``hold`` one: manifests and layers, the whole last."""
        self.send(what)
        complete = False
        while not complete:
            event = self.receive()
            complete = isinstance(event, Manifest) and event.complete
            yield event

    def whole(self, what: str = "compute") -> Manifest:
        """The same, and the whole request alone."""
        *_, manifest = self.compute(what)
        assert isinstance(manifest, Manifest)
        return manifest

    def _gone(self) -> StoreUnavailable:
        return StoreUnavailable("the prefill process ended in the middle.")


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

    Raises ``ConfigError`` where caches differ, ``StoreFull``, and ``StoreUnavailable`` where the
    process ends or is silent.
    """
    with prefill_process(config) as (prefill, _):
        side = Side(cache_of(config, config.decode, 1))
        return Decode(config, side, prefill).run(on_step)


@dataclass
class Decode:
    """A decode side that reads what a prefill process computes."""

    config: TransferConfig
    side: Side
    prefill: Prefill

    def run(self, on_step: Callable[[str, int, int], None]) -> Outcome:
        """Move a prompt at its end and one layer by layer; then time reads of a long request."""
        prefill, memory, config = self.prefill, self.side.memory, self.config

        def at_end() -> Received:
            return receive(memory, prefill.whole(), prefill.regions)

        def by_layer() -> Received:
            return receive_layers(memory, prefill.compute(), prefill.regions)

        on_step("prompt read at its end", 0, 3)
        at_end_ns, failures = self._move("at its end", at_end)
        on_step("prompt read layer by layer", 1, 3)
        by_layer_ns, more = self._move("layer by layer", by_layer)
        on_step("timed reads", 2, 3)
        manifest = prefill.whole("hold")
        received = receive(memory, manifest, prefill.regions)
        rates = self._measure(manifest, received)
        self._leave(received)
        return Outcome(
            {n: replace(moved, gbps=rates[n]) for n, moved in received.moved.items()},
            *(rates["all"], rates["memcpy"]),
            at_end_ns,
            by_layer_ns,
            pages=sum(len(each.digests) for each in manifest.families.values()),
            engines=engines_beside(config),
            failures=failures + more,
        )

    def _move(self, how: str, take: Callable[[], Received]) -> tuple[int, list[str]]:
        """Let a prompt be computed, take it in and go on: how long it took, and what is wrong.

        Both sides decode, and what they read must be equal. The request is forgotten by both.
        """
        start, steps = perf_counter_ns(), self.config.decode_steps
        try:
            received = take()
        except VerificationError as error:
            self.prefill.send("release")
            return perf_counter_ns() - start, [f"{how}: {error}"]
        taken_ns = perf_counter_ns() - start
        self.prefill.send("decode")
        stayed = self.prefill.receive()
        came = self.side.decode(received.slot, 0, steps)
        self._leave(received)
        unlike = f"{steps} decode steps do not read what a request reads that never left."
        return taken_ns, [f"{how}: {unlike}"] * (came != stayed)

    def _leave(self, received: Received) -> None:
        self.prefill.send("release")
        self.side.release(received.slot)

    def _measure(self, manifest: Manifest, received: Received) -> dict[str, Estimate | None]:
        """Read everything again and again, each time next to a copy of as many bytes.

        Rates by family, of ``all`` and of ``memcpy``.
        """
        memory, regions = self.side.memory, self.prefill.regions
        plans = {n: plan_read(memory, manifest, received.slot, n) for n in memory.families}
        sizes = {name: plan.moved.bytes for name, plan in plans.items()}
        size, rounds = sum(sizes.values()), list[dict[str, int]]()
        left, right = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        for _ in range(self.config.rounds + 1):
            spent = {name: read(regions, plan.places, plan.into) for name, plan in plans.items()}
            spent["all"] = sum(spent.values())
            spent["memcpy"] = timed_ns(lambda: np.copyto(right, left))
            rounds.append(spent)
        rates: dict[str, Estimate | None] = {}
        for name in rounds[0]:  # by the median: other processes make some rounds long
            times = summarize([spent[name] for spent in rounds[1:]])  # the first warms up
            rates[name] = divide(Estimate(sizes.get(name, size), 0.0), times.estimate)
        return rates


def engines_beside(config: TransferConfig) -> dict[str, Sent | None]:
    """What engines would send for this request, of the layers that are held."""
    model = load_model(config.model)
    formats = config.prefill.formats
    found: dict[str, Sent | None] = {}
    for name in TRANSFERS:
        if name not in ENGINES:
            continue
        deployment = Deployment(
            model=model,
            formats=choose_formats(model, formats.main, formats.window, formats.indexer),
            max_context_tokens=config.timed_tokens,
            in_flight_tokens=config.chunk_tokens,
            layers=config.layers,
        )
        try:
            found[name] = find_engine(name).sent(deployment, config.timed_tokens)
        except ConfigError:
            found[name] = None
    return found


def document_of(outcome: Outcome) -> dict[str, Any]:
    """All of it for JSON: nanoseconds, bytes and GB/s; intervals as half-widths."""
    return asdict(outcome, dict_factory=_without_arms)


def _without_arms(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != "arms"}
