"""vLLM's sizes by version: blocks, costs by pool, start-up lines, defaults, and workspaces.

The number that vLLM prints is not a capacity: it is the requests of ``max_model_len``, each with
its reserve for tokens in flight, that a pool of blocks holds, times ``max_model_len``. A block
costs the same whichever group it belongs to; its excess over its group's pages is shared among
them.
Source: vLLM 0.20.2 to 0.33.0 (``gpu_worker.py``, ``kv_cache_utils.py``, ``kv_cache_planning.py``;
``EngineArgs.get_batch_defaults``, ``VllmConfig.max_concurrent_batches``, ``use_v2_model_runner``,
``config/cache.py``, ``envs.py``); a refusal of 0.22 (vllm#44376), logs of 0.26 and 0.33.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import log2, prod

from dsv4kv.engines import contract as ct
from dsv4kv.engines.contract import Sent, sent_of
from dsv4kv.engines.names import chosen_rule
from dsv4kv.engines.rule import Group, Layout, Piece, Rule
from dsv4kv.engines.vllm import FAMILY, Release
from dsv4kv.engines.vllm.layout import BlockLayout, LayerGroup, Page, block_bytes, lay_out
from dsv4kv.errors import ConfigError

_LARGE = 70 * ct.GIB
_LARGEST = 160 * ct.GIB


_BATCHED = ("deepep_low_latency", "nixl_ep")
"""Exchanges of tokens by which experts on replicas' GPUs take few at once (use_batched_dp_moe)."""


def _size_batches(release: Release, machine: ct.Machine) -> tuple[int, int, str]:
    small = machine.gpu.startswith("a100") or (release.small_gb10 and machine.gpu == "gb10")
    if machine.memory_bytes >= _LARGEST and release.largest_tokens > 8192:
        return release.largest_tokens, 1024, "GPUs of 160 GiB or more"
    if machine.memory_bytes >= _LARGE and not small:
        return 8192, 1024, "GPUs of 70 GiB or more"
    return 2048, 256, f"{machine.gpu}" if small else "GPUs below 70 GiB"


_Kind = tuple[str, str]  # pool and layer type


def _by_kind(group: LayerGroup) -> dict[_Kind, list[Page]]:
    """Window pages of all layers but drafts are one kind; the others are kept by layer type."""
    kinds: dict[_Kind, list[Page]] = {}
    for page in group.pages:
        one = page.pool != "window" or page.layer.is_draft
        kinds.setdefault((page.pool, page.layer.kind if one else "all"), []).append(page)
    return kinds


def _context_costs(full: LayerGroup, unit_bytes: int) -> Iterator[ct.PoolCost]:
    if not full.pages:  # a pipeline stage without compressed layers holds the blocks all the same
        whole = Fraction(unit_bytes, full.block_tokens)
        yield ct.PoolCost("main", "all", 0, padding_bytes=whole)
    for kind, pages in _by_kind(full).items():
        whole = Fraction(unit_bytes * sum(page.page_bytes for page in pages), full.page_bytes)
        used = Fraction(sum(page.used_bytes for page in pages), full.block_tokens)
        padding, count = whole / full.block_tokens - used, len({page.layer for page in pages})
        yield ct.PoolCost(*kind, count, marginal_bytes=used, padding_bytes=padding)


def _window_costs(
    groups: Sequence[LayerGroup], unit_bytes: int, deployment: ct.Deployment
) -> Iterator[ct.PoolCost]:
    context, steady = deployment.max_context_tokens, 1 + deployment.draft_tokens
    fixed: Counter[_Kind] = Counter()
    flight: Counter[_Kind] = Counter()
    layers: dict[_Kind, set[int]] = {}
    for group in groups:
        least = group.blocks(context, steady)
        more = max(0, group.blocks(context, deployment.in_flight_tokens) - least)
        fixed.update(_share(unit_bytes * least, group))
        flight.update(_share(unit_bytes * more, group))
        for kind, pages in _by_kind(group).items():
            layers.setdefault(kind, set()).update(page.layer.layer_idx for page in pages)
    for kind, size in fixed.items():
        count = len(layers.get(kind, ()))
        yield ct.PoolCost(*kind, count, fixed_bytes=size, in_flight_bytes=flight[kind])


