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
class Implementation:
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
    "lru": Implementation("the least recently used", "prefix.policies.scored:LRU"),
    "fifo": Implementation("the one stored first", "prefix.policies.scored:FIFO"),
    "lfu": Implementation("the one used least often", "prefix.policies.scored:LFU"),
    "lfu-aged": Implementation(
        "the one used least often, old uses fading", "prefix.policies.scored:AgedLFU"
    ),
    "gdsf": Implementation(
        "the least uses for its size, aged by what was evicted", "prefix.policies.scored:GDSF"
    ),
    "sieve": Implementation(
        "the next one not used since a hand passed it", "prefix.policies.sieve:SIEVE"
    ),
    "s3fifo": Implementation(
        "what a small queue saw used less than twice, then the main queue's oldest",
        "prefix.policies.s3fifo:S3FIFO",
    ),
    "arc": Implementation(
        "by recency or frequency, whichever lost less lately", "prefix.policies.arc:ARC"
    ),
}
"""What is evicted first; children always before their parents."""

OFFLINE = "belady"
OFFLINE_POLICIES = {
    OFFLINE: Implementation(
        "the one needed last, a bound that knows the trace", "prefix.policies.belady:Belady"
    )
}

INDEXES = {
    "radix": Implementation("to 128 tokens", "prefix.radix:RadixIndex"),
    "block_hash": Implementation("in whole blocks", "prefix.block_hash:BlockHashIndex"),
}
"""How prefixes are found."""

SYSTEMS = {
    "pools": Implementation("pools of blocks for every layer", "bench.systems.pools:run_pools"),
    "slots": Implementation("a row of KV for every request", "bench.systems.slots:run_slots"),
    "blocks": Implementation("blocks with several holders", "bench.systems.blocks:run_blocks"),
}
"""Ways to keep a cache that ``bench systems`` runs side by side."""

TRANSPORTS = {
    "shm": Implementation("shared memory, on one machine"),
    "tcp": Implementation("a socket, on one machine or between two"),
    "nixl": Implementation("NIXL, where it is installed on both sides"),
    "mooncake": Implementation("Mooncake's transfer engine, where it is installed on both sides"),
}
"""How ``bench transfer`` gets bytes from a prefill cache to a decode cache."""

PREPARE = {"host": Implementation("which copies them"), "device": Implementation("by kernels")}
"""Who works out a step's blocks for a GPU."""

STRATEGIES = {
    "full": Implementation("with every block"),
    "periodic:TOKENS": Implementation("every so many tokens"),
    "zero": Implementation("nowhere: 128 tokens per layer are computed again"),
    "zero:bounded": Implementation("nowhere: 127 tokens altogether"),
    "ends": Implementation("of prompts"),
    "ends+junctions": Implementation("and where an earlier resume fell short"),
}
"""Where window and compressor state are kept, as ``mrc.strategies`` reads it."""

TIER_WINDOWS = STRATEGIES | {
    "sglang": Implementation("at the last whole page of prompts, as SGLang's HiCache"),
    "vllm:dense": Implementation("with every block, as vLLM's offloading without retention"),
    "vllm:TOKENS": Implementation(
        "every so many tokens and at the last block before a prompt's last token; 0: only there"
    ),
    "lmcache:TOKENS": Implementation("with every chunk of so many tokens, as LMCache"),
}
"""Where they are kept beyond the GPU's memory, as ``tiers.windows`` reads it."""

WRITE_POLICIES = {
    "write_through": Implementation("at once"),
    "write_through_selective": Implementation("when used a second time"),
    "write_back": Implementation("when the tier above gives it up"),
}
"""When a tier is given what the one above it has."""

PREFETCH_POLICIES = {
    "best_effort": Implementation("what has come so far"),
    "wait_complete": Implementation("all, however long it takes"),
    "timeout": Implementation("what has come after a second and 0.25 s for each 1,024 tokens"),
}
"""What a request waits for that is fetched from a lower tier."""

STORES = {
    "memory": Implementation(
        "this process's memory: memory:64GiB, or memory:pinned:64GiB for GPUs",
        "tiers.store:open_memory",
    ),
    "file": Implementation("a folder: file:FOLDER", "tiers.file_store:open_file"),
    "redis": Implementation(
        "a Redis or Valkey server: redis:HOST:PORT, or redis:URL", "tiers.redis_store:open_redis"
    ),
}
"""Where objects are kept beyond the GPU's memory, as ``tiers.stores.place`` reads it."""

