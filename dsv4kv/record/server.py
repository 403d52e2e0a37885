"""A recorded server's cache by its events, counters and gauges: all of it, or the last minutes.

Times are seconds since 1970. Figures that a server does not report are None or empty. A growing
recording is read line by line, each whole line once, so another process may be writing.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from time import monotonic, time

from dsv4kv.record import folder as fd
from dsv4kv.record.convert import Requests, count_requests, is_answered, outline, says_hits
from dsv4kv.record.metrics import Counted, Values, count, hits_of
from dsv4kv.units import counted

_FAMILIES = ("vllm", "sglang")
_USED = ("vllm:kv_cache_usage_perc", "sglang:full_token_usage", "sglang:token_usage")
"""Share of the pool that requests use, 0 to 1; the first that is there counts."""
_SIZES = {"sglang:max_total_num_tokens": "num_tokens", "sglang:page_size": "page_size"}
"""Gauges that are settings."""
_BY_SOURCE = {
    "vllm:prompt_tokens_cached_by_source": "source",
    "sglang:cached_tokens": "cache_source",
}
"""Counters of tokens found, and the label that says where."""
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_PREEMPTED = ("vllm:num_preemptions", "sglang:num_retracted_requests")
_RANK = re.compile(r"(?:dp_rank|engine)=\d+")
_STARTED = "process_start_time_seconds"

_KNOWN = 4_096  # ids of requests that a line about them tells apart

Window = tuple[float, float]
"""When something happened: after the one and not after the other."""


@dataclass(slots=True)
class Held:
    """Blocks cached on the GPU, by a publisher's events."""

    # Blocks by cache group: stored, less those that were removed
    blocks: Counter[int] = field(default_factory=Counter)
    stored: int = 0  # blocks ever stored
    removed: int = 0  # blocks ever removed
    last_s: float | None = None  # time of the last message
    restarted: bool = False  # since then
    _sizes: dict[int, int] = field(default_factory=dict)
    _parts: Counter[tuple[int, int]] = field(default_factory=Counter)  # of blocks, and no blocks

    def take(self, record: fd.Record) -> int:
        """Read a record of events; returns the blocks that were removed."""
        before = self.removed
        restarted = [{"cleared": True}] * (record.get("what") == "restart")
        for event in [*restarted, *record.get("events", ())]:
            if "cleared" in event:
                self.blocks.clear()
                self._parts.clear()
            elif event.get("medium") in {None, "GPU"}:
                self._count(event, event.get("group", 0))
        return self.removed - before

    def _count(self, event: fd.Record, group: int) -> None:
        if "stored" in event:
            names, size = event["stored"], event["size"]
            if size < self._sizes.setdefault(group, size):
                self._parts.update((group, name) for name in names)
                return
            self._sizes[group] = size
            self.stored += len(names)
            self.blocks[group] += len(names)
        else:
            blocks = 0
            for name in event["removed"]:
                parts = self._parts.pop((group, name), 0)
                if parts > 1:
                    self._parts[group, name] = parts - 1
                blocks += not parts
            self.removed += blocks
            self.blocks[group] -= min(blocks, self.blocks[group])


@dataclass(frozen=True)
class Server:
    """A recorded server."""

    family: str  # ``vllm`` or ``sglang``, by the names of its counters; empty if there are none
    settings: dict[str, str]  # its configuration, as far as its metrics have it
    restarts: list[Window]  # when its cache was cleared
    unrecorded: list[Window]  # gaps of the recording
    lost_messages: int  # event messages that were lost
    evicted: list[tuple[float, int]] | None  # when, how many blocks; None without events
    used: list[tuple[float, float]]  # at every sample, the share of the pool that requests used
    # When, how many requests; None without such a counter
    preempted: list[tuple[float, int]] | None
    # When, growth of its counters in tokens: found, and looked up
    counted: list[tuple[float, int, int]]
    replicas: int = 1  # its caches, by the ranks that count or publish


