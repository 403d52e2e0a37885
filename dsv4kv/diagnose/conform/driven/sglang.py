# mypy: ignore-errors
# ruff: noqa: B905, D102, F401, I001
# It runs in the engine's environment, where nothing is typed.
"""SGLang's own unified radix tree and allocators with a window, driven by operations.

No tensors of a cache: writes are followed page by page instead. The calls and their order
follow ``schedule_policy.py`` (match, lock), ``schedule_batch.py`` (pages, windows left behind,
retraction) and ``batch_result_processor.py`` (checkpoint, release).
Source: SGLang 0.5.23, ``srt/mem_cache/{unified_radix_cache,common,allocator/swa}.py``.
"""

import ast
import dataclasses
import inspect
import sys
from array import array
from collections import deque
from importlib import import_module
from types import SimpleNamespace
from typing import Optional
from unittest.mock import MagicMock

from . import (
    PAGE, Broken, Operated, bare_package, check_pool, find_package, name_parts, note, spell,
    stand_in,
)  # fmt: skip

NAME = "sglang"
MEMORY = "sglang.srt.mem_cache"
WINDOW = 128
_REAL = (
    "allocator.base allocator.paged allocator.swa base_prefix_cache base_swa_memory_pool "
    "cache_init_params common evict_policy events hicache_storage radix_cache unified_cache "
    "unified_radix_cache utils"
)
REAL = [
    "sglang.srt.environ",
    "sglang.srt.model_executor.encoder_swa_replay",
    *(f"{MEMORY}.{name}" for name in _REAL.split()),
]


def load(folder=None, *more):
    """The engine's classes; ``more`` of its modules are no stand-ins."""
    import torch

    folder = find_package(NAME, folder)
    zmq = () if more else ("zmq",)
    packages = ["sglang", "sglang.srt", MEMORY, f"{MEMORY}.allocator", "sglang.srt.model_executor"]
    for parts in (real.split(".") for real in more):
        packages += [".".join(parts[:count]) for count in range(1, len(parts))]
    for name in dict.fromkeys(packages):
        bare_package(name, str(folder.joinpath(*name.split("."))))
    stand_in("sglang", "sgl_kernel", "triton", *zmq, "torch_npu", real=[*REAL, *more])
    _fill_in()
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import base_prefix_cache, common
    from sglang.srt.mem_cache.common import match_kv_cache  # not before 0.5.22
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.model_executor import encoder_swa_replay

    names = {"dataclasses": dataclasses, "ComponentType": ComponentType, "torch": torch}
    names |= {"ceil_align": _ceil_align, "_is_hip": False, "RetractionBackup": object}
    names["Optional"] = Optional
    held = _class_of(folder / "sglang/srt/managers/schedule_batch.py", "ReqKvInfo", names)
    torch.set_num_threads(1)
    return SimpleNamespace(**locals())


def _ceil_align(value, size):
    return -(-value // size) * size


def _fill_in():
    """Give stand-ins the functions that are called, and switch off what a GPU has."""

    def no(*_, **__):
        return False

    devices = dict.fromkeys(("is_npu", "is_hip", "is_cuda", "is_xpu", "is_cpu"), no)
    checks = dict.fromkeys(("expect", "Invariant", "IsTrue"), lambda *_, **__: None)
    ring = {"is_unified_kv_triton": no}
    for module, names in {
        "srt.utils": devices | {"get_bool_env_var": no},
        "srt.utils.common": devices | {"ceil_align": _ceil_align},
        "srt.utils.invariants": checks | {"Bucket": MagicMock()},
        "srt.utils.rank_consensus_checker": {"rank_consensus": lambda *_, **__: lambda each: each},
        "srt.session.streaming_session": {"is_virtual_node": no, "StreamingSession": _no_session},
        "srt.mem_cache.allocator.page_interleave": {"page_interleave_shard_size": lambda _: 1},
        "srt.layers.attention.dsv4.unified_kv_gate": ring,
        "kernels.ops.attention.dsv4.unified_kv_kernels.env_gate": ring,  # to 0.5.22
    }.items():
        vars(import_module(f"sglang.{module}")).update(names)
    kv_events = import_module("sglang.srt.disaggregation.kv_events")
    if not hasattr(kv_events, "__file__"):  # a stand-in
        kv_events.StorageMedium = MagicMock()
    platform = import_module("sglang.srt.platforms").current_platform
    platform.get_paged_allocator_cls = lambda: None
    import_module("sglang.srt.runtime_context").get_serving().strip_thinking_cache = False


def _no_session(*_, **__):
    none = ("try_cache_finished_req", "will_lend_record", "try_checkpoint", "any_holding_kv")
    no = dict.fromkeys(none, lambda *_, **__: False)
    return SimpleNamespace(slots={}, try_match_prefix=lambda _: None, **no)


def _class_of(path, name, names):
    tree = ast.parse(path.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, node], []), str(path), "exec"), names)
    return names[name]


