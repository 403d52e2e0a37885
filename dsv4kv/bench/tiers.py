"""``bench tiers``: prefixes stored from a cache, looked up, and restored into it.

Every prefix is stored under new names in each round, so nothing is found that was there before.
A restored request and one that never left both go on, and every bit of the two is compared.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from dsv4kv.bench.build import check_data_path, plan_from
from dsv4kv.bench.library import FileStore, Library, MemoryStore, Store
from dsv4kv.bench.objects import CacheBytes, differences
from dsv4kv.bench.run import set_up
from dsv4kv.bench.serve.loop import Requests
from dsv4kv.budget.weights import find_weight_facts
from dsv4kv.config.bench import BenchConfig, CacheSection, MeasureSection, WorkloadSection
from dsv4kv.config.experiments import TiersConfig
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError, StoreUnavailable
from dsv4kv.files import make_folder, temporary_folder, user_cache
from dsv4kv.model.plan import CachePlan, Kept
from dsv4kv.replay.clock.steps import build_weights, open_times
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.statistics import Estimate, summarize
from dsv4kv.units import format_bytes, format_duration

_SURE = 0.01  # share of a time within which three digits of it are known


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
        return self.read_bytes / self.useful_bytes if self.useful_bytes else 0.0


@dataclass
class TiersOutcome:
    """Everything that a run found."""

    model: str
    gpu: str  # the GPUs of the model of computing, in words
    prefixes: list[PrefixRow] = field(default_factory=list)  # by store and length
    checks: int = 0  # comparisons made
    failures: list[str] = field(default_factory=list)  # a sentence for each that failed

    def answers(self) -> list[str]:
        """Whether restoring is worth it: a sentence per store."""
        stores = dict.fromkeys(row.store for row in self.prefixes)
        return [_worth([row for row in self.prefixes if row.store == name]) for name in stores]


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
    reach = math.inf if estimate.half_width is None else estimate.half_width
    return estimate.arms or (reach, reach)


def _at_most(time_ns: Estimate) -> str:
    """A time, or its upper end where the interval reaches 0."""
    below, above = _reach(time_ns)
    if time_ns.value <= below < math.inf:
        return f"less than {format_duration(time_ns.value + above, 2)}"
    sure = max(below, above) <= _SURE * time_ns.value
    return format_duration(time_ns.value, 3 if sure else 2)


_MORE_TOKENS, _STEPS = 132, 1  # computed and decoded after a restore: every kind of group ends
_SLOTS = 2
_SERIAL = 0
_PREFILL_TOKENS = 8192  # of a step in which prompts are computed, as modelled
OnStep = Callable[[str, int, int], None]  # called with the next one, and how many of all are done


def run_tiers(config: TiersConfig, on_step: OnStep) -> TiersOutcome:
    """Store, look up and restore every prefix; raises ``ConfigError``, ``StoreUnavailable``."""
    torch.set_num_threads(1)
    plan, cost = check_tiers(config), config.cost
    gpu = f"{cost.gpus} × {cost.gpu}" if cost.gpu else f"{cost.gpus} GPU"
    outcome = TiersOutcome(plan.config.name, gpu)
    steps = list(product(dict.fromkeys(config.stores), sorted(set(config.lengths))))
    with _folder(config) as folder:
        _check_room(config, plan, folder)
        built = set_up(_bench_config(config), None)
        assert built.drive is not None
        cache = CacheBytes(built.manager)
        requests = Requests(built.manager, built.drive.executor)
        families, prefill_ns = cache.families.values(), _prefill_model(config, plan)
        for done, (name, tokens) in enumerate(steps):
            on_step(f"{name}, {tokens:,} tokens", done, len(steps))
            memory = name == "memory"
            store: Store = MemoryStore() if memory else FileStore(folder, threads=config.threads)
            with closing(store):
                row, wrong = _measure(name, store, cache, requests, tokens, config.rounds)
            outcome.prefixes.append(replace(row, computed_ns=prefill_ns(tokens)))
            outcome.checks += len(families)
            outcome.failures += wrong
    return outcome


def check_tiers(config: TiersConfig) -> CachePlan:
    """The cache on paper; ``ConfigError`` for what cannot be run."""
    plan = plan_from(_bench_config(config))
    check_data_path(plan)
    return plan


def _measure(
    name: str, store: Store, cache: CacheBytes, requests: Requests, tokens: int, rounds: int
) -> tuple[PrefixRow, list[str]]:
    """Time rounds of a prefix in one store: a request stays, another one is restored.

    Then both go on, and every bit of both is compared: a sentence for what differs.
    """
    library = Library(cache, store)
    stayed, back = requests.admit(), requests.admit()
    requests.place(stayed, _SERIAL, tokens)
    times = list[list[int]]()
    for number in range(rounds):
        requests.release(back)
        back = requests.admit()
        prefix = library.prefix(np.arange(tokens) + number)
        moments = [perf_counter_ns()]
        library.store_prefix(prefix, stayed)
        moments.append(perf_counter_ns())
        found = library.restore(prefix, back)
        moments.append(perf_counter_ns())
        times.append(np.diff(moments).tolist())
        if found.tokens != tokens:
            cause = f": {found.damaged} is not there as it was stored" if found.damaged else ""
            raise StoreUnavailable(
                f"{name}: {tokens:,} tokens were stored and {found.tokens:,} came back{cause}. "
                "Take another place."
            )
        library.clear()
    families = cache.families.values()
    useful = sum(f.useful_bytes(tokens) for f in families if f.kept is Kept.PAGES)
    # the first warms up
    stored, restored = (summarize(list(each)).estimate for each in zip(*times[1:], strict=True))
    for slot in (stayed, back):
        requests.compute(slot, _SERIAL, tokens + _MORE_TOKENS)
        requests.decode(slot, _SERIAL, _STEPS)
    wrong = differences(cache, stayed, cache, back, tokens + _MORE_TOKENS + _STEPS)
    for slot in (stayed, back):
        requests.release(slot)
    row = PrefixRow(name, tokens, useful, found.read_bytes, stored, restored, None)
    return row, [f"{name}, {tokens:,} tokens: {each}" for each in wrong]


def _prefill_model(config: TiersConfig, plan: CachePlan) -> Callable[[int], float | None]:
    """Nanoseconds of a prompt, chunk by chunk, as ``replay`` models it; None without weights."""
    replay, model = ReplayConfig(model=config.model, cost=config.cost), plan.config
    if find_weight_facts(config.model.preset, model) is None:
        return lambda tokens: None
    weights = build_weights(replay, model, plan.schemas)
    timer = open_times(replay, model, plan.schemas, weights).timer
    return lambda tokens: timer.prompt_s(0, tokens, _PREFILL_TOKENS) * 1e9


def document_of(outcome: TiersOutcome) -> dict[str, Any]:
    """All of it for JSON: times in ns, intervals as half-widths."""
    return asdict(outcome) | {"answers": outcome.answers()}


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
    memory = plan.total_bytes + longest * (2 + 2 * ("memory" in config.stores))
    room = {"memory": (memory, capture_environment()["memory_bytes"] or memory)}
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
    with ExitStack() as stack:
        try:
            if parent is not None:
                make_folder(parent)
            folder = stack.enter_context(temporary_folder("dsv4kv-tiers-", parent))
        except OSError as error:
            raise StoreUnavailable(
                f"{parent}: files cannot be written there ({error.strerror}): name another folder."
            ) from None
        yield folder
