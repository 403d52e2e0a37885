"""A start-up log, read: what every rank said of its cache, and the arguments they were given.

Arguments that an engine echoes at start, in any of their spellings. ``key=value``, ``'key':
value``, ``--key value`` and ``--key=value``; dashes and underscores are the same.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import IO, cast

from dsv4kv.errors import ConfigError
from dsv4kv.files import open_regular

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE_BYTES = 1 << 20  # an echoed configuration is long, but not that long
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RANK = re.compile(
    r"\((?P<process>[A-Za-z]\w*) pid=\d+\)"  # vLLM: (Worker_TP3 pid=123)
    r"|^\[?[\d\-: .,T]*\b(?P<ranks>(?:(?:DP|TP|PP|EP|ATTN_\w+?)\d+\s?)+)\]"  # SGLang: [… TP0]
)


def read_lines(path: Path) -> Iterator[str]:
    """Yield every line without colours and line ends.

    Plain or gzip-compressed; bytes that are no UTF-8 are replaced; the file is streamed.

    Raises:
        ConfigError: A file that cannot be read.
    """
    try:
        with ExitStack() as stack:
            file = _open(path, stack)
            while raw := file.readline(_LONGEST_LINE_BYTES):
                text = raw.decode("utf-8", errors="replace")
                if "\x1b" in text:
                    text = _ESCAPES.sub("", text)
                yield from text.replace("\r", "\n").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}): give a start-up log.") from None


def rank_of(line: str) -> str:
    """The process or ranks that a line's prefix names: ``Worker_TP3``, ``DP0 TP1``, or nothing."""
    match = _RANK.search(line[:200])
    return (match["process"] or match["ranks"]).strip() if match else ""


def _open(path: Path, stack: ExitStack) -> IO[bytes]:
    file = stack.enter_context(open_regular(path))
    magic = file.read(len(_GZIP_MAGIC))
    file.seek(0)
    if magic != _GZIP_MAGIC:
        return file
    return cast(IO[bytes], stack.enter_context(gzip.open(file)))


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
_LIKELY_FIELDS = (  # what one of the patterns needs, looked for first: most lines say nothing
    "kv cache memory",
    "kv cache size",
    "concurrency for",
    "gib kv",
    "maximum model length",
    "no available memory",
    "num_gpu_blocks=",
    "indexer cache",
    "bytes_per_full_token",
    "pp slice",
)


_LONGEST = 40  # characters of a field
_LARGEST = 10**15


def _is_likely(text: str) -> bool:
    """Whether a field is no number, or one that a log of a server may have."""
    digits = text.partition(".")[0].replace(",", "")
    return len(text) <= _LONGEST and (not digits.isdecimal() or int(digits) <= _LARGEST)


def find_fields(line: str) -> dict[str, str]:
    """Fields of one line, by name, as written; empty for a line that says nothing of the cache.

    What is longer than any number of a log is left out: it is none.
    """
    lowered = line.lower()
    if not any(part in lowered for part in _LIKELY_FIELDS):
        return {}
    if _SGLANG.search(line):
        return {name: text for name, text in _PAIR.findall(line) if _is_likely(text)}
    return {
        name: text
        for match in (pattern.search(line) for pattern in _PATTERNS)
        if match and all(map(_is_likely, match.groupdict().values()))
        for name, text in match.groupdict().items()
    }


def find_memory(line: str) -> tuple[str, float] | None:
    """What a line says of memory outside the cache, in GiB: what it is, and how much."""
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
_SERVE = re.compile(r"\bvllm serve\s+(?!-)(\S+)")
_ARCHITECTURE = re.compile(r"rchitectures?\W{1,4}(\w+For\w+)")
_BANNER_MODEL = re.compile(r"\bmodel\s{2,}(\S+)\s*$")
_NOTHING = {"none", "null", "-1"}
_SCALE = {"k": 1000, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def find_arguments(line: str) -> Iterator[tuple[str, str]]:
    """Yield what a line says of the arguments: our name, and the value as written."""
    if not any(part in line for part in _LIKELY_ARGUMENTS):
        return
    for match in _ARGUMENT.finditer(line):
        name = (match["key"] or match["flag"]).replace("-", "_")
        value = (match["value"] or match["argument"]).rstrip(".")  # the end of a sentence
        if value.lower() not in _NOTHING:
            yield _MEANING[name], value
    if made := _ARCHITECTURE.search(line):
        yield "architecture", made[1]
    for pattern in (_SERVE, _BANNER_MODEL):
        if model := pattern.search(line):
            yield "model", model[1]


def whole_number(text: str | None) -> int | None:
    """``8192``, ``8_192``, ``128k`` (thousands) or ``128K`` (binary), as vLLM takes them."""
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)([kmgKMG]?)", text or "")
    if match is None or len(match[0]) > _LONGEST:
        return None
    number = int(Fraction(match[1].replace("_", "")) * _SCALE.get(match[2], 1))
    return number if number <= _LARGEST else None


