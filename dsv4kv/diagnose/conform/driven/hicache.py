# mypy: ignore-errors
# ruff: noqa: D102, PLR0402
# It runs in the engine's environment, where nothing is typed.
"""SGLang's own HiCache behind its tree, over copies that end when the driver ends them.

What is real: the tree's components, the controller and its queues, V4's device pool of one layer
of each kind, its host pools and their allocators; none of them has memory. What stands in are
streams, events and the one class that copies bytes. A copy is followed instead: from its
submission on its target holds nothing, at its end what its source has held all the while. Copies
of one direction end in order, as on one stream.
Source: SGLang 0.5.23, ``srt/mem_cache/{unified_radix_cache,memory_pool_host,l2_transfer}.py``,
``hybrid_cache``, ``srt/managers/cache_controller.py``; the calls of a step and their order follow
``scheduler.py`` and ``add_one_req`` in ``schedule_policy.py``.
"""

import atexit
import logging
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

from .broken import Broken, check_left, check_pool, note

_REAL = (
    "deepseek_v4_compress_state deepseek_v4_memory_pool device_pool_info hicache_key_scheme "
    "host_memory hybrid_cache.host_pool_config hybrid_cache.hybrid_cache_controller "
    "hybrid_cache.hybrid_pool_assembler index_key_cache l2_transfer memory_pool memory_pool_host "
    "pool_host"
)
HICACHE = [
    "sglang.kernels.ops.attention.dsv4.kv_layout",
    "sglang.srt.managers.cache_controller",
    *(f"sglang.srt.mem_cache.{name}" for name in _REAL.split()),
]
SLOTS = 256  # of a page
REQUESTS = 16


class Event:
    """Has happened when the copy has ended that was submitted as it was recorded."""

    submitted = None

    def __init__(self, **_):
        self._copy = None

    def record(self, stream=None):
        self._copy = Event.submitted

    def query(self):
        return self._copy is None or self._copy.ended

    def synchronize(self):
        if self._copy is not None:
            self._copy.end(self._copy)

    def wait(self, stream=None):
        """Computing and copies follow one another here."""


class HostCopies:
    """Stands in for ``L2TransferEngine``: copies between pages and chunks, each with its content.

    ``content`` holds the GPU's pages by family and number; ``pools`` has the name and the
    family of every host pool by its id.
    """

    def __init__(self, content, pools):
        self._content, self._pools, self._host = content, pools, {}
        self._names = {
            family: sorted(name for name, of in pools.values() if of == family)
            for family in content
        }
        self.under_way = {True: deque(), False: deque()}  # stores, and loads

    def submit_device_to_host(self, transfers):
        """Asked for by the engine: pages to chunks."""
        return self._submit(transfers, stores=True)

    def submit_host_to_device(
        self, transfers, *, transfer_layer_id_max, start_event=None, on_layer_done=None
    ):
        """Asked for by the engine: chunks to pages, layer by layer."""
        return self._submit(transfers, range(transfer_layer_id_max), on_layer_done, stores=False)

    def land(self, number):
        """The first store or load under way ends, if there are any."""
        waiting = [copies for copies in self.under_way.values() if copies]
        if waiting:
            self.end(waiting[number % len(waiting)][0])

    def land_all(self):
        """All do, the loads first."""
        for copies in (self.under_way[False], self.under_way[True]):
            if copies:
                self.end(copies[-1])

    def end(self, copy):
        """A copy ends, and those before it on its stream."""
        copies = self.under_way[copy.stores]
        while not copy.ended:
            self._move(copies[0])
            copies.popleft().ended = True

    def compute(self):
        """A step is computed: it waits for the pages of all loads; who asks later may see it."""
        for copy in self.under_way[False]:
            self._move(copy)

    def begin_step(self):
        """Of a step whose result was taken the loads have ended; one may still be computed."""
        for copy in [*self.under_way[False]]:
            copy.steps += copy.moved
            if copy.steps > 1:
                self.end(copy)

    def forget(self):
        """Drop all contents and all copies under way."""
        for copies in self.under_way.values():
            copies.clear()
        self._host.clear()

    def _submit(self, transfers, layers=(), on_layer_done=None, *, stores):
        # pool, family, chunk, page and content of each; and steps that began since they came
        copy = SimpleNamespace(
            moves=[*self._moves(transfers, stores)], stores=stores, moved=False, ended=False,
            steps=0, end=self.end,
        )  # fmt: skip
        self._check_families(copy)
        for name, family, chunk, page, held in copy.moves:
            if not isinstance(held, int):
                source = self._source(copy, name, chunk, family, page)
                note("reads", f"{source} is copied, and holds nothing whole")
        for name, family, chunk, page, _ in copy.moves:
            if stores:
                self._host.pop((name, chunk), None)
            else:
                self._content[family].pop(page, None)
        self.under_way[stores].append(copy)
        Event.submitted = copy
        for layer in layers:
            on_layer_done(layer)
        begun, ended = Event(), Event()
        ended.record()
        Event.submitted = None
        return SimpleNamespace(start_event=begun, finish_event=ended, timing_enabled=False)

    def _moves(self, transfers, stores):
        for transfer in transfers:
            name, family = self._pools[id(transfer.host_pool)]
            chunks, pages = _pages(transfer.host_indices), _pages(transfer.device_indices)
            for chunk, page in zip(chunks, pages, strict=True):
                yield name, family, chunk, page, self._held(name, family, chunk, page, stores)

    def _held(self, name, family, chunk, page, stores):
        return self._content[family].get(page) if stores else self._host.get((name, chunk))

    def _move(self, copy):
        if copy.moved:
            return
        copy.moved = True
        for name, family, chunk, page, held in copy.moves:
            if self._held(name, family, chunk, page, copy.stores) != held:
                source = self._source(copy, name, chunk, family, page)
                note("reads", f"{source} changes under a copy of it")
            if copy.stores:
                self._host[name, chunk] = held
            else:
                self._content[family][page] = held

    def _check_families(self, copy):
        """Every page is copied once by each pool of its family, and has one content in all."""
        parts = {}
        for name, family, _, page, held in copy.moves:
            parts.setdefault((family, page), []).append((name, held))
        for (family, page), found in parts.items():
            names = sorted(name for name, _ in found)
            if names != self._names[family]:
                what = f"page {page} of {family} is copied by {', '.join(names)}"
                note("reads", f"{what}, and not once by {', '.join(self._names[family])}")
            if len({held for _, held in found}) > 1:
                note("reads", f"page {page} of {family} is copied of different prompts")

    @staticmethod
    def _source(copy, name, chunk, family, page):
        return f"page {page} of {family}" if copy.stores else f"page {chunk} of host pool {name}"


