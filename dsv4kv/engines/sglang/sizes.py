"""SGLang's sizes by version: full tokens, costs by pool, start-up lines, and defaults.

SGLang logs the full tokens of its pool. They are shared by all requests; windows and states take
memory in addition.
Source: SGLang 0.5.12 to 0.5.23 (``pool_configurator.py``, ``handle_gpu_memory_settings``,
``_handle_data_parallelism``, ``deepseek_v4_hook.py``, ``mqa_logits_utils.py``, ``environ.py``),
and start-up logs of 0.5.15 and of the build of September 2026. The prefill graph of DeepSeek-V4 is
off by default in all of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

from dsv4kv.engines import contract as ct
from dsv4kv.engines.contract import Sent, sent_of
from dsv4kv.engines.ktransformers import BUILD as KT_BUILD
from dsv4kv.engines.ktransformers import FAMILY as KT
from dsv4kv.engines.names import chosen_rule
from dsv4kv.engines.rule import Rule
from dsv4kv.engines.sglang import FAMILY, Build
from dsv4kv.engines.sglang.layout import (
    CHARGED_INDEXER_BYTES,
    Pools,
    build_pools,
    lay_out,
    page_of,
)
from dsv4kv.errors import ConfigError

_CLASSES = (  # up to MiB of memory: tokens of a chunk, largest decode graph below TP4, and from
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16_384, 512)
_REQUESTS = 256
_FEW = 32  # requests of a worker
_RESERVED_TOKENS = 512  # of a running request on a decode side
_SLACK = 4 * ct.GIB // 10  # code and slack of allocations: weights are a difference of free memory


def _class_of(machine: ct.Machine) -> tuple[int, int]:
    mib = machine.memory_bytes / ct.MIB
    ranks = machine.tp * machine.dp  # SGLang's tp_size, of attention in data parallel, too
    for below, tokens, few, many in _CLASSES:
        if mib < below:
            return tokens, few if ranks < 4 else many
    return _LARGEST


def _before_weights(machine: ct.Machine) -> int:
    """Bytes of a GPU that are not free before weights are loaded.

    Logged: 1.6 GiB of H20, 1.9 of H200, 0.5 of 32 GB cards, 9.4 of MI300X, 11 of MI355X, 10.2 of
    GB10, which shares its memory with the host, 0.78 of Ascend.
    """
    arch = machine.arch or ""
    if arch == "ascend":
        return 78 * ct.GIB // 100
    if arch.startswith("gfx"):
        return machine.memory_bytes * 44 // 1000
    return 10 * ct.GIB if arch == "sm_121" else 17 * ct.GIB // 10


def _kept_parts(build: Build, machine: ct.Machine, given: ct.Given) -> dict[str, float]:
    """What SGLang leaves free of a GPU for all but weights and cache: MiB, by purpose."""
    tokens, graph = _class_of(machine)
    if build.caps_graphs:
        graph = min(graph, given.get("request_limit") or graph)
    what, live = "activations of a chunk", given.get("step_tokens") or tokens
    if given.get("role") == "decode":
        what = "activations of a step"
        live = (given.get("request_limit") or graph) * (given.get("draft_tokens") or 1)
    parts = {
        "metadata of attention": 512.0,
        what: max(live, 2048) * 1.5,
        "buffers between ranks": machine.tp * machine.dp * machine.pp / 8 * 1024,
        "CUDA graphs": 2.0 * graph,
    }
    if machine.dp > 1:
        parts["CUDA graphs"] += graph * machine.dp * (4.5 if graph > 300 else 3)
    if given.get("role") == "prefill":  # decode graphs are off
        parts["CUDA graphs"] = 0.0
    if machine.memory_bytes > 60 * ct.GIB:
        parts["no less than 10 GiB"] = max(0.0, 10 * 1024 - sum(parts.values()))
    if given.get("draft_layers"):
        parts["drafts"] = float(build.draft_reserve_mib)
    return parts


def _check_chunk(machine: ct.Machine, given: ct.Given) -> None:
    """Of SGLang's own checks, ``check_server_args``: ranks of DP attention share a chunk."""
    page = given.get("block_tokens") or page_of(machine.kind)
    tokens = given.get("step_tokens", page * machine.dp) // machine.dp
    if tokens % page and given.get("role") != "decode":
        raise ConfigError(
            f"SGLang does not start with chunks of {tokens:,} tokens per rank, not whole pages: "
            f"give --chunked-prefill-size a multiple of {page * machine.dp:,}."
        )


