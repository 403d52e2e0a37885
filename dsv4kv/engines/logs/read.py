"""A start-up log, read: what every rank said of its cache, and the arguments they were given.

Arguments are echoed in any of their spellings: ``key=value``, ``'key': value``, ``--key value``
and ``--key=value``; dashes and underscores are the same.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import IO, cast

from dsv4kv.engines.flags import scaled
from dsv4kv.errors import ConfigError
from dsv4kv.files import DOCUMENT_BYTES, open_regular
from dsv4kv.model.presets import preset_names

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE_BYTES = 1 << 20  # an echoed configuration is long, but not that long
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RANK = re.compile(
    r"\((?P<process>[A-Za-z]\w*) pid=\d+\)"  # vLLM: (Worker_TP3 pid=123)
    r"|^\[?[\d\-: .,T]*\b(?P<ranks>(?:(?:DP|TP|PP|EP|ATTN_\w+?)\d+\s?)+)\]"  # SGLang: [… TP0]
)


def read_lines(path: Path) -> Iterator[str]:
    """Yield every line without colours and line ends.

    Plain or gzip-compressed; bytes that are no UTF-8 are replaced; the file is streamed. A line
    is cut after 1 MiB.

    Raises:
        ConfigError: A file that cannot be read, or has more than 256 MiB when unpacked.
    """
    left_bytes, is_rest = DOCUMENT_BYTES, False
    try:
        with open_regular(path) as plain:
            magic = plain.read(len(_GZIP_MAGIC))
            plain.seek(0)
            packed = magic == _GZIP_MAGIC
            file = cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if packed else plain
            while raw := file.readline(_LONGEST_LINE_BYTES):
                left_bytes -= len(raw)
                if left_bytes < 0:
                    raise ConfigError(
                        f"{path}: is larger than {DOCUMENT_BYTES >> 20} MiB: give the part of the "
                        "log with the start."
                    )
                was_rest, is_rest = is_rest, not raw.endswith(b"\n")
                if was_rest:
                    continue
                text = raw.decode("utf-8", errors="replace")
                if "\x1b" in text:
                    text = _ESCAPES.sub("", text)
                yield from text.replace("\r", "\n").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}): give a start-up log.") from None


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
    re.compile(r"(?i)using (?P<indexer>FP8|MXFP4|FP4) indexer cache"),
    # DSV4 pool PP slice: rank=1 layers=[30,61) local=31/62
    re.compile(r"PP slice: rank=(?P<stage>\d+) layers=\[(?P<first>\d+),(?P<end>\d+)\)"),
)
_MEMORY = (  # what it says of memory outside the cache, by what that is; SGLang's GB are GiB
    ("weights", re.compile(rf"Model loading took (?P<gib>{_NUMBER}) GiB")),
    ("weights", re.compile(rf"Load weight end\b.*?\bmem usage=(?P<gib>{_NUMBER}) GB")),
    ("CUDA graphs", re.compile(rf"Graph capturing finished in .*? took (?P<gib>{_NUMBER}) GiB")),
    ("CUDA graphs", re.compile(rf"Capture .*? end\b.*?\bmem usage=(?P<gib>{_NUMBER}) GB")),
    (
        "free before the weights",
        re.compile(rf"Load weight begin\b.*?avail mem=(?P<gib>{_NUMBER}) GB"),
    ),
    ("free beside the cache", re.compile(rf"Memory pool end\b.*?avail mem=(?P<gib>{_NUMBER}) GB")),
)
_SGLANG = re.compile(r"\bbytes_per_full_token=")
_PAIR = re.compile(rf"\b(\w+_fixed|full_token|available_bytes|bytes_per_full_token)=({_NUMBER})")
_VERSIONS = (
    re.compile(r"(?i)\b(vllm|sglang)\b[^\n]{0,40}?\bversion\W+v?(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"(?i)\b(LLM engine) \(v(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"(?i)\b(vllm|sglang)[\w./-]*[:=@]+v?(\d+\.\d+\.\d+)"),
    re.compile(r"(\s)version (\d+\.\d+\.\d+)"),
)
_LIKELY = re.compile(  # most lines say nothing of the cache
    r"(?i)kv cache|concurrency for|gib kv|maximum model length|no available memory"
    r"|indexer cache|bytes_per_full_token|pp slice"
)
_LONGEST, _LARGEST = 40, 10**15  # characters of a field; what no server prints more of


def find_fields(line: str) -> dict[str, str]:
    """Fields of one line, by name, as written; empty for a line that says nothing of the cache.

    A value longer or larger than any number of a log is dropped.
    """
    if not _LIKELY.search(line):
        return {}
    if _SGLANG.search(line):
        return {name: text for name, text in _PAIR.findall(line) if _is_likely(text)}
    found = (match.groupdict() for pattern in _PATTERNS if (match := pattern.search(line)))
    return {k: v for each in found if all(map(_is_likely, each.values())) for k, v in each.items()}


def _is_likely(text: str) -> bool:
    digits = text.partition(".")[0].replace(",", "")
    return len(text) <= _LONGEST and (not digits.isdecimal() or int(digits) <= _LARGEST)


def find_memory(line: str) -> tuple[str, float] | None:
    """The name and the GiB of memory outside the cache that a line reports."""
    if "mem" not in line and "took" not in line:
        return None
    found = ((what, pattern.search(line)) for what, pattern in _MEMORY)
    sizes = ((what, match["gib"]) for what, match in found if match)
    return next(((w, float(g.replace(",", ""))) for w, g in sizes if _is_likely(g)), None)


def find_version(line: str) -> str | None:
    """The engine's version where the line names it."""
    if not any(part in line for part in ("ersion", "engine (", "vllm", "sglang")):
        return None
    found = (pattern.search(line) for pattern in _VERSIONS)
    return next((match[2] for match in found if match), None)


