"""Everything a sizing question can give, and how each of it is written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dsv4kv.choices import SIZED_STATES, choose
from dsv4kv.engines.names import HOST_TIERS
from dsv4kv.errors import ConfigError
from dsv4kv.units import parse_bytes, parse_count

DEFAULT_GPU = "h200"


@dataclass(frozen=True)
class Inputs:
    """One sizing question; None asks the tool to choose or to find out.

    Attributes:
        model: Preset, ``gqa8``, or the path of a Hugging Face config.json.
        gpu: Name in the catalogue.
        hbm: Memory of a GPU instead, in bytes.
        gpus: GPUs; None asks how many are needed.
        tp: Tensor parallel size.
        dp: Data parallel size.
        pp: Pipeline parallel size.
        ep: Expert parallel size.
        context: Tokens of every request; None asks how many fit.
        concurrency: Requests at once over all replicas; None asks how many fit.
        weights: Bytes of one copy of the weights; None derives them.
        weight_bytes_per_param: Bytes of a parameter; None takes the checkpoint's types.
        memory_fraction: Share of a GPU's memory that may be used; here and below, None takes the
            engine's own.
        reserve: Bytes of a GPU kept for activations, graphs and communication.
        kv_memory: Bytes of a GPU for KV, instead of what weights and reserve leave.
        kv_blocks: Blocks (or full tokens) of a GPU, likewise.
        block_tokens: Tokens of a cache block; None takes the engine's own.
        main_format: Format of compressed entries; None takes the model's own.
        window_format: Format of window entries; None takes the model's own.
        indexer_format: Format of indexer keys; None takes the model's own.
        state: Compressor state: fp32, bf16, or HCA's online softmax in fp32.
        draft_layers: Draft (MTP) layers that hold a window.
        draft_tokens: Speculative tokens per step that may be rolled back.
        step_tokens: Tokens of one step, the prompt chunk: of one replica, SGLang's of all.
        overlap: Steps that overlap.
        in_flight_tokens: Tokens in flight; None multiplies the two.
        request_limit: Requests that run at once at most: of one replica, SGLang's of all.
        logits_limit: Bytes that the indexer's logits are cut to.
        window_ratio: SGLang's window slots for a full token.
        window_slots: Whether SGLang's running requests have those out of the window ``freed`` or
            ``kept``, or windows of their ``own`` (V4.1's encoder replay).
        attention_backend: As the engine names it; None takes its own.
        cache_dtype: What an engine calls its entries; ``auto`` takes its own.
        role: ``prefill`` or ``decode`` where they run apart.
        dcp: Ranks that a request's context is spread over in decode.
        prefill_cp: Likewise in prefill.
        hisparse: Whether part of the context is in host memory: ``on``.
        hisparse_ratio: Entries of it for one that is on the GPU.
        unified_memory: Whether SGLang's pools borrow from each other: ``on``.
        unified_kv: Whether SGLang keeps windows as rings of every request: ``on``.
        extra_slots: Requests that SGLang's decode side receives while others run.
        prefix_cache: Whether prefixes are kept for reuse: ``on`` or ``off``.
        host_tier: What keeps prefixes in host memory: ``hicache``; None for nothing.
        host_ratio: Pages of the host for one of the GPU (HiCache).
        host_size: Memory that the tier is given, as its engine counts it.
        host_memory: Memory that is free on a node.
        host_layout: How pages lie in host memory, as the engine names it.
        host_storage: What is behind host memory, as the engine names it.
        bounded_replay: Whether V4.1's windows are computed again behind a hit (vLLM), or late
            layers run a prompt's last window alone (SGLang): ``on``, ``off``, or the engine's own.
        dp_attention: Whether SGLang's replicas are ranks of one server (``on``) or servers.
        host_chunk: Tokens of a chunk (LMCache); None takes its own.
        retention: Tokens between the boundaries of a prefix whose windows vLLM keeps, in addition
            to the last; 0 keeps only the last, None (``dense``) those of every block.
        engine: Whose rules size the cache.
    """

    model: str = "v4-flash"
    gpu: str | None = None
    hbm: int | None = None
    gpus: int | None = None
    tp: int | None = None
    dp: int | None = None
    pp: int | None = None
    ep: int | None = None
    context: int | None = None
    concurrency: int | None = None
    weights: int | None = None
    weight_bytes_per_param: Fraction | None = None
    memory_fraction: Fraction | None = None
    reserve: int | None = None
    kv_memory: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    main_format: str | None = None
    window_format: str | None = None
    indexer_format: str | None = None
    state: str = "fp32"
    draft_layers: int = 0
    draft_tokens: int = 0
    step_tokens: int | None = None
    overlap: int | None = None
    in_flight_tokens: int | None = None
    request_limit: int | None = None
    logits_limit: int | None = None
    window_ratio: Fraction | None = None
    window_slots: str | None = None
    attention_backend: str | None = None
    cache_dtype: str = "auto"
    role: str | None = None
    dcp: int = 1
    prefill_cp: int = 1
    hisparse: str | None = None
    hisparse_ratio: int = 2
    unified_memory: str | None = None
    unified_kv: str | None = None
    extra_slots: int | None = None
    prefix_cache: str = "on"
    host_tier: str | None = None
    host_ratio: Fraction | None = None
    host_size: int | None = None
    host_memory: int | None = None
    host_layout: str = "page_first"
    host_storage: str | None = None
    bounded_replay: str | None = None
    dp_attention: str = "on"
    host_chunk: int | None = None
    retention: int | None = 0
    engine: str = "dsv4kv"


def read_inputs(texts: Mapping[str, str]) -> Inputs:
    """Read inputs as people write them, by option name (``in-flight-tokens``: ``8K``).

    Raises:
        ConfigError: A value that is not of its kind; names the option.
    """
    return Inputs(**{name.replace("-", "_"): _read(name, text) for name, text in texts.items()})


def _read(name: str, text: str) -> Any:
    try:
        return READERS[name](text.strip())
    except ConfigError as error:
        raise ConfigError(f"--{name}: {error}") from None


_MOST_DRAFTS = 1024


def _text(text: str) -> str:
    if not text:
        raise ConfigError("the value is missing.")
    return text


def _few(text: str) -> int:
    count = parse_count(text)
    if count > _MOST_DRAFTS:
        raise ConfigError(f"{text} is too many: give at most {_MOST_DRAFTS:,}.")
    return count


def _positive(text: str) -> int:
    count = parse_count(text)
    if count < 1:
        raise ConfigError(f"{text} is too few: give at least 1.")
    return count


def _size(text: str) -> int:
    size = parse_bytes(text)
    if size < 1:
        raise ConfigError(f"{text} is too little: give at least 1 B.")
    return size


def _fraction(text: str) -> Fraction:
    value = _number(text)
    if not 0 < value <= 1:
        raise ConfigError(f"{text} is no share of a GPU: give a number above 0, at most 1.")
    return value


_EXPONENT = re.compile(r"[eE][+-]?\d{3,}")  # beyond every memory, and beyond patience


def _number(text: str) -> Fraction:
    try:
        if _EXPONENT.search(text):
            raise ValueError
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{text!r} is not a number: write 0.9 or 1/2.") from None
    if value <= 0:
        raise ConfigError(f"{text} is too little: give a number above 0.")
    return value


def _state(text: str) -> str:
    choose(SIZED_STATES, text, "a state format")
    return text


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ConfigError(f"{text!r} is none of {', '.join(names)}: choose one.")
        return text

    return read


READERS: dict[str, Callable[[str], Any]] = {
    "model": _text,
    "gpu": _text,
    "hbm": _size,
    "gpus": _positive,
    "tp": _positive,
    "dp": _positive,
    "pp": _positive,
    "ep": _positive,
    "context": _positive,
    "concurrency": _positive,
    "weights": _size,
    "weight-bytes-per-param": _number,
    "memory-fraction": _fraction,
    "reserve": parse_bytes,
    "kv-memory": _size,
    "kv-blocks": _positive,
    "block-tokens": _positive,
    "main-format": _text,
    "window-format": _text,
    "indexer-format": _text,
    "state": _state,
    "draft-layers": _few,
    "draft-tokens": _few,
    "step-tokens": _positive,
    "overlap": _positive,
    "in-flight-tokens": _positive,
    "request-limit": _positive,
    "logits-limit": _size,
    "window-ratio": _fraction,
    "window-slots": _one_of("freed", "kept", "own"),
    "attention-backend": _text,
    "cache-dtype": _text,
    "role": _one_of("prefill", "decode"),
    "dcp": _positive,
    "prefill-cp": _positive,
    "hisparse": _one_of("on"),
    "hisparse-ratio": _positive,
    "unified-memory": _one_of("on"),
    "unified-kv": _one_of("on"),
    "extra-slots": parse_count,
    "prefix-cache": _one_of("on", "off"),
    "host-tier": _one_of(*HOST_TIERS),
    "host-ratio": _number,
    "host-size": _size,
    "host-memory": _size,
    "host-layout": _text,
    "host-storage": _text,
    "bounded-replay": _one_of("on", "off"),
    "dp-attention": _one_of("on", "off"),
    "host-chunk": _positive,
    "retention": lambda text: None if text == "dense" else parse_count(text),
    "engine": _text,
}
"""How to read every input, by option name."""
