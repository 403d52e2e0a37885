# mypy: ignore-errors
# ruff: noqa: F401, I001, PLR0402, N, E402
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

import ast
import dataclasses
import json
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from stand_ins import bare_package, stand_in

MEMORY = "sglang.srt.mem_cache"
PAGE, WINDOW = 256, 128
REAL = [
    "sglang.srt.environ",
    "sglang.srt.model_executor.encoder_swa_replay",
    *(
        f"{MEMORY}.{name}"
        for name in (
            "allocator.base",
            "allocator.paged",
            "allocator.swa",
            "base_prefix_cache",
            "base_swa_memory_pool",
            "cache_init_params",
            "common",
            "evict_policy",
            "events",
            "hicache_storage",
            "radix_cache",
            "unified_cache",
            "unified_radix_cache",
            "utils",
        )
    ),
]


def load(folder: Path, *more: str) -> SimpleNamespace:
    """The engine's classes; ``more`` of its modules are no stand-ins."""
    sys.path.insert(0, str(folder))
    packages = ["sglang", "sglang.srt", MEMORY, f"{MEMORY}.allocator", "sglang.srt.model_executor"]
    for name in [*packages, *{name.rpartition(".")[0] for name in more}]:
        bare_package(name, str(folder.joinpath(*name.split("."))))
    stand_in("sglang", "triton", *(() if more else ("zmq",)), "torch_npu", real=[*REAL, *more])
    _fill_in()
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import base_prefix_cache, common
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.model_executor.encoder_swa_replay import replay_len

    held = _class_of(
        folder / "sglang/srt/managers/schedule_batch.py",
        "ReqKvInfo",
        {
            "dataclasses": dataclasses,
            "ComponentType": ComponentType,
            "ceil_align": _ceil_align,
            "_is_hip": False,
            "Optional": __import__("typing").Optional,
            "torch": __import__("torch"),
            "RetractionBackup": object,
        },
    )
    return SimpleNamespace(**locals())


def _ceil_align(value: int, size: int) -> int:
    return -(-value // size) * size


def _fill_in() -> None:
    """Helpers of modules that are stand-ins."""
    import sglang.srt.utils as utils
    import sglang.srt.utils.common as common
    import sglang.srt.utils.invariants as invariants
    import sglang.srt.utils.rank_consensus_checker as ranks
    import sglang.srt.platforms as platforms
    import sglang.srt.session.streaming_session as session
    import sglang.srt.runtime_context as context
    import sglang.srt.mem_cache.allocator.page_interleave as interleave
    import sglang.srt.disaggregation.kv_events as kv_events
    import sglang.srt.layers.attention.dsv4.unified_kv_gate as ring

    def as_it_is(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda function: function

    if not hasattr(kv_events, "__file__"):  # a stand-in
        kv_events.StorageMedium = MagicMock()
    ring.is_unified_kv_triton = lambda: False
    common.ceil_align = _ceil_align
    for name in ("is_npu", "is_hip", "is_cuda", "is_xpu", "is_cpu"):
        setattr(utils, name, lambda: False)
        setattr(common, name, lambda: False)
    utils.get_bool_env_var = lambda *_: False
    invariants.expect = lambda *_, **__: None
    invariants.Invariant = lambda *_, **__: None
    invariants.IsTrue = lambda *_: None
    invariants.Bucket = MagicMock()
    ranks.rank_consensus = as_it_is
    platforms.current_platform.get_paged_allocator_cls = lambda: None
    session.is_virtual_node = lambda _: False
    session.StreamingSession = NoSession
    interleave.page_interleave_shard_size = lambda _: 1
    context.get_serving().strip_thinking_cache = False


class NoSession:
    """No request belongs to a session."""

    def __init__(self, cache: Any) -> None:
        self.slots: dict[str, Any] = {}

    def try_match_prefix(self, params: Any) -> None:
        return None

    def try_cache_finished_req(self, request: Any) -> bool:
        return False

    def will_lend_record(self, _: Any) -> bool:
        return False

    def try_checkpoint(self, *_: Any, **__: Any) -> bool:
        return False


def _class_of(path: Path, name: str, names: dict[str, Any]) -> type:
    """One class of a module that cannot be imported."""
    tree = ast.parse(path.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, node], []), str(path), "exec"), names)
    made: type = names[name]
    return made