class Request:
    """What the cache asks of a request; its answer and its progress."""

    def __init__(self, engine, tokens, number="", output=1):
        self.rid, self.priority = str(number), 0
        self.session_id = self.extra_key = self.cache_salt = None
        self.kv_rotation_base = self.positional_embed_overrides = None
        self.origin_input_ids = self.full_untruncated_fill_ids = tokens
        self.swa_branching_seqlen = self.mamba_branching_seqlen = None
        self.skip_radix_cache_insert = self.done = False
        self.output, self.generated, self.chain = output, 0, []
        name_parts(self.chain, tokens, PAGE)
        self.begin(engine)
        self.kv.req_pool_idx = 0

    def begin(self, engine):
        """Start, or start again, with the generated tokens as part of the prompt."""
        self.kv = engine.held()
        self.prefix_len = self.extend_end = self.steps = 0  # of decoding
        self.last_node = self.lock = None

    @property
    def tokens(self):
        return len(self.full_untruncated_fill_ids)

    def generate(self):
        """One more token of the answer."""
        self.generated += 1
        token = array("q", [-(int(self.rid) << 20) - self.generated])
        self.full_untruncated_fill_ids = self.full_untruncated_fill_ids + token
        name_parts(self.chain, self.full_untruncated_fill_ids, PAGE)
        self.done = self.generated >= self.output

    def finished(self):
        return self.done

    def get_fill_ids(self):
        return self.full_untruncated_fill_ids[: self.extend_end]

    def owned_kv_len(self):
        return self.extend_end

    def refresh_fill_ids(self):
        pass

    def _compute_max_prefix_len(self, tokens):
        return tokens - 1


def open_cache(engine, settings, **options):
    """An empty cache of a tree over pools of context and, mostly, of windows."""
    import torch

    size, window_pages = settings["pages"] * PAGE, settings["window_pages"]
    types, dtype = engine.ComponentType, torch.bfloat16
    if window_pages is None:
        allocator = engine.PagedTokenToKVPoolAllocator(size, PAGE, dtype, "cpu", None, False)
    else:

        class Pool(engine.BaseSWAKVPool):
            def __init__(self):
                pass

            def register_mapping(self, mapping):
                self.full_to_swa_index_mapping = mapping

            def translate_loc_from_full_to_swa(self, indices):
                return self.full_to_swa_index_mapping[indices]

        Pool.__abstractmethods__ = frozenset()  # no tensors are asked for
        allocator = engine.SWATokenToKVPoolAllocator(
            size, window_pages * PAGE, PAGE, dtype, "cpu", Pool(), False
        )
    shape = settings["running"], settings["longest"]
    rows = SimpleNamespace(req_to_token=torch.zeros(shape, dtype=torch.int64))
    rows.write = rows.req_to_token.__setitem__
    rows.free = lambda _: None
    both = window_pages is not None
    params = engine.CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        sliding_window_size=WINDOW if both else None,
        tree_components=(types.FULL, types.SWA) if both else (types.FULL,),
        tree_core_backend="python",
        is_eagle=settings["speculation"].startswith("mtp"),
        **({"decoder_swa_bounded_replay": True} if settings["replay"] == "decoder" else {}),
        **options,
    )
    return engine.UnifiedRadixCache(params)


def take_pages(cache, row, begin, pages):
    """Allocate pages for a request's new tokens, evicting others if needed."""
    allocator, tokens = cache.token_to_kv_pool_allocator, pages * PAGE
    allocator.evict_to_free_tokens(cache, tokens)
    if cache.is_swa_enabled:
        full = allocator.full_attn_allocator.alloc(tokens)
        windows = allocator.swa_attn_allocator.alloc(tokens)
        if full is None or windows is None:
            raise MemoryError(f"{tokens} tokens were promised and cannot be had")
        allocator.set_full_to_swa_mapping(full, windows)
    else:
        full = allocator.alloc(tokens)
    cache.req_to_token_pool.req_to_token[row, begin : begin + tokens] = full


