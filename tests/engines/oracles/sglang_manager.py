# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""SGLang 0.5.23's unified radix cache on traces, one request after the other.

``python sglang_manager.py FOLDER < traces > answers`` in an environment of its own; FOLDER holds
the unpacked wheel. A line is one trace: ``prompts`` as (tokens, page ids), ``pages`` and
``window_pages`` of the pools (the latter null for one pool), ``chunk_pages``, ``free``:
``SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS``, ``speculation``, and ``replay``: V4.1's
``decoder``, ``encoder`` or null. The answer is what every request hit, less what encoder replay
computes again of it. Encoder replay has one pool (``needs_paged_swa_allocator``).
Source: ``unified_radix_cache.py``, ``unified_cache/components/swa.py``, ``common.py``.
"""

import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines  # isort: skip; it knows where the driver lies
from driven import sglang as driven
from driven.sglang import PAGE, Request, load, take_pages


def open_cache(engine: SimpleNamespace, trace: dict[str, Any], **options: Any) -> Any:
    """An empty cache of the trace's pools, for one request."""
    longest = max(tokens for tokens, _ in trace["prompts"]) + PAGE
    return driven.open_cache(engine, trace | {"longest": longest, "running": 1}, **options)


def serve(
    engine: SimpleNamespace,
    cache: Any,
    tokens: Any,
    chunk_tokens: int,
    step: Callable[[], None] = lambda: None,
) -> int:
    """Compute a prompt, keep it, let it go; returns the tokens it hit.

    ``step`` is called after every step of the scheduler.
    """
    request, common = Request(engine, tokens), engine.common
    common.match_kv_cache(request, cache, tokens, max_prefix_len=len(tokens) - 1)
    hit = int(request.prefix_len)
    request.kv.cache_protected_len = hit
    request.lock = cache.lock(request.last_node)
    cache.req_to_token_pool.req_to_token[0, :hit] = cache.prefix_device_indices(request)
    while request.extend_end < len(tokens):
        begin = request.prefix_len
        request.extend_end = min(begin + chunk_tokens, len(tokens))
        take_pages(cache, 0, begin, -(-(request.extend_end - begin) // PAGE))
        request.kv.kv_allocated_len = request.extend_end
        common.checkpoint_kv_cache(request, cache)
        step()
    request.done = True
    common.release_kv_cache(request, cache, checkpoint=True)
    step()
    return hit


def answer(
    engine: SimpleNamespace,
    cache: Any,
    trace: dict[str, Any],
    step: Callable[[], None] = lambda: None,
) -> list[int]:
    """Serve a trace; returns the tokens that every request hit."""
    with engine.envs.SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS.override(trace["free"]):
        hits = []
        for count, pages in trace["prompts"]:
            spelled = array("q", (page * PAGE + i for page in pages for i in range(PAGE)))
            hit = serve(engine, cache, spelled[:count], trace["chunk_pages"] * PAGE, step)
            again = (
                engine.encoder_swa_replay.replay_len(hit) if trace["replay"] == "encoder" else 0
            )
            hits.append(hit - again)
        return hits


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda trace: answer(engine, open_cache(engine, trace), trace))