def read_server(folder: Path) -> Server:
    """Read a recording's server; raises ``TraceError`` if it cannot be read."""
    samples = [each for each in fd.read_stream(folder, "metrics") if "values" in each]
    notes, last = list(fd.read_stream(folder, "notes")), samples[-1]["values"] if samples else {}
    held, lost, restarts = dict[str, Held](), 0, list[Window]()
    evicted = list[tuple[float, int]]()
    for record in fd.read_stream(folder, "events"):
        lost += record["last"] - record["first"] + 1 if record.get("what") == "gap" else 0
        cache = held.setdefault(record["source"], Held())
        removed, ts = cache.take(record), record.get("ts")
        cache.restarted |= record.get("what") == "restart"
        if ts is None:
            continue
        # a cache restarts where messages do, or where it is cleared
        restarted = cache.restarted or any("cleared" in each for each in record.get("events", ()))
        if cache.last_s is not None and restarted:
            restarts.append((cache.last_s, ts))
        if removed:
            evicted.append((ts, removed))
        cache.last_s, cache.restarted = ts, False
    grown, fell = _count_samples(samples)
    names = {key.partition(":")[0] for each in samples for key in each["values"]}
    settings = dict[str, str]()
    for note in notes:
        settings |= note.get("settings", {}) if note.get("what") == "server" else {}
    for key, value in (pair for each in samples for pair in each["values"].items()):
        if (base := _base(key)) in _SIZES:
            settings[_SIZES[base]] = f"{value:.0f}"
    used = [(each["at"], used_share(each["values"])) for each in samples]
    # ranks with a cache each, by labels of counters
    ranks = {rank for key in last for rank in _RANK.findall(key)}
    return Server(
        family=next((family for family in _FAMILIES if family in names), ""),
        settings=settings,
        restarts=_merge(restarts + fell),
        unrecorded=[(note["from_s"], note["at"]) for note in notes if note.get("what") == "gap"],
        lost_messages=lost,
        evicted=evicted if held else None,
        used=[(at, share) for at, share in used if share is not None],
        preempted=_preempted(samples),
        counted=grown,
        replicas=max(len(ranks), len(held), 1),
    )


def describe_breaks(server: Server) -> list[str]:
    """Sentences about what a recording misses, and about restarts."""
    gaps, restarts = server.unrecorded, len(server.restarts)
    missed = sum(end - begin for begin, end in gaps)
    lost = counted(server.lost_messages, "message")
    found = {
        f"{counted(len(gaps), 'gap')} in the recording, {missed:,.1f} s together: what came then "
        "is missing": gaps,
        f"the server restarted or cleared its cache {counted(restarts, 'time')}: it found "
        "nothing of what came before": restarts,
        f"{lost} of KV events lost": server.lost_messages,
    }
    return [sentence for sentence, any_ in found.items() if any_]


def used_share(values: Values) -> float | None:
    """Share of the pool in use, 0 to 1; the maximum over ranks that have one."""
    shares = {key: value for key, value in values.items() if 0 <= value <= 1}
    named = ([value for key, value in shares.items() if _base(key) == name] for name in _USED)
    return next((max(found) for found in named if found), None)


def _count_samples(
    samples: Iterable[fd.Record],
) -> tuple[list[tuple[float, int, int]], list[Window]]:
    """Growth of hits from sample to sample, and when counters began anew."""
    grown, restarts = list[tuple[float, int, int]](), list[Window]()
    pages: dict[str, tuple[Counted, fd.Record]] = {}
    for sample in samples:
        page, last = pages.get(sample["source"], (Counted(), sample))
        before, fell = page.hits() or ("", 0, 0), page.restarts
        page.add(sample["values"])
        pages[sample["source"]] = page, sample
        _, found, asked = page.hits() or before
        if asked > before[2]:
            grown.append((sample["at"], found - before[1], asked - before[2]))
        started = [one["values"].get(_STARTED) for one in (last, sample)]
        if None not in started and started[0] != started[1]:
            restarts.append((float(started[1]), float(started[1])))
        elif page.restarts > fell:
            restarts.append((last["at"], sample["at"]))
    return grown, restarts


def _merge(windows: list[Window]) -> list[Window]:
    """Intersect overlapping windows: one event seen twice."""
    merged: list[Window] = []
    for begin, end in sorted(windows):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (begin, max(begin, min(end, merged[-1][1])))
        else:
            merged.append((begin, end))
    return merged