_VLLM_SIZE = {"tokens", "refused_context", "no_memory"}
_REPLICA = re.compile(r"DP(\d+)")
_LOOKED_FOR = (
    "vLLM's 'KV cache size: … tokens' with 'concurrency for … tokens per request', vLLM's "
    "refusal to start, or SGLang's 'bytes_per_full_token=…, full_token=…'"
)


@dataclass(frozen=True)
class Reading:
    """What one rank said, numbers as written.

    Attributes:
        rank: As the line's prefix names it; empty without.
        fields: By name.
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
        return None if text is None else int(Fraction(text.replace(",", "")))


@dataclass(frozen=True)
class StartupLog:
    """A log, read.

    Attributes:
        source: Where it came from, for messages.
        family: ``vllm`` or ``sglang``.
        version: As the log names it; None where it does not.
        readings: One for every size that was logged, the smallest first.
        arguments: Every value an argument was given, in order.
        memory: GiB outside the cache by what they are: the most that any rank said, of free
            memory the least.
    """

    source: str
    family: str
    version: str | None
    readings: tuple[Reading, ...]
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)
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
        """An argument's last value as a whole number."""
        return whole_number(self.text(name))


def read_log(path: Path) -> StartupLog:
    """Read a start-up log.

    Raises:
        ConfigError: A file that cannot be read, or that says nothing of a cache's size.
    """
    return parse_log(read_lines(path), source=str(path))


def parse_log(lines: Iterable[str], source: str) -> StartupLog:
    """Parse the lines of a log; raises ``ConfigError`` as ``read_log`` does."""
    collected = _Collected()
    for line in lines:
        collected.add(line)
    readings = collected.vllm_readings() or collected.sglang
    if not readings:
        raise ConfigError(
            f"{source}: no cache size in {collected.lines:,} lines: looked for {_LOOKED_FOR}. "
            "Give the log of the engine's start."
        )
    smallest = sorted(readings, key=lambda reading: reading.whole("tokens")
                      or reading.whole("full_token") or 0)  # fmt: skip
    return StartupLog(
        source=source,
        family="vllm" if collected.sizes else "sglang",
        version=collected.version,
        readings=tuple(smallest),
        arguments={name: tuple(values) for name, values in collected.arguments.items()},
        memory=collected.memory,
    )


@dataclass
class _Collected:
    """What has been read so far."""

    lines: int = 0
    version: str | None = None
    sizes: list[Reading] = field(default_factory=list)
    sglang: list[Reading] = field(default_factory=list)
    available: list[Reading] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    slices: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        self.lines += 1
        for name, value in find_arguments(line):
            self.arguments.setdefault(name, []).append(value)
        self.version = self.version or find_version(line)
        if found := find_memory(line):
            what, gib = found
            tightest = min if what.startswith("free") else max
            self.memory[what] = tightest(gib, self.memory.get(what, gib))
        if fields := find_fields(line):
            self._add_fields(rank_of(line), fields)

    def _add_fields(self, rank: str, fields: dict[str, str]) -> None:
        if "indexer" in fields:
            fp4 = str("4" in fields["indexer"])
            self.arguments.setdefault("fp4_indexer", []).append(fp4)
        if "stage" in fields:
            self.slices[rank] = fields
        elif "full_token" in fields:
            _append_new(self.sglang, Reading(rank, fields | self.slices.get(rank, {})))
        elif _VLLM_SIZE & set(fields):
            _append_new(self.sizes, Reading(rank, fields, "concurrency" in fields))
        elif "concurrency" in fields:
            self._complete(rank, fields)
        elif {"available_gib", "profiled_blocks"} & set(fields):
            self.available.append(Reading(rank, fields))

    def _complete(self, rank: str, fields: dict[str, str]) -> None:
        """The second of two lines belongs to the last size of its rank that has none yet."""
        for reading in reversed(self.sizes):
            if reading.rank == rank and "tokens" in reading.fields:
                reading.fields.setdefault("context", fields["context"])
                reading.fields.setdefault("concurrency", fields["concurrency"])
                return

    def vllm_readings(self) -> list[Reading]:
        """Sizes, each with the least memory that the ranks of its replica printed."""
        readings: list[Reading] = []
        for size in self.sizes:
            fields = dict(size.fields)
            near = [other for other in self.available if _same_replica(size.rank, other.rank)]
            memory = [other.number("available_gib") for other in near]
            least = min((gib for gib in memory if gib is not None), default=None)
            if least is not None:
                fields.setdefault("available_gib", str(least))
            _append_new(readings, Reading(size.rank, fields, size.one_line))
        return readings


def _append_new(readings: list[Reading], reading: Reading) -> None:
    """Several ranks and lines may say the same: repeats are dropped."""
    if reading not in readings:
        readings.append(reading)


def _same_replica(one: str, other: str) -> bool:
    """Ranks of one data-parallel replica share its blocks; without a number all are one."""
    first, second = _REPLICA.search(one), _REPLICA.search(other)
    return first is None or second is None or first[1] == second[1]
