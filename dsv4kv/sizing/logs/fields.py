"""What engines say of their cache's size, recognised by its fields, not by its wording."""

import re
from collections.abc import Iterator

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_PATTERNS = (
    # Available KV cache memory: 7.01 GiB
    re.compile(rf"(?i)available kv cache memory\W+(?P<available_gib>{_NUMBER})\s*GiB"),
    # GPU KV cache size: 63,859 tokens; "CPU", "XPU", "GPU + host"
    re.compile(rf"(?i)kv cache size\W+(?P<tokens>{_NUMBER}) tokens"),
    # Maximum concurrency for 33,792 tokens per request: 1.89x
    re.compile(
        rf"(?i)concurrency for (?P<context>{_NUMBER}) tokens[^:]*:\s*(?P<concurrency>{_NUMBER})x"
    ),
    # To serve at least one request with the model's max seq len (30000), (6.66 GiB …
    re.compile(
        rf"(?i)max(?:imum)? (?:seq|model)\w* len\w*\W+(?P<refused_context>{_NUMBER})\W+"
        rf"(?P<needed_gib>{_NUMBER}) GiB.*?needed.*?\((?P<checked_gib>{_NUMBER}) GiB\)"
    ),
    re.compile(rf"(?i)estimated maximum model length is (?P<fitting>{_NUMBER})"),
    re.compile(r"(?i)(?P<no_memory>no available memory for the cache blocks)"),
    # Overriding num_gpu_blocks=7239 with num_gpu_blocks_override=7000
    re.compile(r"num_gpu_blocks=(?P<profiled_blocks>\d+)"),
    re.compile(r"(?i)using (?P<indexer>FP8|MXFP4|FP4) indexer cache"),
)
_SGLANG = re.compile(r"\bbytes_per_full_token=")
_PAIR = re.compile(rf"\b(\w+_fixed|full_token|available_bytes|bytes_per_full_token)=({_NUMBER})")
_VERSIONS = (
    re.compile(r"(?i)\b(vllm|sglang)\b[^\n]{0,40}?\bversion\W+v?(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"(?i)\b(LLM engine) \(v(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"(?i)\b(vllm|sglang)[\w./-]*[:=@]+v?(\d+\.\d+\.\d+)"),
    re.compile(r"(\s)version (\d+\.\d+\.\d+)"),
)
_LIKELY = (  # what one of the patterns needs, looked for first: most lines of a log say nothing
    "kv cache memory",
    "kv cache size",
    "concurrency for",
    "gib kv",
    "maximum model length",
    "no available memory",
    "num_gpu_blocks=",
    "indexer cache",
    "bytes_per_full_token",
)


def find_fields(line: str) -> dict[str, str]:
    """Fields of one line, by name, as written; empty for a line that says nothing of the cache."""
    lowered = line.lower()
    if not any(part in lowered for part in _LIKELY):
        return {}
    if _SGLANG.search(line):
        return dict(_PAIR.findall(line))
    return {name: text for pattern in _PATTERNS for name, text in _named(pattern.search(line))}


def find_version(line: str) -> str | None:
    """The engine's version where the line names it."""
    if not any(part in line for part in ("ersion", "engine (", "vllm", "sglang")):
        return None
    found = (pattern.search(line) for pattern in _VERSIONS)
    return next((match[2] for match in found if match), None)


def _named(match: re.Match[str] | None) -> Iterator[tuple[str, str]]:
    if match:
        yield from ((name, text) for name, text in match.groupdict().items() if text)