def _preempted(samples: Sequence[fd.Record]) -> list[tuple[float, int]] | None:
    totals = [(each["at"], _sum(each["values"], _PREEMPTED)) for each in samples]
    known = [(at, total) for at, total in totals if total is not None]
    grown = [
        (at, after - before * (after >= before)) for (_, before), (at, after) in pairwise(known)
    ]
    return [each for each in grown if each[1]] if known else None


def _base(key: str) -> str:
    return key.partition("{")[0]


class Follower:
    """New records of a growing recording."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at = Counter[Path]()  # bytes read of every file
        self.damaged = 0  # lines that were skipped

    def read(self) -> Iterator[tuple[str, fd.Record]]:
        """Yield the stream and record of every whole line since the last call."""
        for stream in fd.STREAMS:
            for path in fd.segments(self._folder, stream):
                if path.stat().st_size > self._at[path]:
                    for record in self._records(stream, path):
                        yield stream, record

    def _records(self, stream: str, path: Path) -> Iterator[fd.Record]:
        for line in fd.lines_of(path, self._at[path]):
            if not line.endswith(b"\n"):  # its end has not been written yet
                return
            self._at[path] += len(line)
            try:
                record = fd.parse_record(stream, line)
            except ValueError:  # trace convert says which line is damaged
                self.damaged += 1
                continue
            if record.get("what") != fd.WHERE:
                yield record


@dataclass(frozen=True)
class Glance:
    """A server's cache in the last minutes."""

    window_s: float  # seconds covered
    silent_s: float  # seconds since the last record
    found: dict[str, tuple[int, int]]  # tokens found and looked up, by source of the figure
    sources: dict[str, int]  # tokens found by device, by the counters or else by the answers
    requests: int  # requests that arrived
    stored: int | None  # blocks stored, by events; None without events
    removed: int | None  # blocks evicted, by events; None without events
    preempted: int | None  # requests preempted; None without such a counter
    used: float | None  # share of the pool in use; None without such a gauge
    running: int | None  # running requests
    waiting: int | None  # waiting requests
    groups: dict[int, int]  # cached blocks by cache group, inferred from events
    damaged: int = 0  # rows of the recording that were skipped


@dataclass
class Watched:
    """Records of the last minutes."""

    window_s: float  # seconds to keep
    clock: Callable[[], float] = time  # returns the time in seconds since 1970
    _first_s: float = 0.0
    _now_s: float = 0.0
    _rows: deque[fd.Record] = field(default_factory=deque)
    _samples: deque[fd.Record] = field(default_factory=deque)
    _moved: deque[fd.Record] = field(default_factory=deque)
    _held: dict[str, Held] = field(default_factory=dict)

    def take(self, stream: str, record: fd.Record) -> None:
        """Read the next record."""
        self._now_s = max(self._now_s, record.get("at", 0.0))
        self._first_s = self._first_s or self._now_s
        if stream == "events":
            held = self._held.setdefault(record["source"], Held())
            before = held.stored
            removed = held.take(record)
            stored = held.stored - before
            self._moved.append({"at": record["at"], "stored": stored, "removed": removed})
        elif stream == "metrics" and "values" in record:
            self._samples.append(record)
        elif stream == "requests":
            ids = record.get("ids")  # which tell rows apart, and take a megabyte
            self._rows.append(record | {"ids": [hash(tuple(ids))]} if ids else record)
        begin_s = self._now_s - self.window_s
        for records in (self._rows, self._samples, self._moved):
            while records and records[0].get("at", 0.0) < begin_s:
                records.popleft()

    def glance(self, damaged: int = 0) -> Glance:
        """Sum up the last minutes; ``damaged``: rows that were skipped."""
        values = self._samples[-1]["values"] if self._samples else {}
        pages = count(self._samples).values()
        grown: Values = {}
        for key, value in (item for page in pages for item in page.grown.items()):
            grown[key] = grown.get(key, 0.0) + value
        answered = list(filter(says_hits, self._rows))
        cached = sum(row["cached_tokens"] for row in answered)
        asked = sum(row["input_tokens"] for row in answered)
        by = {"its counters": hits_of(pages), "its answers": (cached, asked)}
        groups, by_device = Counter[int](), Counter[str]()
        for held in self._held.values():
            groups.update(held.blocks)
        for row in answered:
            by_device.update(row.get("cached_by", {}))
        moved = [sum(each[of] for each in self._moved) for of in ("stored", "removed")]
        stored, removed = moved if self._held else (None, None)
        return Glance(
            max(1.0, min(self.window_s, self._now_s - self._first_s)),
            max(0.0, self.clock() - self._now_s),
            {name: pair for name, pair in by.items() if pair[1]},
            _by_source(grown) or dict(by_device),
            count_requests(self._rows),
            stored,
            removed,
            _sum(grown, _PREEMPTED),
            used_share(values),
            _sum(values, _RUNNING),
            _sum(values, _WAITING),
            dict(sorted(groups.items())),
            damaged,
        )