def _logits_limit(build: Build, machine: ct.Machine, used: Fraction) -> ct.Default:
    """V4.1 is scored by DeepGEMM from SM100 on, in torch below (``v41_indexer/scoring.py``)."""
    if not build.bounds_logits:
        return ct.Default(None, "none: this SGLang scores a chunk in one piece")
    arch = machine.arch or "sm_100"
    if machine.kind != "v41":
        left = int(machine.memory_bytes * max(0.0, 1.0 - float(used)))
        bound = min(int(left * 0.2), int(machine.memory_bytes * 0.3))
        return ct.Default(bound, "SGLang's bound: a fifth of what mem_fraction_static leaves")
    if not arch.startswith(("sm_10", "sm_12")):
        return ct.Default(
            3 * ct.GIB, "SGLang scores V4.1 in torch below SM100: 1 GiB, three times live"
        )
    if build.half_scores and arch.startswith("sm_10"):
        return ct.Default(ct.GIB, "SGLang's bound of V4.1's scores, 2 GiB, half filled in bf16")
    return ct.Default(2 * ct.GIB, "SGLang's bound of V4.1's scores")


def _refusal(pools: Pools, available_bytes: int, full: int) -> str:
    windows = pools.fixed_bytes(0)["swa_fixed"]
    if pools.request_windows:
        if full:
            return ""
        return (
            f"The DSV4 SWA pool cap ({pools.fixed_window_tokens} tokens, {windows / ct.GIB:.2f} "
            "GB) leaves no room for the full KV pool within the available "
            f"{available_bytes / ct.GIB:.2f} GB. Reduce --max-running-requests, lower "
            "--swa-prefix-tails or SGLANG_SWA_EVICTION_INTERVAL, or increase "
            "--mem-fraction-static."
        )
    window, page = pools.deployment.model.window_tokens, pools.page_tokens
    slots = pools.window_slots(full)
    if pools.build.checks_windows and slots <= window + page:
        return (
            f"SWA pool ({slots} tokens) cannot hold even one request: the prefill admission floor "
            f"is sliding_window_size ({window}) + page_size ({page}). Increase "
            "--swa-full-tokens-ratio or the total KV budget."
        )
    return "" if full else "Not enough memory. Please try to increase --mem-fraction-static."


