"""Shared, copied, evicted and resumed prefixes: the bits of a run without any reuse."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dsv4kv.bench.build import build_manager, build_reuse, plan_from
from dsv4kv.bench.serve.executor import Call, Recorder, StepTokens
from dsv4kv.bench.serve.inputs import PromptContents, StepInputs
from dsv4kv.bench.serve.loop import ServingLoop
from dsv4kv.bench.serve.reuse import PrefixReuse, prompt_keys
from dsv4kv.bench.serve.verifier import gathered
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.errors import ConfigError
from dsv4kv.ops.registry import load_backend
from dsv4kv.runs.schema import Totals
from dsv4kv.traces.request import Request
from tests.bench.serve.serving import drive_on_cpu, make_config
from tests.examples import examples

COMMON = (
    "cache.max_context_tokens=1024",
    "workload.concurrency=3",
    "workload.step_tokens=200",
    "model.layers=[0,2,3,4]",
)
Place = tuple[int, int, str, int]  # request, layer, kind of output, entry or position


def draw_requests(count: int, block_tokens: int = 128, seed: int = 0) -> list[Request]:
    """Prompts down a tree of two branches a block, each with an end of its own."""
    random, requests = np.random.default_rng(seed), []
    for number in range(count):
        depth, node, hashes = int(random.integers(1, 6)), 0, []
        for _ in range(depth):
            node = 2 * node + int(random.integers(1, 3))
            hashes.append(node)
        tokens = max(1, depth * block_tokens + int(random.integers(-30, 40)))
        needed = -(-tokens // block_tokens)
        own = [100_000 + 100 * number + i for i in range(needed - depth)]
        requests.append(
            Request(
                0.0,
                tokens,
                int(random.integers(1, 6)),
                tuple((hashes + own)[:needed]),
                block_tokens,
            )
        )
    return requests


class Gathered:
    """Everything that was gathered, by where it belongs."""

    def __init__(self) -> None:
        self.rows: dict[Place, torch.Tensor] = {}
        self.conflicts = 0

    def _keep(self, place: Place, row: torch.Tensor) -> None:
        found = self.rows.setdefault(place, row.clone())
        self.conflicts += not torch.equal(found, row)

    def look(self, step: StepTokens, call: Call, inputs: StepInputs) -> None:
        layer, out = call.layer.schema.layer.layer_idx, call.tensors["out"]
        window = call.operation[0] == "gather_window"
        kind = "window" if window else "keys" if call.operation[1] else "entries"
        for b, serial in enumerate(step.requests.tolist()):
            end = int(step.batch.tokens_after[b])
            if end > step.kept[b]:
                continue  # rejected drafts are of no consequence
            if window:
                visible = min(end, out.shape[1])
                rows = {i: end - visible + i for i in range(0, visible, 7)}
            else:
                rows = dict(enumerate(gathered(step, call, inputs)[b].tolist()))
            for row, place in rows.items():
                if place >= 0:
                    self._keep((serial, layer, kind, place), out[b, row])


def serve(
    requests: Sequence[Request], *options: str, observer: Any = None
) -> tuple[Totals, PrefixReuse | None, list[str]]:
    """Serve with data; totals, what was reused, and failed checks."""
    config = make_config(*COMMON, *options)
    manager, recorder = build_manager(config, plan_from(config), None), Recorder()
    drive = drive_on_cpu(config, manager, recorder)
    if observer is not None:
        drive.executor.observer = observer.look
    reuse = build_reuse(config, manager, load_backend("cpu"))
    served = (manager, requests, config, recorder, drive.executor)
    loop = ServingLoop(*served, reuse, PromptContents())
    totals = loop.run()
    if reuse is not None:
        reuse.forget()
    assert manager.num_held_blocks == 0
    return totals, reuse, drive.verifier.failures


@lru_cache(maxsize=2)  # most variants have the same
def serve_without_reuse(options: tuple[str, ...]) -> tuple[Totals, Gathered]:
    gathered = Gathered()
    totals, _, _ = serve(draw_requests(14), *options, observer=gathered)
    return totals, gathered


RADIX = "cache.prefix.index=radix"
VARIANTS = {
    "to 128 tokens": (RADIX,),
    "in whole blocks": ("cache.prefix.index=block_hash",),
    "blocks evicted": (RADIX, "cache.num_blocks=14"),
    "checkpoints evicted": (RADIX, "cache.prefix.checkpoints=2"),
    "periodic": (RADIX, "cache.prefix.windows=periodic", "cache.prefix.period_tokens=256"),
    "ends alone": (RADIX, "cache.prefix.windows=ends"),
    "blocks copied": (RADIX, "cache.block_tokens=512"),
    "blocks copied in a tight pool": (RADIX, "cache.block_tokens=256", "cache.num_blocks=9"),
    "drafts": (
        *(RADIX, "cache.block_tokens=256"),
        *("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5"),
    ),
    "online state": (RADIX, "cache.state=online"),
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_what_is_gathered_has_the_bits_of_a_run_without_reuse(options: tuple[str, ...]) -> None:
    with_reuse = Gathered()
    totals, reuse, _ = serve(draw_requests(14), *options, observer=with_reuse)
    same = tuple(option for option in options if "prefix" not in option)
    plain, without = serve_without_reuse(same)
    assert reuse is not None
    assert totals.resumed_tokens > 500
    assert totals.input_tokens + totals.resumed_tokens == plain.input_tokens
    assert totals.output_tokens == plain.output_tokens
    assert with_reuse.conflicts == without.conflicts == 0
    both = with_reuse.rows.keys() & without.rows.keys()
    assert len(both) > 0.9 * len(without.rows)
    for place in both:
        assert torch.equal(with_reuse.rows[place], without.rows[place]), place


# ---- that the checks can fail -------------------------------------------------------------------


def restore_nothing(patcher: Callable[..., Any]) -> Any:
    return patcher(CheckpointPool, "restore", lambda self, checkpoint, slot: None)


def copy_nothing(patcher: Callable[..., Any]) -> Any:
    return patcher(load_backend("cpu"), "page_copy", lambda store, sources, targets: None)


@pytest.mark.parametrize("defect", [restore_nothing, copy_nothing])
def test_a_prefix_that_is_not_brought_back_is_found(defect: Callable[..., Any]) -> None:
    with defect(patch.object):
        _, _, failures = serve(draw_requests(14), *VARIANTS["blocks copied"])
    assert failures


# ---- bookkeeping under any requests -------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Request], list[str]]:
    requests = draw_requests(draw(st.integers(1, 12)), 256, seed=draw(st.integers(0, 99)))
    block_tokens = draw(st.sampled_from((128, 256, 512)))
    index = draw(st.sampled_from(("radix", "block_hash"))) if block_tokens <= 256 else "radix"
    options = [
        f"cache.block_tokens={block_tokens}",
        f"cache.prefix.index={index}",
        f"cache.prefix.policy={draw(st.sampled_from(('lru', 'lfu')))}",
        f"cache.prefix.windows={draw(st.sampled_from(('ends', 'ends+junctions', 'periodic')))}",
        f"cache.prefix.checkpoints={draw(st.integers(1, 5))}",
        f"cache.num_blocks={draw(st.integers(5, 30)) * 256 // block_tokens + 2}",
        f"cache.prefix.period_tokens={draw(st.sampled_from((256, 512)))}",
        "cache.max_context_tokens=2048",
        "workload.data=none",
    ]
    return requests, options


def _request(input_tokens: int, output_tokens: int, *hashes: int) -> Request:
    return Request(0.0, input_tokens, output_tokens, hashes, 256)


HALF_A_BLOCK_SHARED = (
    [
        _request(746, 4, 2, 6, 13),
        _request(1058, 5, 2, 6, 14, 30, 100_100),
        _request(1280, 4, 2, 6, 13, 27, 56),
        _request(738, 1, 2, 5, 12),
        _request(1272, 5, 1, 4, 9, 20, 42),
        _request(1061, 2, 2, 5, 12, 26, 100_500),
    ],
    [
        "cache.block_tokens=512",
        "cache.prefix.index=radix",
        "cache.prefix.policy=lru",
        "workload.data=none",
        "cache.prefix.windows=ends",
        "cache.prefix.checkpoints=1",
        "cache.num_blocks=6",
        "cache.prefix.period_tokens=256",
        "cache.max_context_tokens=2048",
    ],
)
"""The last prompt pins two blocks to share one: half of it is also in another prompt's block."""