def _share(total_bytes: int, group: LayerGroup) -> dict[_Kind, int]:
    """Bytes by kind, in proportion to the pages, adding up exactly."""
    if not group.pages:
        return {("window", "all"): total_bytes}
    shares: dict[_Kind, int] = {}
    seen = given = 0
    for kind, pages in _by_kind(group).items():
        seen += sum(page.page_bytes for page in pages)
        upto = total_bytes * seen // group.page_bytes
        shares[kind], given = upto - given, upto
    return shares


_DOCS = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def _gib(count: int) -> str:
    return f"{round(count / ct.GIB, 2)}"


class VllmEngine(ct.Engine):
    """A range of vLLM's versions."""

    family = FAMILY
    logits_room = "profiled"

    def __init__(self, release: Release) -> None:
        self.release = release
        self.name, self.seen_in_logs = f"vllm:{release.newest}", release.seen_in_logs
        self.counts_batches = release.batches_counted

    def layout(self, deployment: ct.Deployment) -> BlockLayout:
        """Groups and bytes of a block."""
        if deployment.arch == "ascend":
            raise ConfigError(
                "vLLM on Ascend is vllm-ascend: no log shows how many bytes its blocks take and "
                "which part of the memory it takes, so its sizes are not known. Give --engine "
                "sglang, or its hits: dsv4kv replay --rule vllm-ascend."
            )
        # neither context nor load decides the layout: searches ask for thousands of both
        key = replace(deployment, max_context_tokens=1, in_flight_tokens=1, concurrency=None)
        return lay_out(self.release, key)

    def rule(self, deployment: ct.Deployment, flags: ct.Given | None = None) -> Rule:
        """Groups of one kind are alike; a hit gives one block back for a draft to compute.

        V4.1's rings are never cached, its windows only with ``--no-swa-bounded-replay``.
        """
        layout, model = self.layout(deployment), deployment.model
        variant = FAMILY.rules[chosen_rule(FAMILY, model.kind, dict(flags or {}))]
        policy = replace(variant.policy, drops=deployment.draft_layers > 0)
        if deployment.bounded_replay is False:
            policy = replace(policy, replays=False)
        elif policy.replays:
            policy = replace(policy, drops=False)
        groups = tuple(
            _group(table, held, cached=not (table.ring or policy.replays))
            for table, held in zip(layout.groups, layout.held, strict=True)
        )
        window = model.window_tokens
        return Rule(Layout(groups, layout.unit_bytes, window), variant.retention, policy)

    def costs(self, deployment: ct.Deployment) -> tuple[ct.PoolCost, ...]:
        (full, *others), unit = self.layout(deployment).held, self.layout(deployment).unit_bytes
        return (*_context_costs(full, unit), *_window_costs(others, unit, deployment))

    def request_bytes(self, deployment: ct.Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes of all blocks of a request; it can be more than vLLM counts up to 0.26."""
        layout = self.layout(deployment)
        return layout.unit_bytes * layout.blocks(tokens, in_flight)

    def shared_bytes(self, deployment: ct.Deployment) -> int:
        return self.layout(deployment).unit_bytes  # the null block

    def blocks_counted(self, deployment: ct.Deployment, tokens: int) -> int:
        """Blocks that vLLM counts for one request, its tokens in flight included."""
        layout, flight = self.layout(deployment), deployment.in_flight_tokens
        if not self.release.weighted:
            return layout.blocks(tokens, flight)
        weights = [table.page_bytes for table in layout.weighed]
        weighed = zip(layout.groups, weights, strict=True)
        need = sum(table.blocks(tokens, flight) * weight for table, weight in weighed)
        return -(-need // weights[0])

    def capacity(self, deployment: ct.Deployment, available_bytes: int) -> ct.Capacity:
        layout, context = self.layout(deployment), deployment.max_context_tokens
        blocks = max(0, available_bytes) // layout.unit_bytes
        needed = self.blocks_counted(deployment, context)
        concurrency = blocks / needed  # a float, as in vLLM: the line truncates its product
        printed, lines = None, [f"Available KV cache memory: {_gib(available_bytes)} GiB"]
        if refused := self._refusal(deployment, available_bytes):
            lines.append(refused)
        else:
            printed = int(concurrency * context)
            size = f"GPU KV cache size: {printed:,} tokens"
            most = f"Maximum concurrency for {context:,} tokens per request: {concurrency:.2f}x"
            lines += [f"{size}, {most}"] if self.release.one_line else [size, most]
        return ct.Capacity(
            cache_bytes=blocks * layout.unit_bytes,
            units=blocks,
            unit_bytes=Fraction(layout.unit_bytes),
            units_per_request=Fraction(needed),
            printed_tokens=printed,
            concurrency=Fraction(blocks, needed),
            log_lines=tuple(lines),
        )

    def _refusal(self, deployment: ct.Deployment, available_bytes: int) -> str:
        """The error that ends the start; empty where the longest request fits."""
        context, checked = deployment.max_context_tokens, available_bytes
        if self.release.null_block:
            checked -= self.layout(deployment).unit_bytes
        if checked <= 0:
            return (
                "ValueError: No available memory for the cache blocks. "
                "Try increasing `gpu_memory_utilization` when initializing the engine "
                "(this flag also controls CPU memory reservation on the CPU backend, despite its "
                f"name). {_DOCS}"
            )
        needed = self.needed_bytes(deployment, context)
        if needed <= checked:
            return ""
        fitting = bisect_right(
            range(1, context), checked, key=lambda tokens: self.needed_bytes(deployment, tokens)
        )
        estimate = "Based on the available memory, the estimated maximum model length is "
        return (
            f"ValueError: To serve at least one request with the model's max seq len ({context}), "
            f"({_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({_gib(checked)} GiB). {f'{estimate}{fitting}. ' if fitting else ''}Try "
            "increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
            f"backend) or decreasing `max_model_len` when initializing the engine. {_DOCS}"
        )

    def needed_bytes(self, deployment: ct.Deployment, tokens: int) -> int:
        """Bytes that the check at start asks for one request; the log counts differently."""
        blocks = self.layout(deployment).blocks(tokens, deployment.in_flight_tokens)
        return self.checked_block_bytes(deployment) * blocks

    def checked_block_bytes(self, deployment: ct.Deployment) -> int:
        """Bytes of a block as the check at start counts them: not packed up to 0.28."""
        layout = self.layout(deployment)
        if self.release.grouping == "tuples":
            return block_bytes(layout.weighed, "tuples", layout.groups[0])
        return layout.unit_bytes

    def defaults(self, machine: ct.Machine, given: ct.Given) -> ct.Defaults:
        release = self.release
        tokens, requests, of = _size_batches(release, machine)
        if given.get("all_to_all") in _BATCHED and machine.dp > 1 and given.get("expert_parallel"):
            tokens, of = 256, f"{given['all_to_all']}"
        limit = min(requests, given.get("step_tokens") or tokens)
        steps, why = 2, "vLLM schedules a step while one runs (async_scheduling)"
        if machine.pp > 1:
            steps = machine.pp + release.overlap_stages
            why = "a step in every stage of the pipeline"
            why += ", and one scheduled" * release.overlap_stages
        if not release.batches_counted:
            steps, why = 1, "this vLLM counts the tokens of one step"
        return {
            "memory_fraction": ct.Default(Fraction(92, 100), "vLLM's gpu_memory_utilization"),
            "reserve": ct.UNMEASURED,
            "step_tokens": ct.Default(tokens, f"vLLM's max_num_batched_tokens on {of}"),
            "overlap": ct.Default(steps, why),
            "request_limit": ct.Default(limit, f"vLLM's max_num_seqs on {of}, of every replica"),
            "logits_limit": ct.Default(512 * ct.MIB, "vLLM's VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"),
        }

    def overhead(self, start: ct.Start) -> ct.Overhead:
        """Workspace and buffers of one rank in a step of the version that was read."""
        one, tokens = start.deployment, start.step_tokens
        if not self.release.null_block:
            return ct.UNKNOWN
        if "FLASHINFER" in str(start.given.get("attention_backend")).upper():
            rows = [("workspace of FlashInfer", _FLASHINFER_BYTES, "flashinfer_sparse.py")]
        else:
            size, why = workspace_bytes(one, tokens), "four prompts' KV in bf16, or keys of the"
            indices = tokens * one.model.index_topk * 4
            rows = [
                ("workspace of prompts", size, f"{why} indexer"),
                ("top-k indices", indices, "topk_indices_buffer"),
            ]
            if 128 in one.model.compress_ratios:
                size, why = hca_index_bytes(one, tokens), "two c128a buffers, for prompts"
                rows.append(("indices of HCA entries", size, f"{why} and for decoding"))
        held = (ct.Held(what, size, f"vLLM 0.33.0: {source}") for what, size, source in rows)
        return ct.Overhead(tuple(held), (), ct.UNKNOWN.unknown)

    def reserve(self, start: ct.Start) -> ct.Default:
        """By the terms of a start, each as large as ``KEPT`` says."""
        size = sum(KEPT[name] * count for name, count in self.kept_terms(start).items())
        spread = max(_SPREAD_GIB, size / 5)
        reason = f"fitted to recorded starts: 9 in 10 are within ± {spread:.1f} GiB"
        return ct.Default(int(size * ct.GIB), reason, int(spread * ct.GIB))

    def kept_terms(self, start: ct.Start) -> dict[str, float]:
        """How much there is of each term of ``KEPT``, and of the workspace that is computed.

        Activations go with the tokens of a step and the width of the model, buffers between ranks
        with the logarithm of their number; more than two GB10 are linked by a network. Up to 0.30
        the scores of V4.1's indexer are as large as a step times the context.
        """
        deployment, machine, release = start.deployment, start.machine, self.release
        arch, ranks = deployment.arch or "", machine.tp * machine.dp
        step, context = start.step_tokens / 8192, deployment.max_context_tokens / 2**20
        counted = {
            "step": step * deployment.model.hidden_size / 4096,
            "ranks": log2(ranks),
            "linked": float(arch == "sm_121" and ranks > 2),
        }
        if arch.startswith(("sm_9", "sm_10")):
            counted["workspace"] = workspace_bytes(deployment, start.step_tokens) / ct.GIB
        else:
            counted["context"] = context
        graph = start.given.get("graphs")
        if graph is None:  # max_cudagraph_capture_size
            requests = start.given.get("request_limit") or _size_batches(release, machine)[1]
            graph = min(2 * requests * (1 + deployment.draft_tokens), 512)
        if release.counts_graphs and graph:
            counted |= {"graphs": 1.0, "graph_tokens": graph / 512}
        if deployment.model.kind == "v41" and not release.bounds_scores:
            key = "scores" if arch.startswith("sm_10") else "older_scores"
            counted[key] = step * context
        return counted

    def loading(self, deployment: ct.Deployment, step_tokens: int) -> ct.Loading:
        """Copies of what has no heads to split by, angles, and buffers of a step's tokens.

        Source: vLLM 0.23 and 0.33, ``models/deepseek_v4{,1}/{attention,nvidia/model}.py``,
        ``deepseek_v41/common/engram.py``, ``fused_moe/oracle/mxfp4.py``.
        """
        model, arch = deployment.model, deployment.arch or ""
        if model.kind == "flat":
            return ct.EVENLY
        each = 4 * model.index_topk * (2 if deployment.draft_layers else 1)
        if deployment.draft_layers:
            each += 2 * _STREAMS * model.hidden_size  # the target's states, for drafts
        if model.kind == "v41":
            each += 4 * (model.candidates.blocks if model.candidates else 0) + _ENGRAM_ROWS
        step = 0  # of slices of FP4 experts in TensorRT-LLM's and AITER's kernels
        if model.kind == "v4" and arch.startswith(("sm_10", "gfx")):
            step = 128 if self.release.null_block and arch.startswith("sm") else 256
        held = ct.rope_bytes(deployment) + each * step_tokens
        widens = model.kind == "v41"  # its scales are of 32 x 32, which no FP8 kernel takes there
        return ct.Loading(True, widens, expert_step=step, held_bytes=held)

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Those left over go to the stages before the last (``get_pp_indices``)."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stages - 1 - extra <= s < stages - 1) for s in range(stages))

    def starved(self, free_bytes: int, weight_bytes: int, fraction: Fraction) -> str:
        """The refusal before any block is counted (``kv_cache_planning.py``)."""
        remedy = "Try increasing `gpu_memory_utilization` when initializing the engine"
        return f"No available memory for the cache blocks. {remedy}"

    def sent(self, deployment: ct.Deployment, tokens: int) -> Sent | None:
        """Sent by NIXL: of a window the blocks that it covers, and one more; whole pages.

        Source: ``kv_connector/v1/nixl/{base_scheduler,base_worker}.py``.
        """
        if not self.release.null_block or deployment.model.kind == "v41":
            return None
        return sent_of(self.rule(deployment).layout, tokens, clips=True)


def _group(table: LayerGroup, held: LayerGroup, *, cached: bool) -> Group:
    """A table as a rule has it, with the bytes of this rank's layers."""
    page = table.pages[0]
    storage = "window" if page.pool == "window" else f"{page.layer.kind} state"
    return Group(
        "context" if table.whole else storage,
        table.block_tokens,
        None if table.whole else (table.window_tokens or 1) - 1,
        cached or table.whole,
        table.ring,
        (Piece(storage, held.page_bytes, len(held.pages)),),
    )


# ---- what is neither weights nor cache

KEPT = {
    "workspace": 1.0,  # FlashMLA's, computed
    "step": 3.02,
    "context": 0.41,
    "ranks": 0.4,
    "linked": 1.23,
    "graphs": 0.23,
    "graph_tokens": 1.85,
    "scores": 7.31,
    "older_scores": 31.4,
}
"""GiB of the terms of a start; fitted, with leave-one-GPU-type-out validation, by
``tests/budget/starts.py`` to 19 public logs of vLLM 0.20 to 0.31."""
_SPREAD_GIB = 2.5


# ---- workspaces: one is shared by all layers and as large as the largest request for it, rounded
# up to 256 B a tensor. Of several backends FlashMLA's is known. Source: vLLM 0.33.0: flashmla.py,
# sparse_mla.py and attention.py of models/deepseek_v4, flash_mla_mega_attn.py of
# models/deepseek_v41, model_executor/layers/sparse_attn_indexer.py, v1/worker/workspace.py.

_STREAMS = 4  # hc_mult
_ENGRAM_ROWS = 2 * 24 * 256 * 2  # of a token: two tables, 24 rows of 256 channels in bf16
_GATHERED_PROMPTS = 4  # PREFILL_CHUNK_SIZE
_LONG_CONTEXT = 256 * 1024
_RADIX_BYTES = 1024 * 1024
_FLASHINFER_BYTES = 128 * 1024 * 1024  # _FLASHINFER_DSV4_WORKSPACE_BUFFER_SIZE
_TOPK_ALIGN = 128


def workspace_bytes(deployment: ct.Deployment, step_tokens: int) -> int:
    """Bytes of the one workspace."""
    model, context = deployment.model, deployment.max_context_tokens
    ratio = min(filter(None, model.compress_ratios))
    keys = context * (576 * 2 // 132) * (5 if context <= _LONG_CONTEXT else 2) // ratio
    key = deployment.formats.indexer
    wanted = [_sum((keys, key.value_bytes, 1), (keys, key.scale_bytes, 1), (_RADIX_BYTES, 1))]
    if model.kind != "flat":
        rows = -(-context // ratio) + model.window_tokens + step_tokens
        chosen = _align(model.index_topk + model.window_tokens, _TOPK_ALIGN)
        gathered = (_GATHERED_PROMPTS, rows, model.head_dim, 2)
        wanted.append(_sum(gathered, (step_tokens, chosen, 4), (step_tokens, 4)))
    return max(wanted)


def hca_index_bytes(deployment: ct.Deployment, step_tokens: int) -> int:
    """Bytes of two rows of indices and a length for every token of a step."""
    width = _align(-(-deployment.max_context_tokens // 128), _TOPK_ALIGN)
    return step_tokens * (2 * width + 1) * 4


def _sum(*tensors: tuple[int, ...]) -> int:
    """Bytes of tensors, each its shape and the bytes of an element."""
    return sum(_align(prod(tensor), 256) for tensor in tensors)


def _align(value: int, step: int) -> int:
    return -(-value // step) * step