class SglangEngine(ct.Engine):
    """A range of SGLang's versions."""

    family = FAMILY
    logits_room = "headroom"
    unit = "full token"
    shares_limits = True

    def __init__(self, build: Build) -> None:
        self.build = build
        self.name, self.seen_in_logs = f"sglang:{build.newest}", build.seen_in_logs
        # up to 0.5.17 a leaf of the tree is locked whole (SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT)
        self.holds_chunks = not build.frees_windows

    def pools(self, deployment: ct.Deployment) -> Pools:
        return build_pools(self.build, deployment)

    def rule(self, deployment: ct.Deployment, flags: ct.Given | None = None) -> Rule:
        """Pages of context and of windows; drafts are in the keys of pages."""
        kind, given = deployment.model.kind, dict(flags or {})
        if deployment.window_slots == "own":
            given["window_slots"] = "own"
        variant = FAMILY.rules[chosen_rule(FAMILY, kind, given)]
        policy = variant.policy
        if policy.leaves_window:
            asked = deployment.bounded_replay
            leaves = self.build.leaves_window if asked is None else asked
            policy = replace(policy, leaves_window=leaves)
        return Rule(lay_out(self.pools(deployment)), variant.retention, policy)

    def costs(self, deployment: ct.Deployment) -> tuple[ct.PoolCost, ...]:
        """Every pool's share of a full token, and of a request where the size is fixed."""
        pools = self.pools(deployment)
        if pools.flat:
            layers, keyed = pools.windows, pools.keyed
            rows = (
                ("main", layers, deployment.formats.main.entry_bytes * layers),
                ("indexer", keyed, CHARGED_INDEXER_BYTES * keyed),
            )
            return tuple(ct.PoolCost(n, "dsa", k, marginal_bytes=Fraction(b)) for n, k, b in rows)
        costs = [*_context_costs(pools), *_window_costs(pools)]
        if drafts := Fraction(pools.inflation) - 1:
            growth = sum(cost.marginal_bytes + cost.padding_bytes for cost in costs) * drafts
            layers = deployment.draft_layers
            costs.append(ct.PoolCost("window", "draft", layers, marginal_bytes=growth))
        return (*costs, *_state_costs(pools))

    def request_bytes(self, deployment: ct.Deployment, tokens: int, *, in_flight: int) -> int:
        """Full tokens in whole pages, and what is fixed for the request.

        Where windows are a share of the full tokens, a request takes as many full tokens as bring
        the slots of its window, or of its whole prompt where they are not freed.
        """
        pools = self.pools(deployment)
        size = int(_full_tokens(pools, tokens, in_flight) * pools.bytes_per_full_token)
        return size + sum(cost.fixed_bytes for cost in self.costs(deployment))

    def shared_bytes(self, deployment: ct.Deployment) -> int:
        """States of all requests that may run and of a spare one, and windows of a fixed size."""
        pools = self.pools(deployment)
        windows = pools.fixed_bytes(0)["swa_fixed"]
        return int(windows) + sum(cost.shared_bytes for cost in _state_costs(pools))

    def blocks(self, deployment: ct.Deployment, units: int) -> tuple[int, int | None]:
        pools = self.pools(deployment)
        page = pools.page_tokens
        return units // page, None if pools.flat else pools.window_slots(units) // page

    def capacity(self, deployment: ct.Deployment, available_bytes: int) -> ct.Capacity:
        pools = self.pools(deployment)
        full = pools.full_tokens(available_bytes)
        fixed = pools.fixed_bytes(pools.requests(available_bytes))
        chunks = pools.frees_windows and deployment.role != "decode"
        flight = deployment.in_flight_tokens if chunks else 1 + deployment.draft_tokens
        needed = _full_tokens(pools, deployment.max_context_tokens, flight)
        refused, lines = _refusal(pools, available_bytes, full), list[str]()
        if held := deployment.layers:
            every = len(deployment.model.compress_ratios)
            lines.append(
                f"DSV4 pool PP slice: rank={deployment.stage} layers=[{held[0]},{held[-1] + 1}) "
                f"local={len(held)}/{every}"
            )
        shown = [f"{flag}=False" for flag in self.build.flags]
        shown.append(f"bytes_per_full_token={pools.bytes_per_full_token:.2f}")
        shown.append(f"available_bytes={available_bytes / ct.GIB:.2f} GB")
        shown += [f"{name}={fixed[name] / ct.GIB:.2f} GB" for name in self.build.fields]
        line = ", ".join([*shown, f"full_token={full}"])
        lines.append(refused or f"DSV4 memory calculation: {line}")
        if pools.flat:
            lines = [f"max_total_num_tokens={full}"]
        taken = int(full * pools.bytes_per_full_token + sum(fixed.values()))
        return ct.Capacity(
            cache_bytes=min(available_bytes, taken),
            units=full,
            unit_bytes=Fraction(pools.bytes_per_full_token),
            units_per_request=Fraction(needed),
            printed_tokens=None if refused else full,
            concurrency=Fraction(full, needed),
            log_lines=tuple(lines),
            note=_bound(pools, full),
        )

    def decode_pool_tokens(self, deployment: ct.Deployment, requests: int) -> int | None:
        """Full tokens of whole requests, each with its reserve, and of one prompt in transfer.

        A prompt is taken in where it fits next to the reserves of all that run
        (``disaggregation/decode.py``, ``num_reserved_decode_tokens``).
        """
        if deployment.role != "decode":
            return None
        page, context = self.pools(deployment).page_tokens, deployment.max_context_tokens
        pages = -(-(requests * (context + _RESERVED_TOKENS) + context) // page)
        return pages * page

    def defaults(self, machine: ct.Machine, given: ct.Given) -> ct.Defaults:
        build, mib = self.build, machine.memory_bytes / ct.MIB
        _check_chunk(machine, given)
        tokens, _ = _class_of(machine)
        kept = sum(_kept_parts(build, machine, given).values())
        share = Fraction(str(round((mib - kept) / mib, 3)))
        why, spread = "SGLang's mem_fraction_static for this chunk and number of GPUs", 3 * ct.GIB
        if machine.arch == "ascend" and "memory_fraction" not in given:
            share, spread = Fraction("0.88"), 6 * ct.GIB
            why = "what two logs of Ascend without the flag took; the source would leave more"
        used = given.get("memory_fraction") or share
        overlap = ct.Default(2, "SGLang schedules a step while one runs (overlap schedule)")
        if machine.pp > 1:  # overrides.py, _pipeline_parallel_overlap_disable
            overlap = ct.Default(1, "SGLang's overlap schedule is off with pipeline stages")
        defaults = {
            "memory_fraction": ct.Default(share, why),
            "reserve": ct.Default(
                int(_before_weights(machine) * used),
                "taken before weights are loaded, as logged on such GPUs",
                spread,
            ),
            "step_tokens": ct.Default(tokens, "SGLang's chunked_prefill_size for this memory"),
            "overlap": overlap,
            "request_limit": ct.Default(
                _REQUESTS, "SGLang's max_running_requests for DeepSeek-V4"
            ),
            "logits_limit": _logits_limit(build, machine, used),
            "window_slots": ct.Default(
                "freed" if build.frees_windows else "kept",
                "SGLang's SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS in this version",
            ),
        }
        if given.get("role") != "decode":
            return defaults
        limit = given.get("request_limit")
        each = max(1, limit // machine.dp) if limit else _FEW + 1
        reason = "SGLang's disaggregation_decode_extra_slots for this request limit"
        return {"extra_slots": ct.Default(2 * each if each <= _FEW else 0, reason)} | defaults

    def overhead(self, start: ct.Start) -> ct.Overhead:
        """What SGLang itself takes to be needed in what its share leaves of a GPU.

        A share that was given leaves it to a rank's own chunk; SGLang's own share to the chunk of
        all ranks of DP attention.
        """
        given = dict(start.given)
        if "memory_fraction" in given:
            given["step_tokens"] = start.step_tokens
        parts = _kept_parts(self.build, start.machine, given)
        source = "SGLang's own estimate, handle_gpu_memory_settings"
        headroom = [ct.Held(what, int(mib * ct.MIB), source) for what, mib in parts.items() if mib]
        unknown = ("what a step really uses of what is left free", "buffers of DeepEP")
        return ct.Overhead((), tuple(headroom), unknown)

    def loading(self, deployment: ct.Deployment, step_tokens: int) -> ct.Loading:
        """Copies of what has no heads to split by; where DeepGEMM has none, one matrix in bf16.

        Source: SGLang 0.5.15 to 0.5.23, ``models/deepseek_v4.py``, ``serving_hook.py``
        (``SGLANG_OPT_FP8_WO_A_GEMM``), ``scheduler.py`` (drafts are loaded before the cache is
        sized, ``init_lm_head`` comes after).
        """
        model, arch = deployment.model, deployment.arch or "sm_100"
        if model.kind == "flat":
            return ct.Loading(True, draft_heads=self.build.draft_heads)
        widens = model.kind == "v41" or not arch.startswith(("sm_10", "gfx942"))
        held = ct.rope_bytes(deployment) + _SLACK
        return ct.Loading(True, widens, self.build.draft_heads, held_bytes=held)

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Those left over go to the last stages (``get_pp_indices``)."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stage >= stages - extra) for stage in range(stages))

    def starved(self, free_bytes: int, weight_bytes: int, fraction: Fraction) -> str:
        """The refusal before any pool is sized (``_profile_available_bytes``)."""
        least = weight_bytes / free_bytes
        return (
            "Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={float(fraction):g}. Raise --mem-fraction-static above "
            f"{ceil(least * 1000) / 1000:.3f} (minimum viable = 1 - available/pre = {least:.4f})."
        )

    def sent(self, deployment: ct.Deployment, tokens: int) -> Sent:
        """Pages, windows, and rows of entries that a prompt's end has begun.

        Source: ``disaggregation/prefill.py``, ``get_contiguous_buf_infos`` and its like of
        ``deepseek_v4_memory_pool.py``.
        """
        sent = sent_of(self.rule(deployment).layout, tokens)
        pools, rows = self.pools(deployment), 1 if deployment.online_state else 128
        hca = pools.hca * bool(tokens % 128)
        pairs = pools.low.count(2) * (tokens % 2)
        pending = hca * rows * pools.hca_row_bytes
        pending += pairs * pools.pair_ring * pools.pair_row_bytes
        return Sent(sent.bytes + pending, sent.descriptors + hca + pairs)


class KtEngine(SglangEngine):
    """KTransformers' one version: sglang-kt 0.7.2, and a log of May 2026."""

    family = KT

    def __init__(self) -> None:
        super().__init__(KT_BUILD)
        self.name = KT.name


def _full_tokens(pools: Pools, tokens: int, in_flight: int) -> int:
    """Full tokens that a request takes out of the pool, in whole pages.

    Where window slots are kept, one chunk's are added, as runs of SGLang 0.5.15 showed.
    """
    own = -(-max(tokens, 1) // pools.page_tokens) * pools.page_tokens
    if pools.request_windows:
        return own
    chunk = in_flight // (1 + pools.deployment.overlap)
    live = own + chunk // pools.page_tokens * pools.page_tokens
    if pools.frees_windows:
        live = min(pools.window_tokens_per_request + in_flight, own)
    return max(own, -(-int(live / pools.window_ratio) // pools.page_tokens) * pools.page_tokens)


def _bound(pools: Pools, full: int) -> str:
    """Which pool holds fewer requests, where windows are a share of the full tokens."""
    if pools.request_windows or not full:
        return ""
    tokens, chunk = pools.deployment.max_context_tokens, pools.chunk_tokens
    spare = 0 if pools.frees_windows else int(chunk / pools.window_ratio)
    held = (full - spare) // _full_tokens(pools, tokens, 1)
    span = "its window alone" if pools.frees_windows else "its whole prompt"
    return (
        f"Full tokens ({full:,}) hold {full // max(tokens, 1):,} requests of {tokens:,} tokens, "
        f"window slots ({pools.window_slots(full):,}) hold {held:,}: a request keeps slots of "
        f"{span} (SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS="
        f"{int(pools.frees_windows)})."
    )


def _state_costs(pools: Pools) -> list[ct.PoolCost]:
    requests, pairs = pools.deployment.concurrency, pools.low.count(2)
    costs = []
    for kind, layers, size in (
        ("hca", pools.hca, pools.hca_state_bytes),
        ("csa", pairs, pools.pair_state_bytes),
    ):
        fixed = 0 if requests else (size(128) - size(0)) // 128
        if layers and size(0):
            shared = size(requests or 0)
            costs.append(ct.PoolCost("state", kind, layers, fixed, shared_bytes=shared))
    return costs


def _context_costs(pools: Pools) -> Iterator[ct.PoolCost]:
    """Entries and keys by ratio; what SGLang prices beyond their bytes is padding."""
    formats = pools.deployment.formats

    def cost(pool: str, ratio: int, spread: int, used: int, priced: float) -> ct.PoolCost:
        layers, kind = pools.layers[ratio], "hca" if ratio == 128 else "csa"
        padding = (Fraction(priced) - used) * layers / spread
        useful = Fraction(used * layers, spread)
        return ct.PoolCost(pool, kind, layers, marginal_bytes=useful, padding_bytes=padding)

    for ratio in filter(pools.layers.__getitem__, pools.layers):
        spread = ratio * pools.deployment.hisparse_ratio if ratio == 4 else ratio
        yield cost("main", ratio, spread, formats.main.entry_bytes, pools.entry_bytes(ratio))
        if ratio != 128:
            priced = CHARGED_INDEXER_BYTES if ratio == 4 else pools.low_key_bytes
            yield cost("indexer", ratio, ratio, formats.indexer.entry_bytes, priced)


def _window_costs(pools: Pools) -> list[ct.PoolCost]:
    if pools.request_windows:
        held = int(pools.fixed_bytes(0)["swa_fixed"])
        return [ct.PoolCost("window", "all", pools.windows, shared_bytes=held)]
    entry, ratio = Fraction(pools.window_entry_bytes), Fraction(pools.window_ratio)
    used, layers = pools.deployment.formats.window.entry_bytes, pools.windows
    state = Fraction(pools.window_bytes_per_token) - entry * layers
    useful, padding = ratio * used * layers, ratio * (entry - used) * layers
    costs = [ct.PoolCost("window", "all", layers, marginal_bytes=useful, padding_bytes=padding)]
    if state:
        costs.append(ct.PoolCost("state", "csa", pools.csa, marginal_bytes=ratio * state))
    return costs