NO_BLOCK_TO_COPY_TO = (
    [
        _request(267, 3, 1, 100_000),
        _request(498, 5, 1, 4),
        _request(1253, 4, 1, 4, 9, 19, 40),
        _request(226, 1, 2),
        _request(499, 5, 2, 5),
    ],
    [each.replace("num_blocks=6", "num_blocks=4") for each in HALF_A_BLOCK_SHARED[1]],
)
"""What is cached besides is in use: evicting it frees nothing, and nothing can be copied."""


@examples(150)
@given(workloads())
@example(HALF_A_BLOCK_SHARED)
@example(NO_BLOCK_TO_COPY_TO)
def test_references_equal_owners_at_every_step(case: tuple[list[Request], list[str]]) -> None:
    requests, options = case
    given = {option.partition("=")[0] for option in options}
    config = make_config(*(o for o in COMMON if o.partition("=")[0] not in given), *options)
    manager = build_manager(config, plan_from(config), None)
    reuse = build_reuse(config, manager, load_backend("cpu"))
    assert reuse is not None
    cached: Counter[int] = Counter()
    index, (table,) = reuse.index, manager.tables
    insert, evict = index.insert, index.evict

    def kept(*arguments: Any) -> Any:
        found = insert(*arguments)
        cached.update(found)
        return found

    def gone(count: int) -> Any:
        found = evict(count)
        cached.subtract(found)
        return found

    def check() -> None:
        owners = Counter(block for block in table.blocks.flatten().tolist() if block >= 0)
        owners.update(cached)
        everything = np.arange(table.allocator.num_blocks)
        refs = reuse._allocator.refs(everything).tolist()
        assert refs == [owners[block] for block in everything.tolist()]

    loop = ServingLoop(manager, requests, config, Recorder(), None, reuse)
    with patch.object(index, "insert", kept), patch.object(index, "evict", gone):
        for _ in loop.steps():
            check()
        totals = loop.totals
        reuse.forget()
    assert manager.num_held_blocks == 0
    assert totals.requests + totals.rejected == len(requests)
    assert reuse.checkpoints.num_free == config.cache.prefix.checkpoints


# ---- keys and refusals --------------------------------------------------------------------------


def test_hashes_of_other_lengths_than_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"covers 16 tokens, and prefixes .* of 128"):
        prompt_keys(Request(0.0, 64, 5, (1, 2, 3, 4), 16), 128)
