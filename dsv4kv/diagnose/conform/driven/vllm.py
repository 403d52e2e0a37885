# mypy: ignore-errors
# ruff: noqa: F401, B905, I001
# It runs in the engine's environment, where nothing is typed.
"""vLLM's own scheduler and cache manager with DeepSeek-V4's groups, driven by operations.

No tensors: a step's writes are followed block by block instead, as which tokens of whose prompt
lie where. Runs in the engine's Python, which need not know dsv4kv. The calls and their order
follow ``v1/engine/core.py``: schedule, execute, update, take drafts.
Source: vLLM 0.22 to 0.33, ``v1/core/sched/scheduler.py``, ``v1/core/kv_cache_manager.py``.
"""

import inspect
from collections import deque
from functools import cache
from types import SimpleNamespace

from . import (
    PAGE, Broken, Operated, add_absent, check_free, find_package, name_parts, note, spell,
)  # fmt: skip

NAME = "vllm"
GRAIN = 4
PATIENCE = 300
MISSING = ("uvloop", "xgrammar", "partial_json_parser", "llguidance", "gguf")


def load(folder=None):
    """The engine's classes; ``folder``: of the package, where it is not installed."""
    find_package(NAME, folder)
    add_absent(*MISSING)
    import torch
    from vllm.config import CacheConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1 import kv_cache_interface as specs
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    torch.set_num_threads(1)
    kv_cache_utils.init_none_hash(sha256)
    return SimpleNamespace(**locals())


def traits(engine):
    """Which variants of the hit rules this version has."""
    return {
        "lookahead": "num_hash_lookahead_tokens" in _parameters(engine.KVCacheManager),
        "retention": "prefix_cache_retention_interval" in _parameters(engine.specs.KVCacheConfig),
    }


def _bare(cls, **given):
    """An instance without its checks: what is not given is the class's own, or None."""
    made = type(cls.__name__, (cls,), {**given, "__getattr__": lambda self, name: None})
    return object.__new__(made)


@cache
def _parameters(function):
    return frozenset(inspect.signature(function).parameters)


def _fitting(function, **given):
    known = _parameters(function)
    return {name: value for name, value in given.items() if name in known}


def groups_of(engine, speculation):
    """DeepSeek-V4's groups: context, two of windows, states of CSA and of HCA."""
    specs = engine.specs
    size = {"num_kv_heads": 1, "head_size": 584, "dtype": engine.torch.uint8}
    window = specs.SlidingWindowMLASpec(block_size=64, sliding_window=128, **size)
    found = [
        specs.MLAAttentionSpec(block_size=PAGE, **size),
        window,
        window,
        specs.SlidingWindowMLASpec(block_size=4, sliding_window=8, **size),
        specs.SlidingWindowMLASpec(block_size=8, sliding_window=128, **size),
    ]
    groups = [specs.KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(found)]
    groups[2].is_eagle_group = speculation != "none"  # the draft's layer is among its windows
    return groups


def open_scheduler(engine, settings):
    """A scheduler with an empty cache."""
    speculation, blocks = settings["speculation"], settings["blocks"] + 1  # one is the null block
    drafts = None
    if speculation != "none":
        drafts = _bare(
            engine.SpeculativeConfig,
            method="dspark" if speculation == "dspark" else "mtp",
            num_speculative_tokens=settings["draft_tokens"],
            disable_lookahead_block_hashes=speculation == "mtp+connector",
            max_num_new_slots_for_drafting=0,
            use_multi_module_mtp=lambda _: False,
            draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(sample_from_anchor=True)),
        )
    model = _bare(
        object,
        max_model_len=settings["context"],
        runner_type="generate",
        dtype=engine.torch.bfloat16,
        model="deepseek-v4",
        use_mla=True,
    )
    config = _bare(
        engine.VllmConfig,
        scheduler_config=_bare(
            engine.SchedulerConfig,
            max_num_batched_tokens=settings["chunk_tokens"],
            max_num_seqs=settings["running"],
            async_scheduling=settings["ahead"],
            policy="fcfs",
            watermark=0.0,
            scheduler_reserve_full_isl=True,
            long_prefill_token_threshold=0,
            prefill_schedule_interval=1,
            enable_chunked_prefill=True,
        ),
        cache_config=_bare(
            engine.CacheConfig,
            block_size=PAGE,
            num_gpu_blocks=blocks,
            enable_prefix_caching=True,
            prefix_cache_retention_interval=settings["retention"],
        ),
        model_config=model,
        parallel_config=SimpleNamespace(
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank=0,
            pipeline_parallel_size=1, tensor_parallel_size=1, world_size=1,
            decode_context_parallel_size=1, prefill_context_parallel_size=1, rank=0,
            distributed_executor_backend="mp", nnodes_within_dp=1, data_parallel_rank_local=None,
        ),
        observability_config=_bare(object, per_request_spec_decode_metrics="none"),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        speculative_config=drafts,
        use_v2_model_runner=True,
    )  # fmt: skip
    kv = engine.specs.KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups_of(engine, speculation),
        **_fitting(
            engine.specs.KVCacheConfig, prefix_cache_retention_interval=settings["retention"]
        ),
    )
    unstructured = SimpleNamespace(
        accept_tokens=lambda *_: True,
        validate_tokens=lambda _, tokens: tokens,
        should_advance=lambda _: False,
    )
    made = engine.AsyncScheduler if settings["ahead"] else engine.Scheduler
    return made(config, kv, unstructured, block_size=PAGE, hash_block_size=GRAIN, log_stats=False)


