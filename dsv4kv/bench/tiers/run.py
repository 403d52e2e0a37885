"""``bench tiers``: prefixes stored from a cache, looked up, and restored into it.

Every prefix is stored under new names in each round, so nothing is found that was there before.
A restored request and one that never left both go on, and every bit of the two is compared.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
import torch

from dsv4kv.bench.build import check_data_path, plan_from
from dsv4kv.bench.protocol import timed_ns
from dsv4kv.bench.run import set_up
from dsv4kv.bench.serve.executor import Requests
from dsv4kv.bench.tiers.library import Library
from dsv4kv.bench.tiers.objects import CacheBytes, Mover, differences
from dsv4kv.bench.tiers.store import FileStore, MemoryStore, Store
from dsv4kv.budget.lookup import find_weight_facts
from dsv4kv.config.bench import BenchConfig, CacheSection, MeasureSection, WorkloadSection
from dsv4kv.config.experiments import TiersConfig
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.clock import VirtualClock
from dsv4kv.errors import ConfigError, StoreUnavailable
from dsv4kv.files import make_folder, temporary_folder, user_cache
from dsv4kv.model.plan import CachePlan, Family, Kept
from dsv4kv.replay.clock.sources import open_times
from dsv4kv.replay.clock.steps import build_weights
from dsv4kv.replay.costs import StepTables, find_rates
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.statistics import Estimate, divide, summarize
from dsv4kv.units import format_bytes, format_duration

_SURE = 0.01  # share of a time within which three digits of it are known


@dataclass(frozen=True)
class Way:
    """One direction between a GPU and the host, in nanoseconds."""

    time: Estimate  # gathered by one launch
    limit: Estimate  # one copy of as many bytes
    by_pages: Estimate  # a copy for every layer's piece

    @property
    def share(self) -> Estimate:
        """Of the limit's rate."""
        return divide(self.limit, self.time)


@dataclass(frozen=True)
class FamilyRow:
    """Objects of a family, from a GPU to the host's pinned memory and back."""

    family: str
    objects: int
    object_bytes: int  # of each
    store_way: Way
    restore_way: Way

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return self.objects * self.object_bytes


@dataclass(frozen=True)
class PrefixRow:
    """A prefix in one store; times in nanoseconds."""

    store: str  # its name
    tokens: int
    useful_bytes: int  # compressed entries and indexer keys of these tokens, without padding
    read_bytes: int  # read to restore it, the manifest left out
    stored: Estimate
    restored: Estimate  # to look it up, read, compare and put it into the cache
    computed_ns: float | None  # to compute it, as modelled, where that is known

    @property
    def back_ns(self) -> tuple[float, float]:
        """Until the request is where it was: least and most."""
        below, above = _reach(self.restored)
        return self.restored.value - below, self.restored.value + above

    @property
    def amplification(self) -> float:
        """Bytes read for each that is useful."""
        return self.read_bytes / self.useful_bytes if self.useful_bytes else 0.0


@dataclass
class TiersOutcome:
    """Everything that a run found."""

    model: str
    gpu: str  # the GPUs of the model of computing, in words
    cold: dict[str, str] = field(default_factory=dict)
    """How reads come from the disk, by store; nothing where there is none."""
    prefixes: list[PrefixRow] = field(default_factory=list)  # by store and length
    copies: list[FamilyRow] = field(default_factory=list)
    """Of the longest prefix, between GPU and host; nothing on a CPU."""
    checks: int = 0  # comparisons made
    failures: list[str] = field(default_factory=list)  # A sentence for each that failed

    def answers(self) -> list[str]:
        """Whether restoring is worth it: a sentence per store."""
        return [
            _worth(rows)
            for store in dict.fromkeys(row.store for row in self.prefixes)
            if (rows := [row for row in self.prefixes if row.store == store])
        ]


def _worth(rows: Sequence[PrefixRow]) -> str:
    longest = max(rows, key=lambda row: row.tokens)
    taken = f"{longest.store}: {longest.tokens:,} tokens are back in "
    taken += _at_most(longest.restored)
    if longest.computed_ns is None:
        return f"{taken}; how long computing them takes is not known for this model."
    worth = [row.tokens for row in rows if row.back_ns[1] < (row.computed_ns or 0)]
    unknown = len(worth) < sum(row.back_ns[0] < (row.computed_ns or 0) for row in rows)
    verdict = "at none of these lengths"
    if worth:
        verdict = "at every length" if len(worth) == len(rows) else f"from {min(worth):,} tokens"
    if unknown:
        verdict += ", as far as these times are known"
    computed = format_duration(longest.computed_ns, 2)
    return f"{taken}, computing them takes {computed} (modelled): restoring is worth it {verdict}."


def _reach(estimate: Estimate) -> tuple[float, float]:
    """How far its interval reaches below and above."""
    reach = math.inf if estimate.half_width is None else estimate.half_width
    return estimate.arms or (reach, reach)


