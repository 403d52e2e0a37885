"""What a recorded server did to its cache, by its events, its counters and its gauges.

Times are seconds since 1970. What a server does not say is None or empty, never a guess.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from dsv4kv.recording.folder import Record, read_stream
from dsv4kv.recording.metrics import Counted, Values

_USED = {
    "vllm": ("vllm:kv_cache_usage_perc",),
    "sglang": ("sglang:full_token_usage", "sglang:token_usage"),
}
"""Share of the pool that requests use, 0 to 1; the first that is there counts."""
_PREEMPTED = {
    "vllm": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "sglang": ("sglang:num_retracted_requests_total",),
}
_SIZES = {"sglang:max_total_num_tokens": "num_tokens", "sglang:page_size": "page_size"}
"""Gauges that are settings."""
_RANK = re.compile(r"(?:dp_rank|engine)=\d+")
_STARTED = "process_start_time_seconds"

Window = tuple[float, float]
"""When something happened: after the one and not after the other."""


@dataclass(slots=True)
class Held:
    """What a publisher's events say is cached on the GPU.

    Attributes:
        blocks: Blocks by cache group: stored, less those that were removed.
        stored: Blocks ever stored.
        removed: Blocks ever removed.
    """

    blocks: Counter[int] = field(default_factory=Counter)
    stored: int = 0
    removed: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)
    _parts: Counter[tuple[int, int]] = field(default_factory=Counter)  # of blocks, and no blocks

    def take(self, record: Record) -> int:
        """Read a record of events; returns the blocks that were removed."""
        before = self.removed
        if record.get("what") == "restart":
            self._clear()
        for event in record.get("events", ()):
            if "cleared" in event:
                self._clear()
            elif event.get("medium") in {None, "GPU"}:
                self._count(event)
        return self.removed - before

    def _count(self, event: Record) -> None:
        group = event.get("group", 0)
        if "stored" in event:
            names, size = event["stored"], event["size"]
            if size < self._sizes.setdefault(group, size):
                self._parts.update((group, name) for name in names)
                return
            self._sizes[group] = size
            self.stored += len(names)
            self.blocks[group] += len(names)
        else:
            removed = [name for name in event["removed"] if not self._is_part(group, name)]
            self.removed += len(removed)
            self.blocks[group] -= min(len(removed), self.blocks[group])

    def _is_part(self, group: int, name: int) -> bool:
        left = self._parts.pop((group, name), 0)
        if left > 1:
            self._parts[group, name] = left - 1
        return left > 0

    def _clear(self) -> None:
        self.blocks.clear()
        self._parts.clear()


@dataclass(frozen=True)
class Server:
    """What was recorded of a server.

    Attributes:
        family: ``vllm`` or ``sglang``, by the names of its counters; empty if there are none.
        settings: What its metrics say of its configuration.
        restarts: When its cache began anew.
        unrecorded: When nobody recorded.
        lost_messages: Messages of events that never came.
        evicted: When, how many blocks; None without events.
        used: At every sample, the share of the pool that requests used.
        preempted: When, how many requests; None without such a counter.
        counted: When, how many tokens its counters grew by: found, and asked for.
        replicas: Caches that it has, by the ranks that count or publish.
    """

    family: str
    settings: dict[str, str]
    restarts: list[Window]
    unrecorded: list[Window]
    lost_messages: int
    evicted: list[tuple[float, int]] | None
    used: list[tuple[float, float]]
    preempted: list[tuple[float, int]] | None
    counted: list[tuple[float, int, int]]
    replicas: int = 1


def read_server(folder: Path) -> Server:
    """Read what a recording says of its server.

    Raises:
        TraceError: It cannot be read.
    """
    samples = [each for each in read_stream(folder, "metrics") if "values" in each]
    notes = list(read_stream(folder, "notes"))
    events = list(_slim(read_stream(folder, "events")))
    family = next((found for found in map(family_of, samples) if found), "")
    return Server(
        family=family,
        settings={
            name: value
            for stream, records in (("notes", notes), ("metrics", samples))
            for record in records
            for name, value in settings_in(stream, record).items()
        },
        restarts=_merge([*_restarts_announced(events), *_restarts_counted(samples)]),
        unrecorded=[(note["from_s"], note["at"]) for note in notes if note.get("what") == "gap"],
        lost_messages=sum(
            each["last"] - each["first"] + 1 for each in events if each.get("what") == "gap"
        ),
        evicted=[(each["ts"], each["removed"]) for each in events if each.get("removed")]
        if events
        else None,
        used=[(each["at"], used) for each in samples if (used := used_share(each["values"]))
              is not None],
        preempted=_preempted(samples, family),
        counted=list(_counted(samples)),
        replicas=_replicas(samples[-1:], events),
    )  # fmt: skip


def used_share(values: Values) -> float | None:
    """The share of its pool that a server's requests use; of several ranks the fullest."""
    for names in _USED.values():
        for name in names:
            if found := [value for key, value in values.items() if _base(key) == name]:
                return max(found)
    return None


