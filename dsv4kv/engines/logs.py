"""A start-up log, read: what every rank said of its cache, and the arguments they were given.

Arguments are echoed in any of their spellings: ``key=value``, ``'key': value``, ``--key value``
and ``--key=value``; dashes and underscores are the same.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from dsv4kv.engines.flags import scaled
from dsv4kv.errors import ConfigError
from dsv4kv.files import DOCUMENT_BYTES, open_regular, standard_input, unpack
from dsv4kv.model.presets import config_file, preset_named, preset_names

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_LONGEST_LINE = 1 << 20  # an echoed configuration is long, but not that long
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RANK = re.compile(
    r"\((?P<process>[A-Za-z]\w*) pid=\d+\)"  # vLLM: (Worker_TP3 pid=123)
    r"|\[[\d\-: .,T]*\b(?P<ranks>(?:(?:DP|TP|PP|EP|ATTN_[A-Za-z_]+)\d+\s?)+)\]"  # SGLang: [… TP0]
)


def read_lines(path: Path) -> Iterator[str]:
    """Yield every line without colours and line ends; of ``-``, standard input.

    Plain or gzip-compressed, in UTF-8 or UTF-16; other bytes are replaced; the file is streamed. A
    line is cut after 1 MiB. Raises ``ConfigError``, for more than 256 MiB unpacked, too.
    """
    left, is_rest = DOCUMENT_BYTES, False
    try:
        plain = standard_input() if str(path) == "-" else open_regular(path, pipes=True)
        with plain as file:
            unpacked = unpack(file)
            encoding = "utf-16" if unpacked.peek(2)[:2] in _UTF16_MARKS else "utf-8-sig"
            text = io.TextIOWrapper(unpacked, encoding, errors="replace", newline="")
            while line := text.readline(_LONGEST_LINE):
                left -= len(line)
                if left < 0:
                    raise ConfigError(
                        f"{path}: is larger than {DOCUMENT_BYTES >> 20} MiB: give the part of the "
                        "log with the start."
                    )
                was_rest, is_rest = is_rest, not line.endswith(("\n", "\r"))
                if not was_rest:
                    plain_line = _ESCAPES.sub("", line) if "\x1b" in line else line
                    yield from plain_line.replace("\r", "\n").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}): give a start-up log.") from None


_NUMBER = r"\d++(?:,\d{3})*+(?:\.\d+)?"  # possessive: a second number takes none of its digits
_PATTERNS = [re.compile(pattern) for pattern in (
    # Available KV cache memory: 7.01 GiB
    rf"(?i)available kv cache memory\W+(?P<available_gib>{_NUMBER})\s*GiB",
    # GPU KV cache size: 63,859 tokens; "CPU", "XPU", "GPU + host"
    rf"(?i)kv cache size\W+(?P<tokens>{_NUMBER}) tokens",
    # Maximum concurrency for 33,792 tokens per request: 1.89x
    (rf"(?i)concurrency for (?P<context>{_NUMBER}) tokens[^:]{{0,80}}:"
    rf"\s*(?P<concurrency>{_NUMBER})x"),
    # To serve at least one request with the model's max seq len (30000), (6.66 GiB …
    (rf"(?i)max(?:imum)? (?:seq|model)\w* len\w*\W+(?P<refused_context>{_NUMBER})\W+"
    rf"(?P<needed_gib>{_NUMBER}) GiB(?>.{{0,200}}?needed)"
    rf".{{0,200}}?\((?P<checked_gib>{_NUMBER}) GiB\)"),
    rf"(?i)estimated maximum model length is (?P<fitting>{_NUMBER})",
    r"(?i)(?P<no_memory>no available memory for the cache blocks)",
    r"(?i)using (?P<indexer>FP8|MXFP4|FP4) indexer cache",
    # DSV4 pool PP slice: rank=1 layers=[30,61) local=31/62
    r"PP slice: rank=(?P<stage>\d+) layers=\[(?P<first>\d+),(?P<end>\d+)\)",
    # DSV4 pool sizes: full=32768, swa=3200, c4=8192; the last line of a rank is what runs
    r"(?i)DSV4 pool sizes: full=(?P<full>\d+)(?:, swa=(?P<swa>\d+))?",
    # max_total_num_tokens=32768, …, max_running_requests=1, context_len=32768
    r"\bmax_total_num_tokens=(?P<total>\d+)(?:.*?max_running_requests=(?P<running>\d+))?",
    # KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1048576, KV size: 45.67 GB
    (r"KV Cache is allocated\b.{0,200}?(?:dtype: torch\.(?P<kv_dtype>\w+?)(?:fn)?, )?"
    rf"#tokens: (?P<total>\d+)(?:, KV size: (?P<kv_gib>{_NUMBER}) GB)?"),
    # llama.cpp: initializing, n_slots = 4, n_ctx_slot = 32768, kv_unified = 'true'; at -lv 4 more
    (r"n_slots = (?P<slots>\d+), n_ctx_slot = (?P<slot_context>\d+)"
    r"(?:, kv_unified = '(?P<unified>\w+)')?"),
    r"\bn_ubatch\s*= (?P<ubatch>\d+)",
    r", +[1-9]\d* layers, .{0,80}?\bK \((?P<kv_type>\w+)\):.{0,80}?\bV \(\w+\): +0\.00",
    r"\brs_seq = (?P<taken_back>\d+)",
    rf"\b(?:KV|state) buffer size =\s*(?P<buffer_mib>{_NUMBER}) MiB",
    # ds4: context buffers 751.71 MiB (ctx=32768, backend=…, prefill_chunk=2048, …)
    (rf"context buffers (?P<session_mib>{_NUMBER}) MiB \(ctx=(?P<slot_context>\d+)"
    r"(?:.*?prefill_chunk=(?P<ubatch>\d+))?"),
)]  # fmt: skip
_MEMORY = [(what, re.compile(pattern.replace("GIB", f"(?P<gib>{_NUMBER})"))) for what, pattern in (
    ("weights", r"Model loading took GIB GiB"),
    ("weights", r"Load weight end\b.{0,300}?\bmem usage=GIB GB"),
    ("CUDA graphs", r"Graph capturing finished in .{0,80}? took GIB GiB"),
    ("CUDA graphs", r"Capture (?>.{0,80}? end\b).{0,300}?\bmem usage=GIB GB"),
    ("free before the weights", r"Load weight begin\b.{0,300}?avail mem=GIB GB"),
    ("free next to the cache", r"Memory pool end\b.{0,300}?avail mem=GIB GB"),
)]  # fmt: skip
"""Memory outside the cache by its use; SGLang's GB are GiB."""
_SGLANG = re.compile(r"\bbytes_per_full_token=")
_PAIR = re.compile(rf"\b(\w+_fixed|full_token|available_bytes|bytes_per_full_token)=({_NUMBER})")
_VERSIONS = [re.compile(pattern) for pattern in (
    r"(?i)\b(?:vllm|sglang)\b[^\n]{0,40}?\bversion\W+v?(\d+\.\d+(?:\.\d+)?)",
    r"(?i)\bLLM engine \(v(\d+\.\d+(?:\.\d+)?)",
    r"(?i)\b(?:vllm|sglang)[\w./-]{0,80}[:=@]+v?(\d+\.\d+\.\d+)",
    r"\sversion (\d+\.\d+\.\d+)",
)]  # fmt: skip
_LIKELY = re.compile(  # most lines say nothing of the cache
    r"(?i)kv cache|concurrency for|gib kv|maximum model length|no available memory"
    r"|indexer cache|bytes_per_full_token|pp slice|pool sizes|max_total_num_tokens"
    r"|n_slots =|n_ubatch|rs_seq =|buffer size =|\bK \(|context buffers"
)
_MOST_READINGS = 4096  # lines that say sizes: a start of hundreds of ranks prints fewer
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
    said = ({k: v for k, v in each.items() if v is not None} for each in found)
    return {k: v for each in said if all(map(_is_likely, each.values())) for k, v in each.items()}


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
    return next((match[1] for match in found if match), None)