def _at_most(time_ns: Estimate) -> str:
    """A time, or its upper end where the interval reaches 0."""
    below, above = _reach(time_ns)
    known = math.isinf(above) or below < time_ns.value
    at_most = "" if known else "less than "
    sure = not known or max(below, above) <= _SURE * time_ns.value
    time = time_ns.value + (0.0 if known else above)
    return at_most + format_duration(time, 3 if sure else 2)


_MORE_TOKENS, _STEPS = 132, 1  # computed and decoded after a restore: every kind of group ends
_SLOTS = 2
_SERIAL = 0
OnStep = Callable[[str, int, int], None]  # called with the next one, and how many of all are done


def run_tiers(config: TiersConfig, on_step: OnStep) -> TiersOutcome:
    """Store, look up and restore every prefix; raises ``ConfigError``, ``StoreUnavailable``."""
    torch.set_num_threads(1)
    plan = check_tiers(config)
    bench, cost = _bench_config(config), config.cost
    gpu = f"{cost.gpus} × {cost.gpu}" if cost.gpu else f"{cost.gpus} GPU"
    outcome = TiersOutcome(plan.config.name, gpu)
    steps = list(product(dict.fromkeys(config.stores), sorted(set(config.lengths))))
    with _folder(config) as folder:
        _check_room(config, plan, folder)
        built = set_up(bench, None)
        assert built.drive is not None
        cache = CacheBytes(built.manager)
        requests = Requests(built.manager, built.drive.executor)
        run = _Run(config, cache, requests, outcome)
        for done, (name, tokens) in enumerate(steps):
            on_step(f"{name}, {tokens:,} tokens", done, len(steps))
            store = run.open(name, folder)
            try:
                run.measure(name, store, tokens)
                if isinstance(store, FileStore):
                    outcome.cold[name] = store.cold
            finally:
                store.close()
        if cache.mover is not None:
            slot, longest = requests.admit(), max(config.lengths)
            requests.place(slot, _SERIAL, longest)
            moved = cache, cache.mover, slot, longest, config.rounds
            families = [each for each in cache.families.values() if each.objects(longest)]
            outcome.copies = [measure_copies(family, *moved) for family in families]
            requests.release(slot)
    return outcome


def check_tiers(config: TiersConfig) -> CachePlan:
    """The cache on paper; ``ConfigError`` for what cannot be run."""
    plan = plan_from(_bench_config(config))
    check_data_path(plan)
    return plan


@dataclass
class _Run:
    """One run: a cache with two slots; one stays, one comes back."""

    config: TiersConfig
    cache: CacheBytes
    requests: Requests
    outcome: TiersOutcome

    def __post_init__(self) -> None:
        self._families = list(self.cache.families.values())
        self._prefill_ns = _prefill_model(self.config, self.cache.manager.plan)

    def open(self, name: str, folder: Path) -> MemoryStore | FileStore:
        if name == "memory":
            longest = max(self.config.lengths)
            sizes = (each.objects(longest) * each.object_bytes for each in self._families)
            return MemoryStore(4 * sum(sizes))
        return FileStore(folder, threads=self.config.threads)

    def measure(self, name: str, store: Store, tokens: int) -> None:
        """One prefix in one store."""
        requests = self.requests
        library = Library(self.cache, store, revision="drawn")
        stayed = requests.admit()
        requests.place(stayed, _SERIAL, tokens)
        back = self._measure_prefix(name, library, stayed, tokens)
        self._verify(name, stayed, back, tokens)
        for slot in (stayed, back):
            requests.release(slot)

    def _measure_prefix(self, name: str, library: Library, stayed: int, tokens: int) -> int:
        """Time every round of a prefix; returns the last restored slot."""
        back, rounds = self.requests.admit(), list[list[int]]()
        for number in range(self.config.rounds):
            self.requests.release(back)
            back = self.requests.admit()
            prefix = library.prefix(np.arange(tokens) + number)
            moments = [perf_counter_ns()]
            library.store_prefix(prefix, stayed)
            moments.append(perf_counter_ns())
            found = library.restore(prefix, back)
            moments.append(perf_counter_ns())
            rounds.append(np.diff(moments).tolist())
            if found.tokens != tokens or found.failed:
                cause = f" (the first: {library.failure})" if library.failure else ""
                raise StoreUnavailable(
                    f"{name}: {tokens:,} tokens were stored and {found.tokens:,} came back; "
                    f"{library.failures} calls failed{cause} and {library.damaged_objects} "
                    "objects were damaged: give the store more room, or take another place."
                )
            library.clear()
        useful = sum(f.useful_bytes(tokens) for f in self._families if f.kept is Kept.PAGES)
        stored_ns, restored = (_estimate(list(each)) for each in zip(*rounds, strict=True))
        counts = tokens, useful, found.read_bytes
        times = stored_ns, restored, self._prefill_ns(tokens)
        self.outcome.prefixes.append(PrefixRow(name, *counts, *times))
        return back

    def _verify(self, name: str, stayed: int, back: int, tokens: int) -> None:
        """Both go on, and every bit of both is compared."""
        for slot in (stayed, back):
            self.requests.compute(slot, _SERIAL, tokens + _MORE_TOKENS)
            self.requests.decode(slot, _SERIAL, _STEPS)
        after = tokens + _MORE_TOKENS + _STEPS
        found = differences(self.cache, stayed, self.cache, back, after)
        self.outcome.checks += len(self.cache.families)
        self.outcome.failures += [f"{name}, {tokens:,} tokens: {each}" for each in found]


