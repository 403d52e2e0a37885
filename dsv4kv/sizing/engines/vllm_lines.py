"""vLLM's start-up lines on the size of the cache, word for word, without their prefixes.

Source: vLLM 0.26.0 and 0.33.0, ``gpu_worker.py``, ``kv_cache_utils.py``, ``kv_cache_planning.py``.
"""

GIB = 2**30
_DOCS = "https://docs.vllm.ai/en/latest/configuration/conserving_memory/"


def size_lines(
    available_bytes: int, tokens: int, context: int, concurrency: float, *, one_line: bool
) -> tuple[str, ...]:
    """The memory, and the number that stands for it."""
    size = f"GPU KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {context:,} tokens per request: {concurrency:.2f}x"
    memory = f"Available KV cache memory: {_gib(available_bytes)} GiB"
    return (memory, f"{size}, {most}") if one_line else (memory, size, most)


def refusal_lines(
    available_bytes: int, checked_bytes: int, needed_bytes: int, context: int, fitting: int
) -> tuple[str, ...]:
    """The memory, and the error that ends the start; ``fitting`` 0 where no length fits."""
    memory = f"Available KV cache memory: {_gib(available_bytes)} GiB"
    if checked_bytes <= 0:
        error = (
            "ValueError: No available memory for the cache blocks. "
            "Try increasing `gpu_memory_utilization` when initializing the engine "
            "(this flag also controls CPU memory reservation on the CPU backend, despite its "
            f"name). See {_DOCS} for more details."
        )
        return (memory, error)
    estimate = (
        f"Based on the available memory, the estimated maximum model length is {fitting}. "
        if fitting
        else ""
    )
    error = (
        f"ValueError: To serve at least one request with the model's max seq len ({context}), "
        f"({_gib(needed_bytes)} GiB KV cache is needed, which is larger than the available KV "
        f"cache memory ({_gib(checked_bytes)} GiB). {estimate}Try increasing "
        "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
        f"decreasing `max_model_len` when initializing the engine. See {_DOCS} for more details."
    )
    return (memory, error)


def _gib(count: int) -> str:
    return f"{round(count / GIB, 2)}"
