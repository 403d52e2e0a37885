"""A start-up log, read: what every rank said of its cache, and the arguments they were given."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.logs.arguments import find_arguments, whole_number
from dsv4kv.sizing.logs.fields import find_fields, find_version
from dsv4kv.sizing.logs.lines import rank_of, read_lines

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
        one_line: vLLM told tokens and concurrency in one line.
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
        number = self.number(name)
        return None if number is None else int(number)


@dataclass(frozen=True)
class StartupLog:
    """A log, read.

    Attributes:
        source: Where it came from, for messages.
        family: ``vllm`` or ``sglang``.
        version: As the log names it; None where it does not.
        readings: One for every size that was logged, the smallest first.
        arguments: Every value an argument was given, in order.
    """

    source: str
    family: str
    version: str | None
    readings: tuple[Reading, ...]
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """An argument's last value; of the model, the first (drafts come later)."""
        values = self.arguments.get(name)
        return None if values is None else values[0 if name == "model" else -1]

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
    )


@dataclass
class _Collected:
    """What has been read so far."""

    lines: int = 0
    version: str | None = None
    sizes: list[Reading] = field(default_factory=list)
    sglang: list[Reading] = field(default_factory=list)
    beside: list[Reading] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        self.lines += 1
        for name, value in find_arguments(line):
            self.arguments.setdefault(name, []).append(value)
        self.version = self.version or find_version(line)
        if fields := find_fields(line):
            self._add_fields(rank_of(line), fields)

    def _add_fields(self, rank: str, fields: dict[str, str]) -> None:
        if "indexer" in fields:
            fp4 = str("4" in fields["indexer"])
            self.arguments.setdefault("fp4_indexer", []).append(fp4)
        if "full_token" in fields:
            _append_new(self.sglang, Reading(rank, fields))
        elif _VLLM_SIZE & set(fields):
            _append_new(self.sizes, Reading(rank, fields, "concurrency" in fields))
        elif "concurrency" in fields:
            self._complete(rank, fields)
        elif {"available_gib", "profiled_blocks"} & set(fields):
            self.beside.append(Reading(rank, fields))

    def _complete(self, rank: str, fields: dict[str, str]) -> None:
        """The second of two lines belongs to the last size of its rank that has none yet."""
        for reading in reversed(self.sizes):
            if reading.rank == rank and "tokens" in reading.fields:
                reading.fields.setdefault("context", fields["context"])
                reading.fields.setdefault("concurrency", fields["concurrency"])
                return

    def vllm_readings(self) -> list[Reading]:
        """Sizes, each with the least memory that the ranks of its replica told."""
        readings: list[Reading] = []
        for size in self.sizes:
            fields = dict(size.fields)
            near = [other for other in self.beside if _same_replica(size.rank, other.rank)]
            memory = [other.number("available_gib") for other in near]
            least = min((gib for gib in memory if gib is not None), default=None)
            if least is not None:
                fields.setdefault("available_gib", str(least))
            _append_new(readings, Reading(size.rank, fields, size.one_line))
        return readings


def _append_new(readings: list[Reading], reading: Reading) -> None:
    """Several ranks and lines may say the same: what is told again is told once."""
    if reading not in readings:
        readings.append(reading)


def _same_replica(one: str, other: str) -> bool:
    """Ranks of one data-parallel replica share its blocks; without a number all are one."""
    first, second = _REPLICA.search(one), _REPLICA.search(other)
    return first is None or second is None or first[1] == second[1]
