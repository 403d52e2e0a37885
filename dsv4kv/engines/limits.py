"""What an engine refuses, or is not sized with: by name, and why."""

from collections.abc import Container, Iterable
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
_NEWEST = ("vllm:0.33", "sglang:0.5.23")


def refuse(
    limits: Iterable[Limit], engine: str, model: str, kind: str, asked: Container[str]
) -> None:
    """Raise ``ConfigError`` for the first that is asked for."""
    for limit in limits:
        if limit.asked not in asked or kind not in limit.kinds:
            continue
        name = WORDS[limit.asked]
        if limit.said and engine in _NEWEST:
            raise ConfigError(f'{name}: {engine} refuses it for {model}: "{limit.said}".')
        raise ConfigError(f"{name}: what {engine} keeps of {model} with it is not sized.")