def open_hasher(engine, scheduler):
    """What gives a request the hashes of its blocks."""
    ahead = [scheduler.num_hash_lookahead_tokens] if traits(engine)["lookahead"] else []
    return engine.kv_cache_utils.get_request_block_hasher(GRAIN, engine.sha256, *ahead)


def _agree(held, chain):
    """Whether what a block holds is of a request's own tokens, written by itself or not."""
    last = held[3] // GRAIN
    return held[2] is chain or (last and held[2][last - 1 : last] == chain[last - 1 : last] != [])


class Session(Operated):
    """An empty scheduler."""

    def __init__(self, engine, settings):
        self._engine, self._settings = engine, settings
        self._scheduler = open_scheduler(engine, settings)
        self._manager = self._scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._groups = self._manager.coordinator.single_type_managers
        self._spans = [each.kv_cache_spec.block_size for each in self._groups]
        self._windows = [
            getattr(each.kv_cache_spec, "sliding_window", None) for each in self._groups
        ]
        self._hasher = open_hasher(engine, self._scheduler)
        self._flying = deque()
        self._chains, self._seen, self._hits = {}, {}, {}
        self._content = {}

    def end(self):
        """Let everything come to its end: then all blocks are free."""
        self._run_out()
        self._count()
        free, total = self._pool.get_num_free_blocks(), self._settings["blocks"]
        if free != total:
            note("ends", f"all requests have ended, and {free} of {total} blocks are free")
        if not self._manager.reset_prefix_cache():
            note("ends", "all requests have ended, and the prefix cache cannot be reset")

    def _run_out(self):
        idle, known, requests = 0, None, self._scheduler.requests
        while requests:
            self._advance(0)
            now = len(requests), sum(each.num_tokens for each in requests.values())
            idle, known = (0 if now != known else idle + 1), now
            if idle > PATIENCE:
                left = ", ".join(requests)
                note("ends", f"requests {left} get no more tokens in {PATIENCE} steps")
                raise Broken
        while self._flying:
            self._update(0)

    def _do_admit(self, number, pages, tokens, output):
        spelled = spell(pages, tokens)
        engine = self._engine
        request = engine.Request(
            str(number),
            spelled,
            engine.SamplingParams(max_tokens=output, ignore_eos=True),
            None,
            block_hasher=self._hasher,
            **_fitting(engine.Request, eos_token_id=None),
        )
        chain = self._chains[str(number)] = []
        name_parts(chain, spelled, GRAIN)
        self._scheduler.add_request(request)

    def _do_finish(self, accepted=0):
        if self._flying:
            self._update(accepted)

    def _do_abort(self, number):
        aborted = self._engine.RequestStatus.FINISHED_ABORTED
        if str(number) in self._scheduler.requests:
            self._scheduler.finish_requests(str(number), aborted)

    def _do_reset(self):
        self._scheduler.reset_prefix_cache()

    def _do_preempt(self):
        self._scheduler.reset_prefix_cache(reset_running_requests=True)

    def _serve(self, number, pages, tokens):
        self._do_admit(number, pages, tokens, 1)
        self._run_out()
        return self._hits[str(number)]

    def _advance(self, accepted):
        depth = 2 if self._settings["ahead"] else 1
        if len(self._flying) == depth:
            self._update(accepted)
        output = self._scheduler.schedule()
        requests = {rid: self._scheduler.requests[rid] for rid in output.num_scheduled_tokens}
        samples = {}  # by request that samples a token: how often it was preempted before
        for rid, count in output.num_scheduled_tokens.items():
            request = requests[rid]
            begin = request.num_computed_tokens - count
            if self._seen.get(rid) != request.num_preemptions:
                self._seen[rid] = request.num_preemptions
                self._hits.setdefault(rid, begin)
            earliest = begin - self._unsure(rid, request.num_preemptions)
            self._check_read(rid, earliest, request.num_tokens - 1)
            self._write(rid, begin, min(request.num_computed_tokens, request.num_tokens))
            if request.num_computed_tokens >= request.num_tokens:
                samples[rid] = request.num_preemptions
        self._flying.append((output, samples))
        if depth == 1:
            self._update(accepted)

    _do_step = _advance

    def _unsure(self, rid, preemptions):
        """Drafts in flight: if all are rejected, the next step starts that many tokens earlier."""
        return sum(
            len(output.scheduled_spec_decode_tokens.get(rid, ()))
            for output, samples in self._flying
            if samples.get(rid) == preemptions
        )

    def _update(self, accepted):
        output, samples = self._flying.popleft()
        tokens, sampled = [], {}
        for place, rid in enumerate(output.num_scheduled_tokens):
            request = self._scheduler.requests.get(rid)
            if rid not in samples or request is None:
                tokens.append([])
                continue
            drafts = len(output.scheduled_spec_decode_tokens.get(rid, ()))
            begin = request.num_tokens
            count = 1 + (accepted + place) % (drafts + 1)
            tokens.append([-(int(rid) << 20) - at for at in range(begin, begin + count)])
            sampled[rid] = request
            if request.num_preemptions == samples[rid]:
                self._write(rid, begin - 1, begin + count - 1)
        ids = list(output.num_scheduled_tokens)
        made = self._engine.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={rid: place for place, rid in enumerate(ids)},
            **_fitting(
                self._engine.ModelRunnerOutput,
                sampled_token_ids=tokens, logprobs=None, prompt_logprobs_dict={},
                pooler_output=None,
            ),
        )  # fmt: skip
        self._scheduler.update_from_output(output, made)
        for rid, request in sampled.items():
            name_parts(self._chains[rid], request.all_token_ids, GRAIN)
        number = self._settings["draft_tokens"]
        if self._settings["speculation"] != "none" and not self._settings["ahead"]:
            alive = [rid for rid in sampled if rid in self._scheduler.requests]
            made = self._engine.DraftTokenIds(alive, [[7] * number for _ in alive])
            self._scheduler.update_draft_token_ids(made)

    def _write(self, rid, begin, end):
        chain = self._chains[rid]
        for group, span in enumerate(self._spans if end > begin else ()):
            table = self._groups[group].req_to_blocks[rid]
            for place in range(begin // span, -(-end // span)):
                if place >= len(table) or table[place].is_null:
                    what = f"request {rid} computes token {max(begin, place * span)}"
                    note("reads", f"{what} and has no block for it in group {group}")
                    continue
                block = table[place]
                held = self._content.get(block.block_id)
                filled = min(end, (place + 1) * span)
                if held and held[:2] == (group, place) and _agree(held, chain):
                    filled = max(filled, held[3]) if begin <= held[3] else held[3]
                elif begin > place * span:
                    filled = place * span
                self._content[block.block_id] = group, place, chain, filled

    def _check_read(self, rid, position, known):
        """Every family holds the request's own tokens that are read from ``position`` on."""
        chain = self._chains[rid]
        for group, (span, window) in enumerate(zip(self._spans, self._windows)):
            first = 0 if window is None else max(0, position - window + 1) // span
            table = self._groups[group].req_to_blocks[rid]
            for place in range(first, -(-min(position, known) // span)):
                end = min((place + 1) * span, position, known)
                block = table[place] if place < len(table) else None
                there = block is not None and not block.is_null
                held = self._content.get(block.block_id) if there else None
                if not held or held[:2] != (group, place) or held[3] < end:
                    what = "has nothing of"
                elif end >= GRAIN and held[2][end // GRAIN - 1] != chain[end // GRAIN - 1]:
                    what = "has another prompt's"
                else:
                    continue
                at = f"request {rid} resumes at token {position} (it hit {self._hits[rid]})"
                note("reads", f"{at}, and group {group} {what} tokens {place * span} to {end}")
                return

    def _count(self):
        counts, owners = [0] * len(self._pool.blocks), {}
        tables = [
            (group, table)
            for group, manager in enumerate(self._groups)
            for table in manager.req_to_blocks.values()
        ]
        for group, block in ((group, block) for group, table in tables for block in table):
            counts[block.block_id] += not block.is_null
            if not block.is_null and owners.setdefault(block.block_id, group) != group:
                both = f"groups {owners[block.block_id]} and {group}"
                note("blocks", f"{both} hold block {block.block_id}")
        for _, deferred in getattr(self._scheduler, "deferred_frees", ()):
            for block in deferred:
                counts[block.block_id] += 1
        for block, count in zip(self._pool.blocks, counts):
            if block.ref_cnt != count and not block.is_null:
                what = f"block {block.block_id} says that {block.ref_cnt} use it, and {count} do"
                note("blocks", what)
            if count > 1 and block.block_hash is None:
                note("blocks", f"block {block.block_id} is held {count} times and is not cached")
        free = [block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()]
        check_free(counts, free, self._pool.get_num_free_blocks())
