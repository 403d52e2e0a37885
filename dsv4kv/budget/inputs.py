"""Everything a sizing question can give, and how each of it is written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, get_type_hints

from dsv4kv.choices import SIZED_STATES, choose
from dsv4kv.engines.names import HOST_TIERS
from dsv4kv.errors import ConfigError
from dsv4kv.units import parse_bytes, parse_count

DEFAULT_GPU = "h200"


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


def _retention(text: str) -> int | None:
    return None if text == "dense" else parse_count(text)


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ConfigError(f"{text!r} is none of {', '.join(names)}: choose one.")
        return text

    return read


Text = Annotated[str | None, _text]
Count = Annotated[int | None, _positive]
Size = Annotated[int | None, _size]
Share = Annotated[Fraction | None, _fraction]
Ratio = Annotated[Fraction | None, _number]
Few = Annotated[int, _few]
On = Annotated[str | None, _one_of("on")]


@dataclass(frozen=True)
class Inputs:
    """One sizing question: what every option of ``budget`` says, with how its text is read.

    None asks the tool to choose or to find out: the engine's own value, the most that fits, the
    fewest GPUs.

    Attributes:
        model: Preset, ``gqa8``, or the path of a Hugging Face config.json.
        hbm: Memory of a GPU in place of its name, in bytes.
        concurrency: Requests at once over all replicas.
        weights: Bytes of one copy of the weights.
        kv_memory: Bytes of a GPU for KV, instead of what weights and reserve leave.
        kv_blocks: Blocks (or full tokens) of a GPU, likewise.
        state: Compressor state: fp32, bf16, or HCA's online softmax in fp32.
        step_tokens: Tokens of one step, the prompt chunk: of one replica, SGLang's of all; so is
            the limit of requests.
        in_flight_tokens: Tokens of the steps that overlap, instead of the two.
        window_slots: Whether SGLang's running requests have those out of the window ``freed`` or
            ``kept``, or windows of their ``own`` (V4.1's encoder replay).
        dcp: Ranks that a request's context is spread over in decode.
        hisparse_ratio: Entries of the context for one that is on the GPU.
        extra_slots: Requests that SGLang's decode side receives while others run.
        host_ratio: Pages of the host for one of the GPU (HiCache).
        host_size: Memory that the tier is given, as its engine counts it.
        host_memory: Memory that is free on a node.
        bounded_replay: Whether V4.1's windows are computed again behind a hit (vLLM), or late
            layers run a prompt's last window alone (SGLang).
        dp_attention: Whether SGLang's replicas are ranks of one server (``on``) or servers.
        host_chunk: Tokens of a chunk (LMCache).
        retention: Tokens between the boundaries of a prefix whose windows vLLM keeps, in addition
            to the last; 0 keeps only the last, None (``dense``) those of every block.
    """

    model: Annotated[str, _text] = "v4-flash"
    gpu: Text = None
    hbm: Size = None
    gpus: Count = None
    tp: Count = None
    dp: Count = None
    pp: Count = None
    ep: Count = None
    context: Count = None
    concurrency: Count = None
    weights: Size = None
    weight_bytes_per_param: Ratio = None
    memory_fraction: Share = None
    reserve: Annotated[int | None, parse_bytes] = None
    kv_memory: Size = None
    kv_blocks: Count = None
    block_tokens: Count = None
    main_format: Text = None
    window_format: Text = None
    indexer_format: Text = None
    state: Annotated[str, _state] = "fp32"
    draft_layers: Few = 0
    draft_tokens: Few = 0
    step_tokens: Count = None
    overlap: Count = None
    in_flight_tokens: Count = None
    request_limit: Count = None
    logits_limit: Size = None
    window_ratio: Share = None
    window_slots: Annotated[str | None, _one_of("freed", "kept", "own")] = None
    attention_backend: Text = None
    cache_dtype: Annotated[str, _text] = "auto"
    role: Annotated[str | None, _one_of("prefill", "decode")] = None
    dcp: Annotated[int, _positive] = 1
    prefill_cp: Annotated[int, _positive] = 1
    hisparse: On = None
    hisparse_ratio: Annotated[int, _positive] = 2
    unified_memory: On = None
    unified_kv: On = None
    extra_slots: Annotated[int | None, parse_count] = None
    prefix_cache: Annotated[str, _one_of("on", "off")] = "on"
    host_tier: Annotated[str | None, _one_of(*HOST_TIERS)] = None
    host_ratio: Ratio = None
    host_size: Size = None
    host_memory: Size = None
    host_layout: Annotated[str, _text] = "page_first"
    host_storage: Text = None
    bounded_replay: Annotated[str | None, _one_of("on", "off")] = None
    dp_attention: Annotated[str, _one_of("on", "off")] = "on"
    host_chunk: Count = None
    retention: Annotated[int | None, _retention] = 0
    engine: Annotated[str, _text] = "dsv4kv"


READERS: dict[str, Callable[[str], Any]] = {
    name.replace("_", "-"): hint.__metadata__[0]
    for name, hint in get_type_hints(Inputs, include_extras=True).items()
}
"""How to read every input, by option name."""


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
