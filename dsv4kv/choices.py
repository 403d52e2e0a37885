"""Every choice by name: what it does in one line, and where it is done.

One registry for each question, a dict literal. The types of configurations, help and errors
are made of these, so a new policy, format or engine is a file and a row here.
Nothing is imported before it is chosen: ``--help`` reads this page alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol, TypeVar

from dsv4kv.errors import ConfigError


class Explained(Protocol):
    """Whatever says in one line what it does."""

    @property
    def explains(self) -> str:
        """What it does."""


RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Choice:
    """One way to do something.

    Attributes:
        explains: What it does, in one line.
        where: ``module:attribute`` below ``dsv4kv`` that does it, or a module.
    """

    explains: str
    where: str = ""

    def load(self) -> Any:
        """Import what does it."""
        module, _, attribute = self.where.partition(":")
        found = import_module(f"dsv4kv.{module}")
        return getattr(found, attribute) if attribute else found


POLICIES = {
    "lru": Choice("the least recently used", "core.policies:LRU"),
    "fifo": Choice("the one stored first", "core.policies:FIFO"),
    "lfu": Choice("the one used least often", "core.policies:LFU"),
    "lfu-aged": Choice("the one used least often, old uses fading", "core.policies:AgedLFU"),
    "gdsf": Choice("the least uses for its size, aged by what was evicted", "core.policies:GDSF"),
    "sieve": Choice("the next one not used since a hand passed it", "core.policies:SIEVE"),
    "s3fifo": Choice(
        "what a small queue saw used less than twice, then the main queue's oldest",
        "core.policies:S3FIFO",
    ),
    "arc": Choice("by recency or frequency, whichever lost less lately", "core.policies:ARC"),
}
"""What is evicted first; children always before their parents."""

OFFLINE = "belady"
OFFLINE_POLICIES = {
    OFFLINE: Choice("the one needed last, a bound that knows the trace", "core.policies:Belady")
}

INDEXES = {
    "radix": Choice("to 128 tokens"),
    "block_hash": Choice("in whole blocks"),
}
"""How prefixes are found."""

SYSTEMS = {
    "pools": Choice("pools of blocks for every layer", "bench.systems.pool_system:run_pools"),
    "slots": Choice("a row of KV for every request", "bench.systems.slot_system:run_slots"),
    "blocks": Choice("blocks with several holders", "bench.systems.block_system:run_blocks"),
}
"""Ways to keep a cache that ``bench systems`` runs side by side."""

TRANSPORTS = {
    "shm": Choice("shared memory, on one machine"),
    "tcp": Choice("a socket, on one machine or between two"),
    "nixl": Choice("NIXL, where it is installed on both sides"),
    "mooncake": Choice("Mooncake's transfer engine, where it is installed on both sides"),
}
"""How ``bench transfer`` gets bytes from a prefill cache to a decode cache."""

PREPARE = {"host": Choice("which copies them"), "device": Choice("by kernels")}
"""Who works out a step's blocks for a GPU."""

STRATEGIES = {
    "full": Choice("with every block"),
    "periodic:TOKENS": Choice("every so many tokens"),
    "zero": Choice("nowhere: 128 tokens per layer are computed again"),
    "zero:bounded": Choice("nowhere: 127 tokens altogether"),
    "ends": Choice("of prompts"),
    "ends+junctions": Choice("and where an earlier resume fell short"),
}
"""Where window and compressor state are kept, as ``mrc.strategies`` reads it."""

TIER_WINDOWS = STRATEGIES | {
    "sglang": Choice("at the last whole page of prompts, as SGLang's HiCache"),
    "vllm:dense": Choice("with every block, as vLLM's offloading without retention"),
    "vllm:TOKENS": Choice(
        "every so many tokens and at the last block before a prompt's last token; 0: only there"
    ),
    "lmcache:TOKENS": Choice("with every chunk of so many tokens, as LMCache"),
}
"""Where they are kept beyond the GPU's memory, as ``tiers.windows`` reads it."""

WRITE_POLICIES = {
    "write_through": Choice("at once"),
    "write_through_selective": Choice("when used a second time"),
    "write_back": Choice("when the tier above gives it up"),
}
"""When a tier is given what the one above it has."""