_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("model", "model_path", "model_tag"),
    "tensor_parallel": ("tensor_parallel_size", "tp_size", "tp"),
    "data_parallel": ("data_parallel_size", "dp_size", "dp"),
    "pipeline_parallel": ("pipeline_parallel_size", "pp_size", "pp"),
    "context": ("max_model_len", "max_seq_len", "context_length", "context_len"),
    "batched": ("max_num_batched_tokens", "chunked_prefill_size"),
    "requests": ("max_num_seqs", "max_running_requests"),
    "memory_fraction": ("gpu_memory_utilization", "mem_fraction_static"),
    "block": ("block_size", "page_size"),
    "cache_dtype": ("kv_cache_dtype",),
    "async": ("async_scheduling",),
    "fp4_indexer": ("use_fp4_indexer_cache", "enable_deepseek_v4_fp4_indexer"),
    "window_ratio": ("swa_full_tokens_ratio",),
    "radix_off": ("disable_radix_cache",),
    "overlap_off": ("disable_overlap_schedule",),
    "own_windows": ("enable_encoder_swa_bounded_replay",),
    "method": ("method", "speculative_algorithm"),
    "draft_tokens": ("num_speculative_tokens", "speculative_num_draft_tokens"),
    "blocks": ("num_gpu_blocks_override",),
}
_MEANING = {name: key for key, names in _NAMES.items() for name in names}
_KEY = "|".join(name.replace("_", "[-_]") for name in sorted(_MEANING, key=len, reverse=True))
_VALUE = r"['\"]?(?P<{0}>[^\s,'\"{{}}()\[\];]+)"
_ARGUMENT = re.compile(
    rf"(?<![\w.-])(?:--)?['\"]?(?P<key>{_KEY})['\"]?\s*[=:]\s*{_VALUE.format('value')}"
    rf"|(?<![\w-])--(?P<flag>{_KEY})\s+(?!--){_VALUE.format('argument')}"
)
_LIKELY_ARGUMENTS = (  # every name has one of these; most lines of a log have none
    "--", "model", "size", "max", "context", "fraction", "utilization", "dtype", "async", "fp4",
    "tokens_ratio", "method", "specul", "override", "serve ", "rchitecture", "disable", "encoder",
)  # fmt: skip
_NAMED = (
    ("architecture", re.compile(r"rchitectures?\W{1,4}(\w+For\w+)")),
    ("model", re.compile(r"\bvllm serve\s+(?!-)(\S+)")),
    ("model", re.compile(r"\bmodel\s{2,}(\S+)\s*$")),  # of the banner
)
_NOTHING = {"none", "null", "-1"}