NAMES: dict[str, tuple[str, ...]] = {
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
    "role": ("disaggregation_mode",),
    "dp_attention": ("enable_dp_attention",),
    "overlap_off": ("disable_overlap_schedule",),
    "own_windows": ("enable_encoder_swa_bounded_replay",),
    "method": ("method", "speculative_algorithm"),
    "draft_tokens": ("num_speculative_tokens", "speculative_num_draft_tokens"),
    "blocks": ("num_gpu_blocks_override",),
    "kv_memory": ("kv_cache_memory_bytes",),
    "chunked": ("enable_chunked_prefill",),
    "experts": ("kt_weight_path", "kt_method"),
}
"""Spellings of arguments in logs, by our name."""
_MEANING = {name: key for key, names in NAMES.items() for name in names}
_KEY = "|".join(name.replace("_", "[-_]") for name in sorted(_MEANING, key=len, reverse=True))
_VALUE = r"['\"]?(?P<{0}>[^\s,'\"{{}}()\[\];]+)"
_ARGUMENT = re.compile(
    rf"(?<![\w.-])(?:--)?['\"]?(?P<key>{_KEY})['\"]?\s*[=:]\s*{_VALUE.format('value')}"
    rf"|(?<![\w-])--(?P<flag>{_KEY})\s+(?!--){_VALUE.format('argument')}"
)
_LIKELY_ARGUMENTS = (  # every name has one of these; most lines of a log have none
    "--", "model", "size", "max", "context", "fraction", "utilization", "dtype", "async", "fp4",
    "tokens_ratio", "method", "specul", "override", "serve ", "rchitecture", "disable", "encoder",
    "PARTITION", "kt_", "disagg", "enable_dp", "enable_expert", ".gguf", "general.name", "ascend",
    "memory_bytes", "chunked",
)  # fmt: skip
_NAMED = [(name, re.compile(pattern)) for name, pattern in (
    ("partition", r"(?:VLLM|SGLANG)_PP_LAYER_PARTITION\W+(\d+(?:,\d+)+)"),
    ("architecture", r"rchitectures?\W{1,4}(\w+For\w+)"),
    ("served", r"served[-_]model[-_]name\W+([\w./-]+)"),
    ("arch", r"(?:vllm[_-]|plugin )(ascend)\b"),
    ("model", r"\bvllm serve\s+(?!-)(\S+)"),
    ("model", r"(?<![^\s'\"])([^\s'\"]+\.gguf)\b"),
    ("model", r"\bgeneral\.name\s+str\s*=\s*(\S.*)"),
    ("model", r"\bmodel\s{2,}(\S+)\s*$"),  # of the banner
)]  # fmt: skip
_NOTHING = {"none", "null", "-1"}


