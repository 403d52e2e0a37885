"""Pools: every layer has its own pages and table; this is ``dsv4kv bench`` on the CPU."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dsv4kv.bench.run import run_case
from dsv4kv.bench.systems.workload import Model, Outcome
from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule

_COUNT = 64  # blocks of a timed call
_PROMPT, _CONTEXT = 8192, 16_384  # tokens


def bench_config(config: SystemsConfig) -> BenchConfig:
    """The cache and its workload as ``dsv4kv bench`` would be asked for them."""
    section = config.pools
    prompts = {"kind": "uniform", "low": section.prompt_tokens}
    synthetic = {
        "requests": 2 * section.requests,  # each slot has a second owner
        "input": prompts | {"high": section.prompt_tokens + section.requests},
        "output": {"kind": "fixed", "mean": section.decode_steps + 1},
    }
    drafts = {"draft_tokens": section.draft_tokens, "acceptance": 0.3}
    served = {"trace": None, "concurrency": section.requests, "step": "gather"}
    measured = {"verify_every": 1, "warmup_steps": 0, "memcpy_bytes": 2**20}
    context = 2 * section.prompt_tokens + 1024
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": {"preset": config.model, "layers": section.layers},
            "cache": {"sharing": "layer", "max_context_tokens": context},
            "workload": {**served, "synthetic": synthetic, "speculative": drafts},
            "measure": {"seed": config.seed, **measured},
        }
    )


def run_pools(config: SystemsConfig, _: Model) -> Outcome:
    """Move the layers' bytes, and time the manager's calls over a whole model."""
    case = run_case({}, bench_config(config), lambda _: None)
    outcome = Outcome("pools", config.calls)
    for name, count in case.verification.by_operation.items():
        outcome.check(name, True, "", count)
    problems = case.verification.failures or ([case.error] if case.error else [])
    outcome.failures += [f"pools: {problem}" for problem in problems]
    assert case.cache is not None
    assert case.totals is not None
    parts = {
        "pages of the layers": ("main", "indexer"),
        "windows and states of the layers": ("window", "state"),
        "block tables": ("tables",),
    }
    for quantity, names in parts.items():
        size = sum(pool.allocated_bytes for pool in case.cache.pools if pool.name in names)
        outcome.counted(quantity, "B", size)
    outcome.counted("requests served", "requests", case.totals.requests)
    outcome.counted("most blocks held", "blocks", case.totals.peak_blocks)
    outcome.counted("drafted tokens rolled back", "tokens", case.totals.rolled_back_tokens)
    if config.calls.seconds:
        _time_calls(outcome, load_model(config.calls.model), config.calls.batches)
    return outcome


def _time_calls(outcome: Outcome, model: DSV4Config, batches: Sequence[int]) -> None:
    """Calls of the block pool, and of managers without data over all layers of a model."""
    pool = BlockPool(2**16)
    ids = pool.acquire(_COUNT)
    # The blocks last returned are handed out first: the ids stay the same.
    acquire, release = partial(pool.acquire, _COUNT), partial(pool.release, ids)
    outcome.timed(f"acquire {_COUNT} of 65,536", acquire, release)
    release()
    outcome.timed(f"release {_COUNT} of 65,536", release, acquire)
    layers = sum(spec.owns_kv for spec in build_schedule(model))
    for batch in batches:
        plan = plan_cache(model, max_context_tokens=_CONTEXT, num_slots=batch)
        manager = KVCacheManager(plan, data=False)
        slots = np.array([manager.admit_request() for _ in range(batch)])
        prepare = partial(prepare_forward, manager, slots)
        after = np.random.default_rng(0).integers(_PROMPT, _PROMPT + 1024, batch)
        before = after - 1
        prepare(np.zeros_like(before), after)

        def move(before: Ids = before, after: Ids = after) -> None:
            np.add(before, 1, out=before)
            np.add(after, 1, out=after)

        quantity = f"prepare a decode step of {batch}, {layers} layers"
        outcome.timed(quantity, partial(prepare, before, after), move)
    none, prompt = np.zeros(batch, np.int64), np.full(batch, _PROMPT)
    prepare(after, none)
    start, back = partial(prepare, none, prompt), partial(prepare, prompt, none)
    start()
    outcome.timed(f"prepare {batch} prompts of {_PROMPT:,}, {layers} layers", start, back)
    outcome.timed(f"roll back {batch} prompts of {_PROMPT:,}", back, start)
    tables = sum(table.blocks.nbytes for table in manager.tables)
    outcome.counted(f"block tables of {batch} requests", "B", tables)
    taken = list[Ids]()

    def leave() -> None:
        if not manager.num_free_slots:
            manager.release_request(0, manager.generation(0))

    def enter() -> None:
        if manager.num_free_slots:
            manager.admit_request()
        prepare_forward(manager, [0], manager.tokens[:1], [_PROMPT])

    def give_back() -> None:
        while taken:
            manager.tables[0].allocator.release(taken.pop())

    outcome.timed("admit_request", manager.admit_request, leave)
    outcome.timed(f"release_request, {_PROMPT // 128} blocks, {layers} layers", leave, enter)
    outcome.timed("allocate_block", lambda: taken.append(manager.allocate_block()), give_back)