class Request:
    """What the cache asks of a request."""

    def __init__(self, engine: SimpleNamespace, tokens: Any) -> None:
        self.rid, self.priority, self.session_id, self.extra_key, self.cache_salt = (
            "",
            0,
            None,
            None,
            None,
        )
        self.kv_rotation_base = self.lock = self.last_node = None
        self.origin_input_ids = self.full_untruncated_fill_ids = tokens
        self.swa_branching_seqlen = self.mamba_branching_seqlen = None
        self.extend_end = self.prefix_len = 0
        self.skip_radix_cache_insert = self.done = False
        self.positional_embed_overrides = None
        self.kv = engine.held()
        self.kv.req_pool_idx = 0

    def finished(self) -> bool:
        return self.done

    def get_fill_ids(self) -> Any:
        return self.full_untruncated_fill_ids[: self.extend_end]

    def owned_kv_len(self) -> int:
        return self.extend_end

    def refresh_fill_ids(self) -> None:
        pass

    def _compute_max_prefix_len(self, tokens: int) -> int:
        return tokens - 1


def open_cache(engine: SimpleNamespace, trace: dict[str, Any], **options: Any) -> Any:
    """An empty cache of the trace's pools."""
    import torch

    size, window_pages = trace["pages"] * PAGE, trace["window_pages"]
    types, dtype = engine.ComponentType, torch.bfloat16
    if window_pages is None:
        allocator = engine.PagedTokenToKVPoolAllocator(size, PAGE, dtype, "cpu", None, False)
    else:

        class Pool(engine.BaseSWAKVPool):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                pass

            def register_mapping(self, mapping: Any) -> None:
                self.full_to_swa_index_mapping = mapping

            def translate_loc_from_full_to_swa(self, indices: Any) -> Any:
                return self.full_to_swa_index_mapping[indices]

            def get_state_buf_infos(self) -> Any:
                raise NotImplementedError

        allocator = engine.SWATokenToKVPoolAllocator(
            size, window_pages * PAGE, PAGE, dtype, "cpu", Pool(), False
        )
    longest = max(tokens for tokens, _ in trace["prompts"]) + PAGE
    rows = SimpleNamespace(req_to_token=torch.zeros((1, longest), dtype=torch.int64))
    rows.write = rows.req_to_token.__setitem__
    rows.free = lambda _: None
    both = window_pages is not None
    return engine.UnifiedRadixCache(
        engine.CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            sliding_window_size=WINDOW if both else None,
            tree_components=(types.FULL, types.SWA) if both else (types.FULL,),
            tree_core_backend="python",
            is_eagle=trace["speculation"].startswith("mtp"),
            decoder_swa_bounded_replay=trace["replay"] == "decoder",
            **options,
        )
    )


def take_pages(cache: Any, begin: int, pages: int) -> None:
    """Let a request's row have pages for new tokens; evicts what it must."""
    allocator, tokens = cache.token_to_kv_pool_allocator, pages * PAGE
    allocator.evict_to_free_tokens(cache, tokens)
    if cache.is_swa_enabled:
        full = allocator.full_attn_allocator.alloc(tokens)
        windows = allocator.swa_attn_allocator.alloc(tokens)
        allocator.set_full_to_swa_mapping(full, windows)
    else:
        full = allocator.alloc(tokens)
    cache.req_to_token_pool.req_to_token[0, begin : begin + tokens] = full


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
        take_pages(cache, begin, -(-(request.extend_end - begin) // PAGE))
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
            again = engine.replay_len(hit) if trace["replay"] == "encoder" else 0
            hits.append(hit - again)
        return hits


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    for line in sys.stdin:
        trace = json.loads(line)
        print(json.dumps(answer(engine, open_cache(engine, trace), trace)), flush=True)