def _pages(indices):
    return (indices[::SLOTS] // SLOTS).tolist()


def prepare():
    """Stand-ins that must be there before HiCache's modules are imported."""
    import sglang.srt.layers.attention.dsa.utils as sparse
    import sglang.srt.layers.attention.dsv4.unified_kv_gate as gate
    import sglang.srt.runtime_context as context
    import sglang.srt.speculative.spec_info as speculation
    import sglang.srt.utils as utils
    import sglang.srt.utils.common as common
    import sglang.srt.utils.torch_memory_saver_adapter as saver

    for module in (utils, common):
        module.is_mps = module.is_gfx95_supported = lambda: False
        module.ceil_align = lambda value, size: -(-value // size) * size
        module.ceil_div = lambda value, size: -(-value // size)
    streams = SimpleNamespace(
        Event=Event, Stream=SimpleNamespace, stream=nullcontext, current_stream=SimpleNamespace
    )
    utils.get_device_module = lambda *_: streams
    saver.TorchMemorySaverAdapter.create = staticmethod(
        lambda *_, **__: SimpleNamespace(region=lambda *_, **__: nullcontext())
    )
    sparse.aiter_can_use_preshuffle_paged_mqa = lambda: False
    gate.is_unified_kv_fp8 = lambda: False
    speculation.SpeculativeAlgorithm.from_string = lambda _: SimpleNamespace(is_dspark=bool)
    context.get_spec().speculative_num_draft_tokens = 0
    context.get_platform().is_sm120 = False
    running = context.get_exec()
    running.kernel.dsv4_attn_backend = "flashmla"
    running.kernel.enable_deepseek_v4_fp4_indexer = False
    running.features.enable_encoder_swa_bounded_replay = False
    parallel = context.get_parallel()
    parallel.attn_dcp_size = parallel.attn_tp_size = 1
    parallel.dcp_enabled = False


def load_hicache():
    """The engine's modules, with memory that is not there."""
    import sglang.srt.mem_cache.deepseek_v4_memory_pool as pools
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.pool_host import base, common
    from sglang.srt.runtime_context import get_memory

    logging.getLogger("sglang").setLevel(logging.CRITICAL)  # every pool logs itself
    pools.DSV41_INDEX_PAGE_SIZE = 64
    base.available_host_memory_bytes = lambda **_: 1 << 60
    for device in ("meta", "cpu"):
        common.ALLOC_MEMORY_FUNCS[device] = lambda shape, dtype, **_: torch.empty(
            shape, dtype=dtype, device="meta"
        )
    return SimpleNamespace(
        pool=pools.DeepSeekV4TokenToKVPool,
        names=PoolName,
        memory=get_memory(),
        params=InitLoadBackParams,
        torch=torch,
    )


def open_pool(hicache, slots, windows):
    """The engine's device pool: a layer of windows alone, one of CSA and one of HCA."""
    torch = hicache.torch
    pool = hicache.pool(
        max_num_reqs=REQUESTS,
        num_req_slots=REQUESTS + 1,
        swa_size=windows,
        c4_size=slots // 4,
        c128_size=-(-slots // 128),
        c4_state_pool_size=windows // SLOTS * 8,
        c128_state_pool_size=(REQUESTS + 1) * 128,
        page_size=SLOTS,
        swa_page_size=SLOTS,
        sliding_window=128,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=3,
        device="meta",
        enable_memory_saver=False,
        compression_ratios=[0, 4, 128],
        start_layer=0,
        end_layer=3,
        online_mtp_max_draft_tokens=0,
        unified_fp8=False,
        kv_source_layers=[],
        full_size=slots,
        kv_layout="v4",
    )
    pool.device = "cpu"  # where indices are moved to
    return pool


def attach(hicache, cache, params, settings):
    """What the command line says of host memory, and the pools that it makes."""
    memory = hicache.memory
    memory.hicache_ratio, memory.hicache_size = settings["host_ratio"], 0
    memory.hicache_write_policy = settings["host_policy"]
    memory.hicache_mem_layout, memory.hicache_io_backend = "layer_first", "kernel"
    memory.hicache_host_memory_mode = "cache"
    memory.hicache_storage_backend = memory.hicache_storage_backend_extra_config = None
    cache.init_hicache(SimpleNamespace(), params)
    atexit.unregister(cache.shutdown)  # which would keep every cache


class HostMemory:
    """Host memory behind a tree; ``content`` holds the GPU's pages by family."""

    def __init__(self, hicache, cache, content):
        self._hicache, self._cache, names = hicache, cache, hicache.names
        self._controller = cache.cache_controller
        windows = {names.SWA} | {
            each.pool_name
            for each in cache.sidecar_pool_specs
            if each.indices_from_pool == names.SWA
        }
        group = cache.host_pool_group
        family = {True: "windows", False: "context"}
        pools = {
            id(each.host_pool): (each.name.value, family[each.name in windows])
            for each in group.entries
        }
        self.copies = self._controller.l2_transfer_engine = HostCopies(content, pools)
        self._allocated = [
            (kind, group.get_pool(name))
            for kind, name in zip(cache.tree_components, (names.KV, names.SWA), strict=True)
        ]

    def begin_step(self):
        """What the scheduler does before it takes a batch."""
        self.copies.begin_step()
        self._cache.check_hicache_events()

    def load_back(self, request):
        """Load the host's part of a match; returns whether all promised tokens will come."""
        promised = request.host_hit_length
        if not promised and not request.swa_host_hit_length:
            return True
        cache, node = self._cache, request.best_match_node
        pin, lock = cache.inc_host_lock_ref(node).to_dec_params(), cache.lock(node)
        loaded, request.last_node = cache.init_load_back(
            self._hicache.params(best_match_node=node, host_hit_length=promised, req=request)
        )
        cache.unlock(lock)
        cache.dec_host_lock_ref(node, pin)
        if 0 < loaded < promised:
            note("calls", f"{promised} tokens were promised by host memory, {loaded} come")
            raise Broken
        request.prefix_len += loaded
        request.kv.cache_protected_len = request.prefix_len
        request.host_hit_length = request.swa_host_hit_length = 0
        return loaded >= promised

    def compute(self):
        """A batch with what was loaded for it."""
        self._cache.ready_to_load_host_cache()
        self.copies.compute()

    def settle(self):
        """All copies end, and the tree knows it."""
        self._cache.flush_pending_backups()
        self.copies.land_all()
        self._cache.check_hicache_events()

    def check(self):
        """Every page of a host pool is free or one node's."""
        nodes = [self._cache.root_node]
        for node in nodes:
            nodes.extend(node.children.values())
        for kind, pool in self._allocated:
            values = [node.component_data[kind].host_value for node in nodes[1:]]
            held, free = (
                [page for part in parts if part is not None for page in _pages(part)]
                for parts in (values, (pool.free_slots, *pool.release_slots))
            )
            name, counted = f"page {{}} of {kind.name} in host memory", pool.available_size()
            check_pool(name, pool.size // SLOTS, held, free, counted // SLOTS, first=0)

    def check_end(self):
        """Every store is readable or dropped, nothing is kept of any request, all can be freed."""
        cache, controller = self._cache, self._controller
        check_left(
            {
                "stores": cache.ongoing_write_through,
                "loads": cache.ongoing_load_back,
                "queued copies": [*controller.write_queue, *controller.load_queue],
                "unread ends of copies": [*controller.ack_write_queue, *controller.ack_load_queue],
            }
        )
        for kind, pool in self._allocated:
            cache.evict_host(pool.size, kind)
        for kind, pool in self._allocated:
            free, total = pool.available_size() // SLOTS, pool.size // SLOTS
            if free != total:
                what = f"{free} of {total} pages of {kind.name} in host memory are free"
                note("ends", f"all has ended, and {what}")