def traits(engine):
    """Variants of the hit rules: up to 0.5.22 a chunk's end keeps a page less."""
    kept = inspect.getsource(engine.common.free_swa_out_of_window_slots)
    return {"newest": "ceil_align(" in kept}


class Session(Operated):
    """An empty cache."""

    def __init__(self, engine, settings):
        self._engine, self._chunk_pages = engine, settings["chunk_tokens"] // PAGE
        self._settings = settings | {
            "pages": settings["blocks"],
            "window_pages": settings["windows"],
            "longest": settings["context"],
            "replay": None,
        }
        free = settings["rule"].endswith(":tail")
        engine.envs.SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS.set(free)
        self._cache = open_cache(engine, self._settings)
        self._allocator = self._cache.token_to_kv_pool_allocator
        self._rows = self._cache.req_to_token_pool.req_to_token
        self._free_rows = list(range(settings["running"]))
        self._waiting, self._running, self._chunked = deque(), [], None
        self._full, self._windows = {}, {}  # what is in which page

    def end(self):
        """Let everything come to its end; then nothing is locked, and all can be evicted."""
        patience = 3000
        while self._waiting or self._running or self._chunked:
            self._do_step()
            patience -= 1
            if not patience:
                note("ends", "requests do not end in 3,000 steps")
                raise Broken
        self._count()
        self._cache.sanity_check()
        everything = self._settings["pages"] * PAGE
        evicted = self._engine.base_prefix_cache.EvictParams(
            num_tokens=everything, swa_num_tokens=everything
        )
        self._cache.evict(evicted)
        for name, pool in (("context", "full"), ("windows", "swa")):
            free = getattr(self._allocator, f"{pool}_available_size")() // PAGE
            total = self._settings["pages" if pool == "full" else "window_pages"]
            if free != total:
                note("ends", f"all has ended, and {free} of {total} pages of {name} are free")

    def _do_admit(self, number, pages, tokens, output):
        spelled = array("q", spell(pages, tokens))
        self._waiting.append(Request(self._engine, spelled, number, output))

    def _do_step(self, accepted=0):
        self._prefill() or self._decode()

    def _do_finish(self, accepted=0):
        self._decode()

    def _do_abort(self, number):
        for request in [*self._waiting, *self._running, self._chunked]:
            if request is not None and request.rid == str(number):
                if request is self._chunked:
                    self._chunked = None
                else:
                    (self._running if request in self._running else self._waiting).remove(request)
                request.done = True
                self._release(request, checkpoint=False)

    def _do_reset(self):
        """Only where nothing runs, as ``flush_cache`` has it."""
        if not (self._waiting or self._running or self._chunked):
            self._cache.reset()
            self._allocator.clear()

    def _do_preempt(self):
        for request in [*self._running]:
            self._retract(request)

    def _serve(self, number, pages, tokens):
        request = Request(self._engine, array("q", spell(pages, tokens)), number)
        self._begin(request)
        hit = request.prefix_len
        while request.extend_end < tokens:
            self._extend(request)
            self._engine.common.checkpoint_kv_cache(request, self._cache)
        request.done = True
        self._release(request, checkpoint=True)
        return hit

    def _prefill(self):
        if self._chunked is None:
            if not self._waiting or not self._free_rows:
                return False
            if not self._begin(self._waiting[0]):
                return False
            self._chunked = self._waiting.popleft()
        elif not self._has_room(self._pages_of(self._chunked)):
            return False
        request = self._chunked
        self._extend(request)
        if request.extend_end == request.tokens:
            self._chunked = None
            request.generate()
            if request.done:
                self._release(request, checkpoint=True)
                return True
            self._running.append(request)
        self._engine.common.checkpoint_kv_cache(request, self._cache)
        return True

    def _begin(self, request):
        cache, tokens = self._cache, request.full_untruncated_fill_ids
        limit = len(tokens) - 1
        self._engine.common.match_kv_cache(request, cache, tokens, max_prefix_len=limit)
        pin = cache.lock(request.last_node)
        begins = self._has_room(self._pages_of(request))
        if begins:
            request.lock = cache.lock(request.last_node)
        cache.unlock(pin)
        if not begins:
            return False
        hit = request.prefix_len
        request.kv.req_pool_idx = row = self._free_rows.pop()
        request.kv.cache_protected_len, request.extend_end = hit, hit
        self._rows[row, :hit] = cache.prefix_device_indices(request)
        self._check_read(request, hit)
        return True

    def _pages_of(self, request):
        left = request.tokens - request.prefix_len
        return -(-min(left, self._chunk_pages * PAGE) // PAGE)

    def _has_room(self, pages):
        allocator, cache = self._allocator, self._cache
        full = allocator.full_available_size() + cache.full_evictable_size()
        left = allocator.swa_available_size() + cache.swa_evictable_size()
        return full >= pages * PAGE and left >= pages * PAGE

    def _extend(self, request):
        begin, pages = request.prefix_len, self._pages_of(request)
        self._check_read(request, begin)
        take_pages(self._cache, request.kv.req_pool_idx, begin, pages)
        request.extend_end = min(begin + pages * PAGE, request.tokens)
        request.kv.kv_allocated_len = request.kv.kv_committed_len = request.extend_end
        self._write(request, begin)

    def _decode(self):
        while len(self._running) > 1 and not self._has_decode_room():
            self._retract(self._running[-1])
        if not self._has_decode_room():
            return
        for request in [*self._running]:
            request.steps += 1
            at = request.extend_end
            self._cache.evict_sliding_windows(request, at) if request.steps > 1 else None
            if not at % PAGE:
                take_pages(self._cache, request.kv.req_pool_idx, at, 1)
            self._check_read(request, at)
            request.extend_end = request.kv.kv_allocated_len = at + 1
            request.kv.kv_committed_len = at + 1
            self._write(request, at)
            request.generate()
            if request.done:
                self._running.remove(request)
                self._release(request, checkpoint=True)

    def _has_decode_room(self):
        """Evicts for it, as ``check_decode_capacity`` does."""
        tokens = PAGE * sum(not each.extend_end % PAGE for each in self._running)
        self._allocator.evict_to_free_tokens(self._cache, tokens)
        return self._allocator.available_size() >= tokens

    def _retract(self, request):
        self._running.remove(request)
        self._release(request, checkpoint=False)
        request.begin(self._engine)
        self._waiting.appendleft(request)

    def _release(self, request, *, checkpoint):
        row = request.kv.req_pool_idx
        if request.lock is not None:
            self._engine.common.release_kv_cache(request, self._cache, checkpoint=checkpoint)
            request.kv.req_pool_idx = None
            self._free_rows.append(row)

    def _pages(self, request, first, last):
        slots = self._rows[request.kv.req_pool_idx, first * PAGE : last * PAGE : PAGE]
        mapped = self._allocator.full_to_swa_index_mapping[slots]
        return zip((slots // PAGE).tolist(), (mapped // PAGE).tolist())

    def _write(self, request, begin):
        first, last = begin // PAGE, -(-request.extend_end // PAGE)
        for place, (full, window) in enumerate(self._pages(request, first, last), first):
            self._full[full] = self._windows[window] = self._name(request, place)

    @staticmethod
    def _name(request, place):
        if (place + 1) * PAGE <= request.extend_end and place < len(request.chain):
            return request.chain[place]
        return request.rid, place

    def _check_read(self, request, position):
        """Context up to there and its last window lie in its pages, of its own tokens."""
        end = -(-position // PAGE)
        window = max(0, position - WINDOW + 1) // PAGE
        for place, (full, swa) in enumerate(self._pages(request, 0, end)):
            mine = {(request.rid, place), *request.chain[place : place + 1]}
            if self._full.get(full) not in mine:
                what = f"context has nothing of its page {place}"
            elif place >= window and (not swa or self._windows.get(swa) not in mine):
                what = f"windows have nothing of its page {place}"
            else:
                continue
            note("reads", f"request {request.rid} resumes at token {position}, and {what}")

    def _count(self):
        pages, windows = self._settings["pages"], self._settings["window_pages"]
        kept = self._cache.all_values_flatten()[::PAGE]
        own = [
            self._rows[
                each.kv.req_pool_idx, each.kv.cache_protected_len : each.kv.kv_allocated_len : PAGE
            ]
            for each in [*self._running, self._chunked]
            if each is not None
        ]
        slots, allocator = self._engine.torch.cat([kept, *own]), self._allocator
        free = allocator.full_attn_allocator.get_all_free_pages().tolist()
        counted = allocator.full_available_size() // PAGE
        check_pool("page {} of context", pages, (slots // PAGE).tolist(), free, counted)
        mapped = (allocator.full_to_swa_index_mapping[slots] // PAGE).tolist()
        free = allocator.swa_attn_allocator.get_all_free_pages().tolist()
        counted = allocator.swa_available_size() // PAGE
        check_pool("page {} of windows", windows, filter(None, mapped), free, counted)