def _counted(samples: Iterable[Record]) -> Iterator[tuple[float, int, int]]:
    """What counters of hits grew by, sample by sample, of every page."""
    counted: dict[str, Counted] = {}
    for sample in samples:
        of_page = counted.setdefault(sample["source"], Counted())
        before = of_page.hits() or ("", 0, 0)
        of_page.add(sample["values"])
        _, found, asked = of_page.hits() or before
        if asked > before[2]:
            yield sample["at"], found - before[1], asked - before[2]


def _slim(records: Iterable[Record]) -> Iterator[Record]:
    """Records of events without their blocks: what happened when."""
    held: dict[str, Held] = {}
    for record in records:
        removed = held.setdefault(record["source"], Held()).take(record)
        cleared = any("cleared" in event for event in record.get("events", ()))
        yield {
            "source": record["source"],
            "ts": record.get("ts"),
            "what": record.get("what"),
            "cleared": cleared,
            "removed": removed,
        } | {name: record[name] for name in ("first", "last") if name in record}


def family_of(sample: Record) -> str:
    """Whose counters a sample has; empty if it is neither's."""
    names = {key.partition(":")[0] for key in sample["values"]}
    return next((family for family in _USED if family in names), "")


def settings_in(stream: str, record: Record) -> dict[str, str]:
    """The server's settings that a record has."""
    if stream == "notes" and record.get("what") == "server":
        return dict(record["settings"])
    if stream == "metrics":
        values = record.get("values", {}).items()
        return {
            _SIZES[_base(key)]: f"{value:.0f}" for key, value in values if _base(key) in _SIZES
        }
    return {}


def _replicas(samples: Iterable[Record], events: Iterable[Record]) -> int:
    """Ranks whose caches are their own, by labels of counters or by publishers."""
    keys = [key for sample in samples for key in sample["values"]]
    ranks = {rank for key in keys for rank in _RANK.findall(key)}
    return max(1, len(ranks), len({event["source"] for event in events}))


def _restarts_announced(events: Iterable[Record]) -> Iterator[Window]:
    """By events: messages are numbered anew, or a cache that held something is cleared."""
    last: dict[str, float] = {}
    restarted: set[str] = set()
    for event in events:
        source, ts = event["source"], event["ts"]
        if event["what"] == "restart":
            restarted.add(source)
        if ts is None:
            continue
        if source in last and (event["cleared"] or source in restarted):
            yield last[source], ts
        restarted.discard(source)
        last[source] = ts


def _restarts_counted(samples: Iterable[Record]) -> Iterator[Window]:
    """By metrics: the process began later than before, or its counters fell."""
    by_source: dict[str, list[Record]] = {}
    for sample in samples:
        by_source.setdefault(sample["source"], []).append(sample)
    for each in by_source.values():
        for before, after in pairwise(each):
            started = [one["values"].get(_STARTED) for one in (before, after)]
            counted = Counted()
            counted.add(before["values"])
            counted.add(after["values"])
            if None not in started and started[0] != started[1]:
                yield float(started[1]), float(started[1])
            elif counted.restarts:
                yield before["at"], after["at"]


def _merge(windows: list[Window]) -> list[Window]:
    """Windows of one event, seen twice, as what they have in common."""
    merged: list[Window] = []
    for begin, end in sorted(windows):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (begin, max(begin, min(end, merged[-1][1])))
        else:
            merged.append((begin, end))
    return merged


def _preempted(samples: list[Record], family: str) -> list[tuple[float, int]] | None:
    """What counters of preempted requests grew by, sample by sample."""
    names = _PREEMPTED.get(family, ())
    totals = [
        (each["at"], sum(value for key, value in each["values"].items() if _base(key) in names))
        for each in samples
        if any(_base(key) in names for key in each["values"])
    ]
    if not totals:
        return None
    grown = ((at, int(after - before if after >= before else after))
             for (_, before), (at, after) in pairwise(totals))  # fmt: skip
    return [(at, count) for at, count in grown if count]


def _base(key: str) -> str:
    return key.partition("{")[0]
