"""Choices by name: what each does in one line, and where it is done.

The types of configurations, help and errors are made of such rows, which are next to what they
choose; here are those that several rooms need. Nothing is imported before it is chosen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

from dsv4kv.errors import ConfigError

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Choice:
    """One way to do something."""

    explains: str  # what it does, in one line
    where: str = ""  # ``module:attribute`` below ``dsv4kv`` that does it, or a module

    def load(self) -> Any:
        module, _, attribute = self.where.partition(":")
        found = import_module(f"dsv4kv.{module}")
        return getattr(found, attribute) if attribute else found


STRATEGIES = {
    "full": Choice("with every block"),
    "periodic:TOKENS": Choice("every TOKENS tokens"),
    "zero": Choice("nowhere: 128 tokens per layer are computed again"),
    "zero:bounded": Choice("nowhere: 127 tokens altogether"),
    "ends": Choice("of prompts"),
    "ends+junctions": Choice("and where an earlier resume fell short"),
}
"""Where window and compressor state are kept, as ``replay.mrc`` reads it."""

TRACE_FORMATS = {
    "bailian": Choice("Bailian's JSON lines, ids of 16 tokens", "traces.formats:BAILIAN"),
    "mooncake": Choice("Mooncake's JSON lines, ids of 512", "traces.formats:MOONCAKE"),
    "mooncake-delta": Choice(
        "turns that say what is new in a session", "traces.formats:MOONCAKE_DELTA"
    ),
    "weka": Choice("a conversation, or a folder of them", "traces.formats:WEKA"),
    "azure": Choice("Azure's CSV, only lengths", "traces.formats:AZURE"),
    "burstgpt": Choice("BurstGPT's CSV, only lengths", "traces.formats:BURSTGPT"),
    "sharegpt": Choice("lengths of ShareGPT samples", "traces.formats:SHAREGPT"),
    "timed": Choice("JSON lines whose names are given", "traces.formats:TIMED"),
    "dsv4kv": Choice("the toolkit's own", "traces.formats:NATIVE"),
    "results": Choice("requests of a benchmark's result file", "traces.results:RESULTS"),
}
"""Formats that traces are read from. Where a line has marks of two, the first is taken."""

TRACE_LINES = {
    "dsv4kv": Choice("the toolkit's own format", "traces.formats:format_native"),
    "mooncake": Choice("ids of 512 tokens", "traces.formats:format_mooncake"),
}
"""Formats that traces are written in, a line for every request."""

BACKENDS = {
    "reference": Choice("plain PyTorch, the reference", "ops.reference"),
    "cpu": Choice("the toolkit's own on the CPU", "ops.cpu"),
    "cuda": Choice("the toolkit's own kernels", "ops.cuda"),
}
"""The toolkit's own operations."""

PEERS = {
    "vllm": Choice("vLLM's kernels, where it is installed", "ops.peers:vllm"),
    "sglang": Choice("SGLang's kernels, where it is installed", "ops.peers:sglang"),
    "flashmla": Choice("FlashMLA's kernels, where it is installed", "ops.peers:flashmla"),
    "deepgemm": Choice("DeepGEMM's kernels, where it is installed", "ops.peers:deepgemm"),
}
"""Packages whose operations take the place of ours."""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def explained(registry: Mapping[str, Any]) -> str:
    """The names, each with what it does: ``lru (the least recently used), …``."""
    return listed(f"{name} ({row.explains})" for name, row in registry.items())


def choose(registry: Mapping[str, RowT], name: str, what: str) -> RowT:
    """The row of a name, or a ``ConfigError``; ``what`` is its kind: ``an eviction policy``."""
    if name in registry:
        return registry[name]
    raise unknown(registry, name, what)


def unknown(registry: Mapping[str, object], name: str, what: str) -> ConfigError:
    """The sentence about a name that is not in a registry, with the nearest and all there are."""
    close = get_close_matches(name, registry, 1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return ConfigError(f"{name!r} is not {what}{guess}: choose one of {listed(registry)}.")