ROUTERS = {
    "round_robin": Implementation("in turn", "fleet.routers:RoundRobin"),
    "random": Implementation("any", "fleet.routers:AtRandom"),
    "least_loaded": Implementation("the fewest requests", "fleet.routers:LeastLoaded"),
    "power_of_two": Implementation(
        "the fewest requests of two at random", "fleet.routers:PowerOfTwo"
    ),
    "prefix_hash": Implementation(
        "SGLang's gateway: by a prompt's first tokens, unless that one is overloaded",
        "fleet.routers:PrefixHash",
    ),
    "consistent_hashing": Implementation(
        "by session; also the production stack's session", "fleet.routers:ConsistentHashing"
    ),
    "cache_aware": Implementation(
        "SGLang's gateway: the longest prefix by its own past, unless out of balance",
        "fleet.routers:CacheAware",
    ),
    "cache_aware:library": Implementation(
        "… with the library's defaults, not the command line's", "fleet.routers:CacheAwareLibrary"
    ),
    "dynamo": Implementation(
        "dynamo's KV router: the least to compute and to decode", "fleet.routers:Dynamo"
    ),
    "dynamo-agentic": Implementation("… with --agentic", "fleet.routers:DynamoAgentic"),
    "dynamo-decode": Implementation(
        "… for decode replicas: the least to decode", "fleet.routers:DynamoDecode"
    ),
    "llm-d": Implementation(
        "llm-d: prefix by its own past, unused blocks, short queue", "fleet.routers:Llmd"
    ),
    "llm-d:precise": Implementation("… prefix by events", "fleet.routers:LlmdPrecise"),
    "production-stack:qps": Implementation(
        "vLLM's: the fewest requests in the last minute", "fleet.routers:LeastQps"
    ),
    "production-stack:kvaware": Implementation(
        "… a replica with all of a prompt but 2,000 tokens, else by session",
        "fleet.routers:KvAware",
    ),
    "production-stack:prefixaware": Implementation(
        "… the longest prefix in a trie that forgets nothing", "fleet.routers:PrefixAware"
    ),
}
"""Who chooses the replica of a request."""

TRACE_FORMATS = {
    "bailian": Implementation("Bailian's JSON lines, ids of 16 tokens", "traces.bailian:BAILIAN"),
    "mooncake": Implementation("Mooncake's JSON lines, ids of 512", "traces.mooncake:MOONCAKE"),
    "mooncake-delta": Implementation(
        "turns that say what is new in a session", "traces.mooncake:MOONCAKE_DELTA"
    ),
    "weka": Implementation("a conversation, or a folder of them", "traces.weka:WEKA"),
    "azure": Implementation("Azure's CSV, only lengths", "traces.lengths:AZURE"),
    "burstgpt": Implementation("BurstGPT's CSV, only lengths", "traces.lengths:BURSTGPT"),
    "sharegpt": Implementation("lengths of ShareGPT samples", "traces.lengths:SHAREGPT"),
    "timed": Implementation("JSON lines whose names are given", "traces.timed:TIMED"),
    "parquet": Implementation("a row for every request", "traces.parquet:PARQUET"),
    "dsv4kv": Implementation("the toolkit's own", "traces.native:NATIVE"),
}
"""Formats that traces are read from. Where a line has marks of two, the first is taken."""

TRACE_LINES = {
    "dsv4kv": Implementation("the toolkit's own format", "traces.native:format_native"),
    "mooncake": Implementation("ids of 512 tokens", "traces.mooncake:format_mooncake"),
    "mooncake-delta": Implementation(
        "turns of a session say what is new; sessions are found by what prompts begin with",
        "traces.mooncake:format_mooncake_delta",
    ),
    "timed": Implementation(
        "times in s; read it with --format timed --id-tokens N", "traces.timed:format_timed"
    ),
}
"""Formats that traces are written in, a line for every request."""

TRACE_FILES = {
    "weka": Implementation(
        "a folder of conversations, found by what prompts begin with", "traces.weka:write_weka"
    ),
    "oracle": Implementation(
        "libCacheSim's oracleGeneral, a record for every block reference, a prompt's blocks last "
        "to first",
        "traces.writer:write_oracle",
    ),
    "parquet": Implementation(
        "columns of the toolkit's own format, in row groups", "traces.parquet:write_parquet"
    ),
}
"""Formats that traces are written in as a whole."""

CLOCKS = {
    "model": Implementation(
        "few coefficients of the GPU, fitted on public points or calibrated",
        "clock.sources:by_model",
    ),
    "table": Implementation("steps that were measured", "clock.sources:by_table"),
    "aiconfigurator": Implementation(
        "those of aiconfigurator-core, if it is installed", "clock.sources:by_aiconfigurator"
    ),
    "stated": Implementation("overhead + bytes / bandwidth + arithmetic / rate, as given"),
}
"""Where the times of steps come from."""

BACKENDS = {
    "reference": Implementation("plain PyTorch, what others are compared with", "ops.reference"),
    "cpu": Implementation("the toolkit's own on the CPU", "ops.cpu"),
    "cuda": Implementation("the toolkit's own kernels", "ops.cuda"),
}
"""The toolkit's own operations."""

PEERS = {
    "vllm": Implementation("vLLM's kernels, where it is installed", "ops.peers:vllm"),
    "sglang": Implementation("SGLang's kernels, where it is installed", "ops.peers:sglang"),
    "flashmla": Implementation("FlashMLA's kernels, where it is installed", "ops.peers:flashmla"),
    "deepgemm": Implementation("DeepGEMM's kernels, where it is installed", "ops.peers:deepgemm"),
    "flaggems": Implementation("FlagGems' kernels, where it is installed", "ops.peers:flaggems"),
}
"""Packages whose operations take the place of ours."""

PROFILERS = {
    "nsys": Implementation("Nsight Systems"),
    "ncu": Implementation("Nsight Compute: counts bytes in DRAM"),
    "torch": Implementation("torch.profiler (Kineto)"),
}

SIZED_STATES = {
    "fp32": Implementation("float32"),
    "bf16": Implementation("bfloat16"),
    "online": Implementation("HCA as a running softmax in float32"),
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