def _by_source(grown: Values) -> dict[str, int]:
    found = Counter[str]()
    for key, value in grown.items():
        name, _, labels = key.partition("{")
        label = _BY_SOURCE.get(name.removesuffix("_total"))
        known = dict(part.partition("=")[::2] for part in labels.rstrip("}").split(","))
        if label in known:
            found[known[label]] += round(value)
    return dict(found)


def _sum(values: Values, names: tuple[str, ...]) -> int | None:
    """Sum of all samples of the names, with or without ``_total``; None without any."""
    found = [value for key, value in values.items() if _base(key).removesuffix("_total") in names]
    return int(sum(found)) if found else None


class Live:
    """Counts written records, for the status line; sources write side by side."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._begun_s = clock, clock()
        self._lately: tuple[float, int] = (self._begun_s, 0)
        self._known = Requests(_KNOWN)
        self._counted = dict[str, Counted]()
        self.batches = self.gaps = self.unread = self.samples = 0
        self.requests = self.without_usage = 0
        self.input_tokens = self.cached_tokens = self.with_hits = 0
        self._lock = Lock()

    def hear(self, stream: str, record: fd.Record) -> None:
        """Count a record; a request once, though a log has several lines of it."""
        with self._lock:
            if stream == "events":
                self.batches += "events" in record
                self.unread += record.get("what") == "unreadable"
                if record.get("what") == "gap":
                    self.gaps += record["last"] - record["first"] + 1
            elif stream == "metrics" and "values" in record:
                self.samples += 1
                self._counted.setdefault(record["source"], Counted()).add(record["values"])
            elif stream == "requests" and "input_tokens" in record:
                new = self._known.add(record, outline(record), self.requests)
                self.requests += new is not None
                if says_hits(record):
                    self.input_tokens += record["input_tokens"]
                    self.cached_tokens += record["cached_tokens"]
                    self.with_hits += 1
            elif stream == "requests":
                self.without_usage += is_answered(record)

    def line(self, *, whole: bool = False) -> str:
        """The status line; requests per second since the last one, or since the begin."""
        now_s = self._clock()
        before_s, before = (self._begun_s, 0) if whole else self._lately
        self._lately = now_s, self.requests
        rate = (self.requests - before) / max(now_s - before_s, 1e-9)
        with self._lock:
            hits, asked = hits_of(self._counted.values())
        of = ""
        if not asked:  # no counters are sampled: by the usage of each request
            hits, asked = self.cached_tokens, self.input_tokens
            of = f" of {self.with_hits:,} requests" if self.with_hits < self.requests else ""
        parts = {
            f"{now_s - self._begun_s:,.0f} s": True,
            f"{counted(self.requests, 'request')} ({rate:,.1f}/s)": True,
            f"{self.without_usage:,} without usage": self.without_usage,
            f"hit rate by the server {f'{hits / asked:.1%}{of}' if asked else 'not known'}": True,
            f"{counted(self.batches, 'message')} of events": True,
            f"{self.gaps:,} missing": True,
            f"{self.unread:,} that could not be read": self.unread,
            counted(self.samples, "sample"): True,
        }
        return ", ".join(part for part, is_said in parts.items() if is_said)
