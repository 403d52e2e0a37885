"""What SGLang takes where nothing is given.

Source: SGLang 0.5.12 to 0.5.23: ``handle_gpu_memory_settings``, ``_handle_data_parallelism``,
``deepseek_v4_hook.py``, ``mqa_logits_utils.py`` (0.5.21), ``environ.py``. The prefill graph of
DeepSeek-V4 is off by default in all of them. Memory before weights: InferenceX#2128.
"""

from fractions import Fraction

from dsv4kv.engines.defaults import GIB, MIB, Default, Defaults, Given, Machine
from dsv4kv.engines.sglang.pools import Build

_CLASSES = (  # up to MiB of memory: tokens of a chunk, largest decode graph below TP4, and from
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16_384, 512)
_REQUESTS = 256
_FEW = 32  # requests of a worker
_BEFORE_WEIGHTS = 23 * GIB // 10


def sglang_defaults(build: Build, machine: Machine, given: Given) -> Defaults:
    """Every setting that nobody gave."""
    tokens, _ = _class_of(machine)
    mib = machine.memory_bytes / MIB
    kept = sum(kept_parts(build, machine, given).values())
    share = Fraction(str(round((mib - kept) / mib, 3)))
    used = given.get("memory_fraction") or share
    decodes = given.get("role") == "decode"
    return {
        **({"extra_slots": _extra_slots(machine, given)} if decodes else {}),
        "memory_fraction": Default(
            share, "SGLang's mem_fraction_static for such a chunk and so many GPUs"
        ),
        "reserve": Default(
            _BEFORE_WEIGHTS,
            "taken before weights are loaded, as logged on H200: a guess elsewhere",
        ),
        "step_tokens": Default(tokens, "SGLang's chunked_prefill_size for this memory"),
        "overlap": _overlap(machine),
        "request_limit": Default(_REQUESTS, "SGLang's max_running_requests for DeepSeek-V4"),
        "logits_limit": _logits_limit(build, machine, used),
        "window_slots": Default(
            "freed" if build.frees_windows else "kept",
            "SGLang's SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS in this version",
        ),
    }


def _class_of(machine: Machine) -> tuple[int, int]:
    """Tokens of a chunk, and the largest batch of a decode graph, before any limit."""
    mib = machine.memory_bytes / MIB
    ranks = machine.tp * machine.dp  # SGLang's tp_size, of attention in data parallel, too
    for below, tokens, few, many in _CLASSES:
        if mib < below:
            return tokens, few if ranks < 4 else many
    return _LARGEST


def _overlap(machine: Machine) -> Default:
    if machine.pp > 1:  # overrides.py, _pipeline_parallel_overlap_disable
        return Default(1, "SGLang's overlap schedule is off with pipeline stages")
    return Default(2, "SGLang schedules a step while one runs (overlap schedule)")


ESTIMATED = "SGLang's own estimate, handle_gpu_memory_settings"


def kept_parts(build: Build, machine: Machine, given: Given) -> dict[str, float]:
    """What SGLang leaves free of a GPU for all but weights and cache: MiB, by purpose."""
    tokens, graph = _class_of(machine)
    if build.caps_graphs:
        graph = min(graph, given.get("request_limit") or graph)
    parts = {
        "metadata of attention": 512.0,
        **_activations(given, tokens, graph),
        "buffers between ranks": machine.tp * machine.dp * machine.pp / 8 * 1024,
        "CUDA graphs": 2.0 * graph,
    }
    if machine.dp > 1:
        parts["CUDA graphs"] += graph * machine.dp * (4.5 if graph > 300 else 3)
    if given.get("role") == "prefill":  # decode graphs are off
        parts["CUDA graphs"] = 0.0
    if machine.memory_bytes > 60 * GIB:
        parts["no less than 10 GiB"] = max(0.0, 10 * 1024 - sum(parts.values()))
    if given.get("draft_layers"):
        parts["drafts"] = float(build.draft_reserve_mib)
    return parts


def _activations(given: Given, tokens: int, graph: int) -> dict[str, float]:
    """Of a chunk; on the decode side of the requests that run, with their drafts."""
    if given.get("role") == "decode":
        running = (given.get("request_limit") or graph) * (given.get("draft_tokens") or 1)
        return {"activations of a step": max(running, 2048) * 1.5}
    return {"activations of a chunk": max(given.get("step_tokens") or tokens, 2048) * 1.5}


def _extra_slots(machine: Machine, given: Given) -> Default:
    """Requests that the decode side receives while others run: twice as many as run, if few do."""
    limit = given.get("request_limit")
    each = max(1, limit // machine.dp) if limit else _FEW + 1
    reason = "SGLang's disaggregation_decode_extra_slots for so many requests"
    return Default(2 * each if each <= _FEW else 0, reason)


def _logits_limit(build: Build, machine: Machine, used: Fraction) -> Default:
    if not build.bounds_logits:
        return Default(None, "none: this SGLang scores a chunk at once")
    if machine.kind == "v41":
        return _v41_limit(build, machine.arch or "sm_100")
    left = int(machine.memory_bytes * max(0.0, 1.0 - float(used)))
    bound = min(int(left * 0.2), int(machine.memory_bytes * 0.3))
    return Default(bound, "SGLang's bound: a fifth of what mem_fraction_static leaves")


def _v41_limit(build: Build, arch: str) -> Default:
    """DeepGEMM scores from SM100 on, torch below. Source: ``v41_indexer/scoring.py``."""
    if not arch.startswith(("sm_10", "sm_12")):
        return Default(3 * GIB, "SGLang scores V4.1 in torch below SM100: 1 GiB, three times live")
    if build.half_scores and arch.startswith("sm_10"):
        return Default(GIB, "SGLang's bound of V4.1's scores, 2 GiB, half filled in bf16")
    return Default(2 * GIB, "SGLang's bound of V4.1's scores")
