"""What an engine refuses, or is not sized with: by name, and why."""

from collections.abc import Container
from typing import NamedTuple

from dsv4kv.errors import ConfigError


class Limit(NamedTuple):
    """One of them.

    Attributes:
        asked: What is asked for, by the name of the input.
        kinds: Generations of models that it is about.
        said: What its newest version says; empty where it starts, and is not sized.
    """

    asked: str
    kinds: tuple[str, ...]
    said: str = ""


WORDS = {
    "dcp": "decode context parallelism",
    "prefill_cp": "prefill context parallelism",
    "hisparse": "HiSparse",
    "hisparse_radix": "HiSparse",
    "unified_memory": "unified memory (pools that borrow from each other)",
    "unified_kv": "unified KV (a ring of windows for every request, on AMD's GPUs)",
}
"""How it is called, by the name of the input."""
_HYBRID = (
    "DCP with hybrid KV cache layouts only supports full-attention, Mamba, and replicated draft "
    "groups"
)
_ALL = ("v4", "v41", "flat")
LIMITS = {
    "vllm": (
        Limit("dcp", ("v4", "v41"), _HYBRID),
        Limit("dcp", ("flat",)),
        Limit("prefill_cp", ("v4",),
              "PCP only supports full attention and replicated draft groups."),
        Limit("prefill_cp", ("v41", "flat")),
        Limit("hisparse", ("v4", "v41"), "HiSparse does not support DeepSeek V4."),
        Limit("hisparse", ("flat",)),
    ),
    "sglang": (
        Limit("dcp", _ALL),
        Limit("prefill_cp", _ALL),
        Limit("hisparse", ("v41",), "DeepSeek-V4.1 does not support HiSparse yet"),
        Limit("hisparse", ("flat",)),
        Limit("hisparse_radix", ("v4",),
              "Hierarchical sparse attention currently requires --disable-radix-cache."),
        Limit("unified_memory", _ALL),
        Limit("unified_kv", ("v41",), "DeepSeek-V4.1 does not support the unified KV layout yet"),
        Limit("unified_kv", ("v4", "flat")),
    ),
}  # fmt: skip
"""Of vLLM 0.33 (``v1/core/kv_cache_coordinator.py``, ``v1/hisparse/layout.py``) and SGLang 0.5.23
(``arg_groups/deepseek_v4_hook.py``, ``arg_groups/hisparse_hook.py``)."""
_NEWEST = ("vllm:0.33", "sglang:0.5.23")


def refuse(engine: str, model: str, kind: str, asked: Container[str]) -> None:
    """Raise ``ConfigError`` for the first limit of an engine that is asked for."""
    for limit in LIMITS.get(engine.partition(":")[0], ()):
        if limit.asked not in asked or kind not in limit.kinds:
            continue
        name = WORDS[limit.asked]
        if limit.said and engine in _NEWEST:
            raise ConfigError(f'{name}: {engine} refuses it for {model}: "{limit.said}".')
        raise ConfigError(f"{name}: what {engine} keeps of {model} with it is not sized.")
