# mypy: ignore-errors
# ruff: noqa: F401, I001
# It runs in the engine's environment, where nothing is typed.
"""vLLM 0.33's own ``KVCacheManager`` on traces, one request after the other.

``python vllm_manager.py FOLDER < traces > answers`` in an environment of its own; FOLDER holds the
unpacked wheel. A line is one trace: ``prompts`` as (tokens, page ids), ``blocks`` of the pool,
``groups`` as ``none`` (context alone), ``v4`` or ``v41``, ``retention`` (null, 0 or tokens),
``chunk_tokens``, ``speculation``, and perhaps ``page``: tokens of a page and of a block of context
alone. The answer is what every request hit; for V4.1 as the scheduler takes it: less the window
that is computed again, nothing where it is no longer.
Source: ``v1/core/kv_cache_manager.py``, ``kv_cache_coordinator.py``, ``config/vllm.py``;
``v1/core/sched/scheduler.py`` (``prefix_replay_tokens``).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines, stand_in

PAGE = 256
V41_BLOCK, REPLAYED = 128, 128


def load(folder: Path) -> SimpleNamespace:
    """The engine's classes."""
    sys.path.insert(0, str(folder))
    stand_in("uvloop", "xgrammar", "partial_json_parser", "llguidance")
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_manager, kv_cache_utils
    from vllm.v1 import kv_cache_interface
    from vllm.v1.request import Request

    kv_cache_utils.init_none_hash(sha256)
    return SimpleNamespace(**locals())


def open_manager(engine: SimpleNamespace, trace: dict[str, Any], **options: Any) -> Any:
    """An empty cache; with drafts the second window group holds their layer."""
    import torch

    made, page = engine.kv_cache_interface, trace.get("page", PAGE)
    size = {"num_kv_heads": 1, "head_size": 584, "dtype": torch.uint8}
    context = made.MLAAttentionSpec(block_size=page, **size)
    window = made.SlidingWindowMLASpec(block_size=64, sliding_window=128, **size)
    hca = made.SlidingWindowMLASpec(block_size=8, sliding_window=128, **size)
    csa = made.SlidingWindowMLASpec(block_size=4, sliding_window=8, **size)
    specs = [context, window, window, csa, hca] if trace["groups"] == "v4" else [context]
    if trace["groups"] == "v41":
        context = made.MLAAttentionSpec(block_size=V41_BLOCK, **size)
        window = made.SlidingWindowMLASpec(
            block_size=32, sliding_window=128, bounded_replay=True, **size
        )
        ring = made.CircularBufferSpec(
            block_size=8, num_kv_heads=1, head_size=1024, head_size_v=0, dtype=torch.float32
        )
        specs = [context, *[window] * 5, ring]
    speculation = trace["speculation"]
    groups = [made.KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    groups[2 % len(groups)].is_eagle_group = speculation != "none" and trace["groups"] != "v41"
    config = made.KVCacheConfig(
        num_blocks=trace["blocks"] + 1,  # one is the null block
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=trace["retention"],
    )
    block = V41_BLOCK if trace["groups"] == "v41" else page
    look_ahead = 1 if speculation == "mtp" else 0
    return engine.kv_cache_manager.KVCacheManager(
        config,
        max_model_len=1 << 20,
        scheduler_block_size=block,
        hash_block_size=4 if trace["groups"] == "v4" else block,
        max_in_flight_tokens=trace["chunk_tokens"],
        use_eagle=speculation == "mtp+connector",
        num_hash_lookahead_tokens=look_ahead,
        num_prefill_lookahead=1 if speculation != "none" else 0,
        **options,
    )


def serve(
    engine: SimpleNamespace,
    manager: Any,
    trace: dict[str, Any],
    number: int,
    step: Callable[[], None] = lambda: None,
) -> int:
    """Compute a prompt and let it go; returns the tokens it hit, or -1 if it cannot run.

    ``step`` is called after every step of the scheduler.
    """
    tokens, pages = trace["prompts"][number]
    size = trace.get("page", PAGE)
    spelled = [page * size + i for page in pages for i in range(size)][:tokens]
    grain = {"v4": 4, "v41": V41_BLOCK}.get(trace["groups"], size)
    hasher = engine.kv_cache_utils.get_request_block_hasher(
        grain, engine.sha256, 1 if trace["speculation"] == "mtp" else 0
    )
    request = engine.Request(
        f"{number}", spelled, engine.SamplingParams(max_tokens=1), None, block_hasher=hasher
    )
    found, hit, boundary = manager.get_computed_blocks(request)
    request.shared_prefix_boundary = boundary
    replayed = REPLAYED if trace["groups"] == "v41" else 0
    if 0 < hit <= replayed:
        found, hit = manager.empty_kv_cache_blocks, 0
    first = {"num_new_computed_tokens": hit, "new_computed_blocks": found}
    again = min(replayed, hit)
    begin = at = hit - again
    while at < tokens:
        new = min(trace["chunk_tokens"], tokens - at)
        if manager.allocate_slots(request, max(new - again, 0), **first) is None:
            manager.free(request)
            return -1
        first, again, at = {}, 0, at + new
        request.num_computed_tokens = at
        step()
    manager.free(request)
    return int(begin)


def answer(engine: SimpleNamespace, trace: dict[str, Any]) -> list[int]:
    """Serve a trace; returns the tokens that every request hit."""
    manager = open_manager(engine, trace)
    return [serve(engine, manager, trace, number) for number in range(len(trace["prompts"]))]


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