PREFETCH_POLICIES = {
    "best_effort": Choice("what has come so far"),
    "wait_complete": Choice("all, however long it takes"),
    "timeout": Choice("what has come after a second and 0.25 s for each 1,024 tokens"),
}
"""What a request waits for that is fetched from a lower tier."""

STORES = {
    "memory": Choice(
        "this process's memory: memory:64GiB, or memory:pinned:64GiB for GPUs",
        "tiers.store:open_memory",
    ),
    "file": Choice("a folder: file:FOLDER", "tiers.file_store:open_file"),
    "redis": Choice(
        "a Redis or Valkey server: redis:HOST:PORT, or redis:URL", "tiers.redis_store:open_redis"
    ),
}
"""Where objects are kept beyond the GPU's memory, as ``tiers.store`` reads it."""

ROUTERS = {
    "round_robin": Choice("in turn", "replay.fleet.routers:Router"),
    "random": Choice("any", "replay.fleet.routers:AtRandom"),
    "least_loaded": Choice("the fewest requests", "replay.fleet.routers:LeastLoaded"),
    "power_of_two": Choice(
        "the fewest requests of two at random", "replay.fleet.routers:PowerOfTwo"
    ),
    "prefix_hash": Choice(
        "SGLang's gateway: by a prompt's first tokens, unless that one is overloaded",
        "replay.fleet.routers:PrefixHash",
    ),
    "consistent_hashing": Choice(
        "by session; also the production stack's session", "replay.fleet.routers:ConsistentHashing"
    ),
    "cache_aware": Choice(
        "SGLang's gateway: the longest prefix by its own past, unless out of balance",
        "replay.fleet.routers:CacheAware",
    ),
    "cache_aware:library": Choice(
        "… with the library's defaults, not the command line's", "replay.fleet.routers:CacheAware"
    ),
    "dynamo": Choice(
        "dynamo's KV router: the least to compute and to decode", "replay.fleet.routers:Dynamo"
    ),
    "dynamo-agentic": Choice("… with --agentic", "replay.fleet.routers:Dynamo"),
    "dynamo-decode": Choice(
        "… for decode replicas: the least to decode", "replay.fleet.routers:DynamoDecode"
    ),
    "llm-d": Choice(
        "llm-d: prefix by its own past, unused blocks, short queue", "replay.fleet.routers:Llmd"
    ),
    "llm-d:precise": Choice("… prefix by events", "replay.fleet.routers:LlmdPrecise"),
    "production-stack:qps": Choice(
        "vLLM's: the fewest requests in the last minute", "replay.fleet.routers:LeastQps"
    ),
    "production-stack:kvaware": Choice(
        "… a replica with all of a prompt but 2,000 tokens, else by session",
        "replay.fleet.routers:KvAware",
    ),
    "production-stack:prefixaware": Choice(
        "… the longest prefix in a trie that forgets nothing", "replay.fleet.routers:PrefixAware"
    ),
}
"""Who chooses the replica of a request."""

TRACE_FORMATS = {
    "bailian": Choice("Bailian's JSON lines, ids of 16 tokens", "traces.formats:BAILIAN"),
    "mooncake": Choice("Mooncake's JSON lines, ids of 512", "traces.formats:MOONCAKE"),
    "mooncake-delta": Choice(
        "turns that say what is new in a session", "traces.formats:MOONCAKE_DELTA"
    ),
    "weka": Choice("a conversation, or a folder of them", "traces.weka:WEKA"),
    "azure": Choice("Azure's CSV, only lengths", "traces.formats:AZURE"),
    "burstgpt": Choice("BurstGPT's CSV, only lengths", "traces.formats:BURSTGPT"),
    "sharegpt": Choice("lengths of ShareGPT samples", "traces.formats:SHAREGPT"),
    "timed": Choice("JSON lines whose names are given", "traces.formats:TIMED"),
    "parquet": Choice("a row for every request", "traces.parquet:PARQUET"),
    "dsv4kv": Choice("the toolkit's own", "traces.formats:NATIVE"),
}
"""Formats that traces are read from. Where a line has marks of two, the first is taken."""