def find_arguments(line: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a line echoes: our name, and the value as written."""
    if not any(part in line for part in _LIKELY_ARGUMENTS):
        return
    for match in _ARGUMENT.finditer(line):
        name = (match["key"] or match["flag"]).replace("-", "_")
        value = (match["value"] or match["argument"]).rstrip(".")  # the end of a sentence
        if value.lower() not in _NOTHING:
            yield _MEANING[name], value
    for name, pattern in _NAMED:
        if found := pattern.search(line):
            yield name, found[1]


@dataclass(frozen=True)
class Reading:
    """What one rank said, numbers as written.

    Attributes:
        rank: As the line's prefix names it; empty without.
        one_line: vLLM printed tokens and concurrency in one line.
    """

    rank: str
    fields: dict[str, str]
    one_line: bool = False

    def number(self, name: str) -> float | None:
        """A field as a number; None where it is missing."""
        text = self.fields.get(name)
        return None if text is None else float(text.replace(",", ""))

    def whole(self, name: str) -> int | None:
        """A field as a whole number; None where it is missing."""
        text = self.fields.get(name)
        return None if text is None else int(float(text.replace(",", "")))

    @property
    def printed_tokens(self) -> int | None:
        """The number of tokens that the rank printed; None where it refused to start."""
        return self.whole("tokens") or self.whole("full_token")


@dataclass(frozen=True)
class StartupLog:
    """A log, read.

    Attributes:
        readings: One for every size that was logged, the smallest first.
        arguments: Every value an argument was given, in order.
        memory: GiB outside the cache by what they are: the most that any rank said, of free
            memory the least.
    """

    source: str
    family: str
    version: str | None
    readings: tuple[Reading, ...]
    arguments: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """An argument's last value; of the model, the first (drafts come later)."""
        values = self.arguments.get(name)
        return None if values is None else values[0 if name == "model" else -1]

    def is_on(self, name: str) -> bool:
        """Whether an argument's last value is true."""
        return (self.text(name) or "").lower() == "true"

    def number(self, name: str) -> float | None:
        """An argument's last value as a positive number; None where it is none."""
        try:
            number = float(self.text(name) or 0)
        except ValueError:
            return None
        return number if 0 < number < inf else None

    def whole(self, name: str) -> int | None:
        """An argument's last value as a whole number, as large as a server may have."""
        number = scaled(self.text(name) or "")
        return number if number is not None and 0 <= number <= _LARGEST else None


_REPLICA = re.compile(r"DP(\d+)")


def read_log(path: Path) -> StartupLog:
    """Read a start-up log; ``ConfigError`` for one that says nothing of a cache's size."""
    return parse_log(read_lines(path), source=str(path))


def parse_log(lines: Iterable[str], source: str) -> StartupLog:
    """Parse the lines of a log; raises ``ConfigError`` as ``read_log`` does."""
    arguments: dict[str, list[str]] = {}
    memory: dict[str, float] = {}
    said: list[Reading] = []
    version, count = None, 0
    for line in lines:
        count += 1
        for name, value in find_arguments(line):
            arguments.setdefault(name, []).append(value)
        version = version or find_version(line)
        if found := find_memory(line):
            what, gib = found
            tightest = min if what.startswith("free") else max
            memory[what] = tightest(gib, memory.get(what, gib))
        if fields := find_fields(line):
            prefix = _RANK.search(line[:200])  # Worker_TP3, DP0 TP1, or nothing
            rank = (prefix["process"] or prefix["ranks"]).strip() if prefix else ""
            said.append(Reading(rank, fields, "concurrency" in fields))
            if "indexer" in fields:
                arguments.setdefault("fp4_indexer", []).append(str("4" in fields["indexer"]))
    vllm = _vllm_readings(said)
    readings = sorted(vllm or _sglang_readings(said), key=lambda each: each.printed_tokens or 0)
    if not readings:
        raise ConfigError(
            f"{source}: no cache size in {count:,} lines: looked for vLLM's 'KV cache size: … "
            "tokens' with 'concurrency for … tokens per request', vLLM's refusal to start, or "
            "SGLang's 'bytes_per_full_token=…, full_token=…'. Give the log of the engine's start."
        )
    family = "vllm" if vllm else "sglang"
    return StartupLog(source, family, version, tuple(readings), arguments, memory)


def _sglang_readings(said: Iterable[Reading]) -> list[Reading]:
    """Sizes, each with the slice of layers that its rank printed before."""
    slices: dict[str, dict[str, str]] = {}
    found: list[Reading] = []
    for each in said:
        if "stage" in each.fields:
            slices[each.rank] = each.fields
        elif "full_token" in each.fields:
            reading = replace(each, fields=each.fields | slices.get(each.rank, {}))
            found += [reading] if reading not in found else []
    return found


def _vllm_readings(said: Iterable[Reading]) -> list[Reading]:
    """Sizes, each with the least memory that the ranks of its replica printed.

    The second of two lines belongs to the last size of its rank that has none yet.
    """
    sizes: list[Reading] = []
    available: list[Reading] = []
    for each in said:
        if {"tokens", "refused_context", "no_memory"} & set(each.fields):
            new = Reading(each.rank, dict(each.fields), each.one_line)
            sizes += [new] if new not in sizes else []
        elif "concurrency" in each.fields:
            own = (size for size in reversed(sizes) if size.rank == each.rank)
            for size in (size for size in own if "tokens" in size.fields):
                size.fields.update({**each.fields, **size.fields})
                break
        elif "available_gib" in each.fields:
            available.append(each)
    found: list[Reading] = []
    for size in sizes:
        near = (other for other in available if _same_replica(size.rank, other.rank))
        least = min((gib for other in near if (gib := other.number("available_gib"))), default=0)
        fields = ({"available_gib": str(least)} if least else {}) | size.fields
        reading = replace(size, fields=fields)
        found += [reading] if reading not in found else []
    return found


def _same_replica(one: str, other: str) -> bool:
    """Ranks of one data-parallel replica share its blocks; without a number all are one."""
    first, second = _REPLICA.search(one), _REPLICA.search(other)
    return first is None or second is None or first[1] == second[1]


# ---- models -------------------------------------------------------------------------------------

V41 = "v4.1-flash"
_OTHER_FAMILIES = re.compile(
    r"v4\.\d|v3|v2|\br1\b|qwen|llama|mi[sx]tral|gemma|glm|kimi|gpt|phi-|minimax|ernie|hunyuan"
)


def v4_presets() -> list[str]:
    """Presets that the engines' V4 rules describe."""
    return [name for name in preset_names() if re.fullmatch(r"v4-\w+", name)]


def preset_named(text: str) -> str | None:
    """The preset that a model's name or path means; None where it means none."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower())
    found = (p for p in preset_names() if re.search(rf"(^|[-a-z]){re.escape(p)}(-|$)", name))
    return next(found, None)


def named_model(log: StartupLog) -> str | None:
    """The preset that the log's model name means; None where it names none.

    Raises:
        ConfigError: A model with another cache.
    """
    reported = (log.text("model") or "").lower()
    preset, made = preset_named(reported), log.text("architecture")
    known = {**dict.fromkeys(v4_presets(), "V4"), V41: "V41"}
    generation = re.match(r"Deepseek(V4|V41)(?!\d)", made) if made else None
    if preset in known and (not made or (generation and generation[1] == known[preset])):
        return preset
    unlike = bool(made and (not generation or preset in known))
    if unlike or preset or _OTHER_FAMILIES.search(reported):
        another = made if unlike else reported
        raise ConfigError(
            f"{log.source}: not understood: the log is of {another!r}, whose cache the rules do "
            f"not describe; known: {', '.join(known)}. dsv4kv budget --model "
            "sizes other models without their logs."
        )
    return V41 if generation and generation[1] == "V41" else None


def draft_method(log: StartupLog) -> str | None:
    """The speculative method the log names."""
    method = log.text("method")
    return method.lower() if method else None