def find_arguments(line: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a line echoes: our name, and the value as written."""
    if not any(part in line for part in _LIKELY_ARGUMENTS):
        return
    said = "max_total_num_tokens=" in line  # a rank's own limit, not the server's
    for match in _ARGUMENT.finditer(line):
        name = (match["key"] or match["flag"]).replace("-", "_")
        value = (match["value"] or match["argument"]).rstrip(".")  # the end of a sentence
        if value.lower() not in _NOTHING and not (said and _MEANING[name] == "requests"):
            yield _MEANING[name], value
    for name, pattern in _NAMED:
        if found := pattern.search(line):
            yield name, found[1]


@dataclass(frozen=True)
class Reading:
    """What one rank said, numbers as written."""

    rank: str  # as the line's prefix names it; empty without
    fields: dict[str, str]
    one_line: bool = False  # vLLM printed tokens and concurrency in one line
    stages: Mapping[int, float] = field(default_factory=dict)  # least GiB by pipeline stage

    def number(self, name: str) -> float | None:
        text = self.fields.get(name)
        return None if text is None else float(text.replace(",", ""))

    def whole(self, name: str) -> int | None:
        text = self.fields.get(name)
        return None if text is None else int(float(text.replace(",", "")))

    @property
    def printed_tokens(self) -> int | None:
        """The tokens that run, as the rank printed them; None where it refused to start."""
        names = ("tokens", "total", "full", "full_token")
        return next((count for name in names if (count := self.whole(name))), None)

    @property
    def refused(self) -> bool:
        return "refused_context" in self.fields or "no_memory" in self.fields


@dataclass(frozen=True)
class StartupLog:
    """A log, read."""

    source: str
    family: str
    version: str | None
    readings: tuple[Reading, ...]  # one for every size that was logged, the smallest first
    arguments: dict[str, list[str]] = field(default_factory=dict)  # all values, in order
    # GiB outside the cache by use: the largest of all ranks, of free memory the least
    memory: dict[str, float] = field(default_factory=dict)
    given_file: str = ""  # the config.json of its model, as given
    restarts: int = 0  # starts before this one, which the log has too

    @property
    def smallest(self) -> Reading:
        """The size that is explained."""
        return self.readings[0]

    def text(self, name: str) -> str | None:
        """An argument's last value; of the model, the first (drafts come later)."""
        values = self.arguments.get(name)
        return None if values is None else values[0 if name == "model" else -1]

    def is_on(self, name: str) -> bool:
        return (self.text(name) or "").lower() == "true"

    @property
    def sharers(self) -> int:
        """Data-parallel ranks of one server, which share its limits in SGLang."""
        apart = (self.text("dp_attention") or "").lower() == "false"
        return 1 if apart else self.whole("data_parallel") or 1

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


_REPLICA, _STAGE = re.compile(r"DP(\d+)"), re.compile(r"PP(\d+)")


def read_log(path: Path) -> StartupLog:
    """Read a start-up log; ``ConfigError`` for one that says nothing of a cache's size."""
    return parse_log(read_lines(path), source=str(path))


def parse_log(lines: Iterable[str], source: str) -> StartupLog:
    log, lacking = scan_log(lines, source)
    if lacking:
        raise ConfigError(f"{source}: {lacking}")
    return log


def scan_log(lines: Iterable[str], source: str) -> tuple[StartupLog, str]:
    """A log, and why it has no sizes: then it is of no family, but may have a version."""
    starts, count, sizes, servers = [_Start()], 0, 0, False
    for line in lines:
        count += 1
        begins = any(mark in line for mark in _BEGINNINGS)
        servers = servers or begins
        if starts[-1].ranks and (begins or (not servers and _ENGINE_BEGINS in line)):
            starts.append(_Start(begins))
        start = starts[-1]
        for name, value in find_arguments(line):
            start.arguments.setdefault(name, []).append(value)
        start.version = start.version or find_version(line)
        if found := find_memory(line):
            start.note_memory(*found)
        if sizes <= _MOST_READINGS and (fields := find_fields(line)):
            sizes += 1
            prefix = _RANK.search(line[:200])  # Worker_TP3, DP0 TP1, or nothing
            rank = (prefix["process"] or prefix["ranks"]).strip() if prefix else ""
            start.said.append(Reading(rank, fields, "concurrency" in fields))
            if not _RANK_SIZES.isdisjoint(fields):
                start.ranks.add(rank)
            if dtype := (fields.get("kv_dtype") or "").replace("float8", "fp8"):
                start.arguments.setdefault("cache_dtype", [dtype])
            if "indexer" in fields:
                start.arguments.setdefault("fp4_indexer", []).append(str("4" in fields["indexer"]))
    last, restarts = _last_start(starts)
    family, readings, lacking = _sized(last.said, count, sizes)
    if family == "sglang" and "experts" in last.arguments:
        family = "ktransformers"
    log = StartupLog(source, family, last.version, readings, last.arguments, last.memory)
    return replace(log, restarts=restarts), lacking


_BEGINNINGS = (
    *("API server version", "█     █", "non-default args"),
    *("ServerArgs(", "load_model: loading model"),
)
"""What vLLM, SGLang and llama.cpp print first."""
_ENGINE_BEGINS = "Initializing a V1 LLM engine"
"""Of each engine of vLLM, one a data-parallel rank: a start where no server printed anything."""
_REFUSALS = {"refused_context", "no_memory"}
_RANK_SIZES = _REFUSALS | {
    *("tokens", "full_token", "full", "total"),
    *("slots", "session_mib"),
}


@dataclass
class _Start:
    """What a log says from one beginning to the next."""

    of_server: bool = False  # not of one of its engines
    arguments: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    said: list[Reading] = field(default_factory=list)
    ranks: set[str] = field(default_factory=set)  # that said a size
    version: str | None = None

    @property
    def refused(self) -> bool:
        return any(not _REFUSALS.isdisjoint(each.fields) for each in self.said)

    def note_memory(self, what: str, gib: float) -> None:
        tightest = min if what.startswith("free") else max
        self.memory[what] = tightest(gib, self.memory.get(what, gib))

    def add(self, other: "_Start") -> None:
        for name, values in other.arguments.items():
            self.arguments.setdefault(name, []).extend(values)
        for what, gib in other.memory.items():
            self.note_memory(what, gib)
        self.said += other.said
        self.ranks |= other.ranks
        self.version = self.version or other.version


def _last_start(starts: Sequence[_Start]) -> tuple[_Start, int]:
    """The last start with sizes, and the number of those before it.

    Starts whose ranks are others are of one server: the log has its nodes one after the other,
    unless the one before was refused.
    """
    sized = [each for each in starts if each.ranks] or starts
    kept, ranks = list[_Start](), set[str]()
    for each in reversed(sized):
        if kept and (each.ranks & ranks or (kept[0].of_server and each.refused)):
            break
        kept.insert(0, each)
        ranks |= each.ranks
    whole = _Start()
    for each in kept:
        whole.add(each)
    return whole, len(sized) - len(kept)


def _sized(said: list[Reading], lines: int, sizes: int) -> tuple[str, tuple[Reading, ...], str]:
    """Whose sizes lines say, and the sizes, the smallest first; else why there are none.

    ``sizes`` are the lines of all starts that say some.
    """
    if sizes > _MOST_READINGS:
        lacking = f"more than {_MOST_READINGS:,} lines say a cache's size: give the part of the "
        return "", (), lacking + "log with one start."
    for family, readings_of in _READINGS.items():
        if readings := readings_of(said):
            return family, tuple(sorted(readings, key=lambda each: each.printed_tokens or 0)), ""
    lacking = (
        f"no cache size in {lines:,} lines: looked for vLLM's 'KV cache size: … "
        "tokens' with 'concurrency for … tokens per request', vLLM's refusal to start, "
        "SGLang's 'bytes_per_full_token=…, full_token=…' or 'max_total_num_tokens=…', "
        "llama.cpp's 'n_slots = …' or ds4's 'context buffers …'; TensorRT-LLM's are not read. "
        "Give the log of the engine's start."
    )
    return "", (), lacking


def _slot_readings(said: Iterable[Reading], mark: str) -> list[Reading]:
    """What a server of slots printed, its buffers added up."""
    fields = {name: text for each in said for name, text in each.fields.items() if text}
    if mark not in fields:
        return []
    buffers = [size for each in said if (size := each.number("buffer_mib")) is not None]
    fields["tokens"] = str(int(fields.get("slots", 1)) * int(fields["slot_context"]))
    if buffers:
        fields |= {"buffers_mib": str(sum(buffers)), "buffers": str(len(buffers))}
    return [Reading("", fields)]


def _sglang_readings(said: Iterable[Reading]) -> list[Reading]:
    """Sizes with the layers, pools and limits that their ranks printed, the last of them."""
    slices: dict[str, dict[str, str]] = {}
    found: list[Reading] = []
    for each in said:
        if "stage" in each.fields:
            slices[each.rank] = each.fields
        elif "full_token" in each.fields:
            found.append(replace(each, fields=each.fields | slices.get(each.rank, {})))
        elif "full" in each.fields or "total" in each.fields:
            own = [size for size in found if size.rank == each.rank]
            if own:
                own[-1].fields.update(each.fields)
            else:
                found.append(replace(each, fields=dict(each.fields)))
    return [each for place, each in enumerate(found) if each not in found[:place]]


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
        near = [
            (other.rank, gib)
            for other in available
            if _same_replica(size.rank, other.rank) and (gib := other.number("available_gib"))
        ]
        least, stages = min((gib for _, gib in near), default=0), dict[int, float]()
        for rank, gib in near:
            if stage := _STAGE.search(rank):
                stages[int(stage[1])] = min(gib, stages.get(int(stage[1]), gib))
        fields = ({"available_gib": str(least)} if least else {}) | size.fields
        reading = replace(size, fields=fields, stages=stages)
        found += [reading] if reading not in found else []
    return found


def _same_replica(one: str, other: str) -> bool:
    """Ranks of one data-parallel replica share its blocks; without a number all are one."""
    first, second = _REPLICA.search(one), _REPLICA.search(other)
    return first is None or second is None or first[1] == second[1]


_READINGS: dict[str, Callable[[list[Reading]], list[Reading]]] = {
    "vllm": _vllm_readings,
    "sglang": _sglang_readings,
    "llama.cpp": partial(_slot_readings, mark="slots"),
    "ds4": partial(_slot_readings, mark="session_mib"),
}


def with_given(log: StartupLog, given: Mapping[str, str], arch: str | None = None) -> StartupLog:
    """The log with the model and engine that are given, which decide where the log is silent.

    ``arch`` is the given GPU's. Raises ``ConfigError`` for what the log contradicts.
    """
    arguments = dict(log.arguments) | ({"arch": [arch]} if arch else {})
    if text := given.get("engine"):
        family, _, version = text.partition(":")
        if family != log.family:
            raise _contradicted(log, "engine", text, log.family)
        if version and log.version and not log.version.startswith(version.removeprefix("v")):
            raise _contradicted(log, "engine", text, f"{family}:{log.version}")
        log = replace(log, version=log.version or version or None)
    if text := given.get("model"):
        file = config_file(text) if preset_named(text) is None else None
        logged = None if file else preset_named(log.text("model") or "")
        if logged and logged != preset_named(text):
            raise _contradicted(log, "model", text, logged)
        log = replace(log, given_file=text if file else "")
        arguments["model"] = [text]
    return replace(log, arguments=arguments)


def _contradicted(log: StartupLog, name: str, text: str, logged: str) -> ConfigError:
    return ConfigError(
        f"--{name} {text}: {log.source} says {logged}: leave the option out, or give its own log."
    )


# ---- models -------------------------------------------------------------------------------------

V41, V32 = "v4.1-flash", "v3.2"
_OTHER_FAMILIES = re.compile(
    r"v4\.\d|v3|v2|\br1\b|qwen|llama|mi[sx]tral|gemma|glm|kimi|gpt|phi-|minimax|ernie|hunyuan"
)


def v4_presets() -> list[str]:
    return [name for name in preset_names() if re.fullmatch(r"v4-\w+", name)]


def named_model(log: StartupLog) -> str | None:
    """The preset, or config.json, that the log names, if any; or ``ConfigError`` for others."""
    reported = (log.text("model") or "").lower()
    if preset_named(reported) is None:  # a path that a container mounts
        reported = (log.text("served") or reported).lower()
    preset, made = preset_named(reported), log.text("architecture")
    if log.given_file:
        return log.given_file
    known = dict.fromkeys(v4_presets(), "V4")
    if log.family not in ("llama.cpp", "ds4"):
        known[V41] = "V41"
    if log.family == "sglang":
        known[V32] = "V32"
    generation = re.match(r"Deepseek(V4|V41|V32)(?!\d)", made) if made else None
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
    made_of = {"V41": V41, "V32": V32}
    return made_of.get(generation[1]) if generation else None


def draft_method(log: StartupLog) -> str | None:
    """The speculative method the log names."""
    method = log.text("method")
    return method.lower() if method else None