TRACE_LINES = {
    "dsv4kv": Choice("the toolkit's own format", "traces.formats:format_native"),
    "mooncake": Choice("ids of 512 tokens", "traces.formats:format_mooncake"),
    "mooncake-delta": Choice(
        "turns of a session say what is new; sessions are found by what prompts begin with",
        "traces.formats:format_mooncake_delta",
    ),
    "timed": Choice(
        "times in s; read it with --format timed --id-tokens N", "traces.formats:format_timed"
    ),
}
"""Formats that traces are written in, a line for every request."""

TRACE_FILES = {
    "weka": Choice(
        "a folder of conversations, found by what prompts begin with", "traces.weka:write_weka"
    ),
    "oracle": Choice(
        "libCacheSim's oracleGeneral, a record for every block reference, a prompt's blocks last "
        "to first",
        "traces.writer:write_oracle",
    ),
    "parquet": Choice(
        "columns of the toolkit's own format, in row groups", "traces.parquet:write_parquet"
    ),
}
"""Formats that traces are written in as a whole."""

CLOCKS = {
    "model": Choice(
        "few coefficients of the GPU, fitted on public points or calibrated",
        "replay.clock.sources:by_model",
    ),
    "table": Choice("steps that were measured", "replay.clock.sources:by_table"),
    "aiconfigurator": Choice(
        "those of aiconfigurator-core, if it is installed",
        "replay.clock.sources:by_aiconfigurator",
    ),
    "stated": Choice("overhead + bytes / bandwidth + arithmetic / rate, as given"),
}
"""Where the times of steps come from."""

BACKENDS = {
    "reference": Choice("plain PyTorch, what others are compared with", "ops.reference"),
    "cpu": Choice("the toolkit's own on the CPU", "ops.cpu"),
    "cuda": Choice("the toolkit's own kernels", "ops.cuda"),
}
"""The toolkit's own operations."""

PEERS = {
    "vllm": Choice("vLLM's kernels, where it is installed", "ops.peers:vllm"),
    "sglang": Choice("SGLang's kernels, where it is installed", "ops.peers:sglang"),
    "flashmla": Choice("FlashMLA's kernels, where it is installed", "ops.peers:flashmla"),
    "deepgemm": Choice("DeepGEMM's kernels, where it is installed", "ops.peers:deepgemm"),
    "flaggems": Choice("FlagGems' kernels, where it is installed", "ops.peers:flaggems"),
}
"""Packages whose operations take the place of ours."""

PROFILERS = {
    "nsys": Choice("Nsight Systems"),
    "ncu": Choice("Nsight Compute: counts bytes in DRAM"),
    "torch": Choice("torch.profiler (Kineto)"),
}

SIZED_STATES = {
    "fp32": Choice("float32"),
    "bf16": Choice("bfloat16"),
    "online": Choice("HCA as a running softmax in float32"),
}
"""Compressor states that ``budget`` sizes."""


def families(registry: Iterable[str]) -> list[str]:
    """The names without versions: ``vllm`` for ``vllm:0.33``."""
    return list(dict.fromkeys(name.partition(":")[0] for name in registry))


def listed(names: Iterable[str]) -> str:
    """The names with commas between."""
    return ", ".join(names)


def explained(registry: Mapping[str, Explained]) -> str:
    """The names, each with what it does: ``lru (the least recently used), …``."""
    return listed(f"{name} ({row.explains})" for name, row in registry.items())


def choose(registry: Mapping[str, RowT], name: str, what: str) -> RowT:
    """The row of a name.

    Args:
        registry: What there is.
        name: As given.
        what: Kind of thing with its article, for the sentence: ``an eviction policy``.

    Raises:
        ConfigError: There is no such name; the sentence lists those there are.
    """
    if name in registry:
        return registry[name]
    raise unknown(registry, name, what)


def unknown(registry: Mapping[str, object], name: str, what: str) -> ConfigError:
    """The sentence about a name that is not in a registry, with the nearest and all there are."""
    close = get_close_matches(name, registry, 1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return ConfigError(f"{name!r} is not {what}{guess}: choose one of {listed(registry)}.")