def _prefill_model(config: TiersConfig, plan: CachePlan) -> Callable[[int], float | None]:
    """Nanoseconds of a prompt, chunk by chunk, as ``replay`` models it.

    None for a model whose weights are not known.
    """
    replay = ReplayConfig(model=config.model, cost=config.cost)
    if find_weight_facts(config.model.preset, plan.config) is None:
        return lambda tokens: None
    tables = StepTables(plan.config, plan.schemas, max(config.lengths))
    weights = build_weights(replay, plan.config, plan.schemas)
    stated = config.cost.clock == "stated"
    clock = VirtualClock(
        tables.weighed(weights),
        find_rates(config.cost) if stated else None,
        None if stated else open_times(replay, plan.config, plan.schemas, weights).timer,
    )
    return lambda tokens: clock.prompt_s(0, tokens, config.prefill_tokens) * 1e9


def document_of(outcome: TiersOutcome) -> dict[str, Any]:
    """All of it for JSON: times in ns, intervals as half-widths."""
    return asdict(outcome) | {"answers": outcome.answers()}


def _estimate(samples_ns: list[int]) -> Estimate:
    """The first warms up."""
    return summarize(samples_ns[1:]).estimate


def _bench_config(config: TiersConfig) -> BenchConfig:
    longest = max(config.lengths)
    return BenchConfig(
        device=config.device,
        model=config.model,
        cache=CacheSection(
            block_tokens=config.block_tokens,
            max_context_tokens=longest + _MORE_TOKENS + _STEPS,
            num_slots=_SLOTS,
        ),
        workload=WorkloadSection(
            trace=None, context=longest, concurrency=_SLOTS, step="gather", decode="graph"
        ),
        measure=MeasureSection(seed=config.seed),
    )


def _check_room(config: TiersConfig, plan: CachePlan, folder: Path) -> None:
    """Raise ``ConfigError`` where memory or disk do not hold what is moved."""
    longest = plan.total_bytes // plan.num_slots
    needed = plan.total_bytes + longest * (2 + 2 * ("memory" in config.stores))
    memory = capture_environment()["memory_bytes"]
    room = {"memory": (needed, memory or needed), "the disk": (0, needed)}
    if "file" in config.stores:
        room["the disk"] = 3 * longest, shutil.disk_usage(folder).free
    for what, (wanted, there) in room.items():
        if wanted > there:
            raise ConfigError(
                f"lengths up to {max(config.lengths):,} tokens need {format_bytes(wanted)} of "
                f"{what} and there are {format_bytes(there)}: shorten lengths, or hold fewer "
                "layers (model.layers)."
            )


@contextmanager
def _folder(config: TiersConfig) -> Iterator[Path]:
    parent = Path(config.folder) if config.folder else user_cache()
    with ExitStack() as held:
        try:
            if parent is not None:
                make_folder(parent)
            folder = held.enter_context(temporary_folder("dsv4kv-tiers-", parent))
        except OSError as error:
            raise StoreUnavailable(
                f"{parent}: files cannot be written there ({error.strerror}): name another folder."
            ) from None
        yield folder


_MOST_BYTES = 256 << 20  # of a family at a time


def measure_copies(
    family: Family, cache: CacheBytes, mover: Mover, slot: int, tokens: int, rounds: int
) -> FamilyRow:
    """Move a family of a request there and back: gathered, as one copy, and page by page."""
    count = min(family.objects(tokens), max(1, _MOST_BYTES // family.object_bytes))
    units = cache.units(family, slot, tokens)[:, :count]
    data, host = cache.new_objects(family, count), mover.room(count * family.object_bytes)

    def direction(way: Literal["take", "put"]) -> Way:
        calls = (
            partial(mover.gathered, way, family, units, data),
            partial(mover.whole, way, host),
            partial(mover.by_pages, way, family, units, data),
        )
        taken = [[timed_ns(call) for call in calls] for _ in range(rounds)]
        return Way(*(_estimate(list(each)) for each in zip(*taken, strict=True)))

    ways = direction("take"), direction("put")
    return FamilyRow(family.name, count, family.object_bytes, *ways)
