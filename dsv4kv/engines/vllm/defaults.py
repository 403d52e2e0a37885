"""What vLLM takes where nothing is given.

Source: vLLM 0.20 to 0.33: ``EngineArgs.get_batch_defaults``, ``VllmConfig.max_concurrent_batches``
and ``use_v2_model_runner``, ``config/cache.py``, ``envs.py``, ``dsa_indexer_uses_fp4``.
"""

from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.engines.defaults import GIB, MIB, UNMEASURED, Default, Defaults, Given, Machine

_LARGE = 70 * GIB
_LARGEST = 160 * GIB


@dataclass(frozen=True)
class Batches:
    """What a range of versions batches by default.

    Attributes:
        largest_tokens: ``max_num_batched_tokens`` on a GPU of 160 GiB or more.
        small_gb10: A DGX Spark counts as a small GPU, whatever its memory.
        overlap_stages: With pipeline stages, too, a step is scheduled while others run.
    """

    largest_tokens: int = 8192
    small_gb10: bool = False
    overlap_stages: bool = False


def vllm_defaults(batches: Batches, machine: Machine, given: Given, *, counted: bool) -> Defaults:
    """Every setting that nobody gave; ``counted`` is whether steps that overlap are."""
    tokens, requests, of = _size_batches(batches, machine)
    step = given.get("step_tokens") or tokens
    limit = min(requests, step)
    overlap, why = 1, "this vLLM counts the tokens of one step"
    if counted:
        overlap, why = _overlap(batches, machine)
    return {
        "memory_fraction": Default(Fraction(92, 100), "vLLM's gpu_memory_utilization"),
        "reserve": UNMEASURED,
        "step_tokens": Default(tokens, f"vLLM's max_num_batched_tokens on {of}"),
        "overlap": Default(overlap, why),
        "request_limit": Default(limit, f"vLLM's max_num_seqs on {of}, of every replica"),
        "logits_limit": Default(512 * MIB, "vLLM's VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"),
    }


def _size_batches(batches: Batches, machine: Machine) -> tuple[int, int, str]:
    """Tokens of a step and requests at once, of the API server, and on which GPUs."""
    small = machine.gpu.startswith("a100") or (batches.small_gb10 and machine.gpu == "gb10")
    if machine.memory_bytes >= _LARGEST and batches.largest_tokens > 8192:
        return batches.largest_tokens, 1024, "GPUs of 160 GiB or more"
    if machine.memory_bytes >= _LARGE and not small:
        return 8192, 1024, "GPUs of 70 GiB or more"
    return 2048, 256, f"{machine.gpu}" if small else "GPUs below 70 GiB"


def _overlap(batches: Batches, machine: Machine) -> tuple[int, str]:
    if machine.pp == 1:
        return 2, "vLLM schedules a step while one runs (async_scheduling)"
    if batches.overlap_stages:
        return machine.pp + 1, "a step in every stage of the pipeline, and one scheduled"
    return machine.pp, "a step in every stage of the pipeline"
