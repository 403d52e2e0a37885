"""A recording while it grows: what its server's cache did in the last minutes.

Only whole lines are read, each once, so another process may be writing. Memory is that of the last
minutes, and of the numbers of blocks that are cached.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from pydantic_core import from_json

from dsv4kv.recording.folder import STREAMS, WHERE, Record, segments
from dsv4kv.recording.metrics import Counted, Values
from dsv4kv.recording.server import Held, Server, family_of, settings_in, used_share
from dsv4kv.recording.source import count_requests

_BY_SOURCE = {
    "vllm:prompt_tokens_cached_by_source": "source",
    "sglang:cached_tokens": "cache_source",
}
"""Counters of tokens found, and the label that says where."""
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_PREEMPTED = ("vllm:num_preemptions", "sglang:num_retracted_requests")


class Follower:
    """New records of a recording, as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}  # bytes read of every file

    def read(self) -> Iterator[tuple[str, Record]]:
        """The stream and the record of every whole line that has come since."""
        for stream in STREAMS:
            for path in segments(self._folder, stream):
                if path.stat().st_size > self._at.get(path, 0):
                    for record in self._lines(path):
                        yield stream, record

    def _lines(self, path: Path) -> Iterator[Record]:
        with path.open("rb") as file:
            file.seek(self._at.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):  # its end has not been written yet
                    return
                self._at[path] = self._at.get(path, 0) + len(line)
                try:
                    record = from_json(line)
                except ValueError:  # trace convert says which line is damaged
                    continue
                if isinstance(record, dict) and record.get("what") != WHERE:
                    yield record


@dataclass(frozen=True)
class Glance:
    """What a server's cache did in the last minutes.

    Attributes:
        window_s: How long these are, of what has been recorded.
        silent_s: Since when nothing was recorded.
        found: Tokens found and tokens asked for, by who says so.
        sources: Tokens found by where they were, by the counters, or else by the answers.
        requests: That arrived.
        stored: Blocks stored, by events; None without.
        removed: Blocks evicted, likewise.
        preempted: Requests preempted; None without such a counter.
        used: Share of the pool that requests use now; None without such a gauge.
        running: Requests that run now.
        waiting: Requests that wait now.
        groups: Cached blocks by cache group: inferred from events, as no server says it.
    """

    window_s: float
    silent_s: float
    found: dict[str, tuple[int, int]]
    sources: dict[str, int]
    requests: int
    stored: int | None
    removed: int | None
    preempted: int | None
    used: float | None
    running: int | None
    waiting: int | None
    groups: dict[int, int]


@dataclass
class Watched:
    """What has come of the last minutes.

    Attributes:
        window_s: How long these are at most.
        clock: Returns the time, in seconds since 1970.
        settings: Of the server, from its metrics.
        family: Whose counters they are.
    """

    window_s: float
    clock: Callable[[], float] = time
    settings: dict[str, str] = field(default_factory=dict)
    family: str = ""
    _first_s: float = 0.0
    _now_s: float = 0.0
    _rows: deque[Record] = field(default_factory=deque)
    _samples: deque[Record] = field(default_factory=deque)
    _moved: deque[tuple[float, int, int]] = field(default_factory=deque)
    _held: dict[str, Held] = field(default_factory=dict)

    def take(self, stream: str, record: Record) -> None:
        """Read the next record."""
        self._now_s = max(self._now_s, record.get("at", 0.0))
        self._first_s = self._first_s or self._now_s
        if stream == "events":
            self._events(record)
        elif stream == "metrics" and "values" in record:
            self._samples.append(record)
            self.family = self.family or family_of(record)
        elif stream == "requests":
            self._rows.append(record)
        self.settings |= settings_in(stream, record)
        self._forget()

    @property
    def rows(self) -> list[Record]:
        """Records of requests."""
        return list(self._rows)

    @property
    def server(self) -> Server:
        """What is known of the server's settings."""
        return Server(self.family, dict(self.settings), [], [], 0, None, [], None, [])

    def glance(self) -> Glance:
        """What the last minutes were."""
        values = self._samples[-1]["values"] if self._samples else {}
        grown, hits = self._grown()
        answered = [row for row in self._rows if "cached_tokens" in row and "input_tokens" in row]
        cached = sum(row["cached_tokens"] for row in answered)
        asked = sum(row["input_tokens"] for row in answered)
        by = {"its counters": hits, "its answers": (cached, asked)}
        groups = Counter[int]()
        for held in self._held.values():
            groups.update(held.blocks)
        counted = [sum(each) for each in list(zip(*self._moved, strict=True))[1:]] or [0, 0]
        stored, removed = counted if self._held else (None, None)
        preempted = _sum(grown, _PREEMPTED)
        return Glance(
            max(1.0, min(self.window_s, self._now_s - self._first_s)),
            max(0.0, self.clock() - self._now_s),
            {name: pair for name, pair in by.items() if pair[1]},
            _by_source(grown) or _answered_by_source(answered),
            count_requests(self._rows),
            stored,
            removed,
            None if preempted is None else int(preempted),
            used_share(values),
            _gauge(values, _RUNNING),
            _gauge(values, _WAITING),
            dict(sorted(groups.items())),
        )

    def _events(self, record: Record) -> None:
        held = self._held.setdefault(record["source"], Held())
        before = held.stored
        removed = held.take(record)
        self._moved.append((record["at"], held.stored - before, removed))

    def _grown(self) -> tuple[Values, tuple[int, int]]:
        """What the counters of all pages grew by; tokens found, and asked for."""
        counted: dict[str, Counted] = {}
        for sample in self._samples:
            counted.setdefault(sample["source"], Counted()).add(sample["values"])
        grown = Counter[str]()
        for each in counted.values():
            grown.update(each.grown)
        pairs = [hits[1:] for each in counted.values() if (hits := each.hits())]
        return dict(grown), (sum(found for found, _ in pairs), sum(asked for _, asked in pairs))

    def _forget(self) -> None:
        """Let go of what is older."""
        begin_s = self._now_s - self.window_s
        for records in (self._rows, self._samples):
            while records and records[0].get("at", 0.0) < begin_s:
                records.popleft()
        while self._moved and self._moved[0][0] < begin_s:
            self._moved.popleft()


def _by_source(grown: Values) -> dict[str, int]:
    found = Counter[str]()
    for key, value in grown.items():
        name, _, labels = key.partition("{")
        label = _BY_SOURCE.get(name.removesuffix("_total"))
        for part in labels.rstrip("}").split(",") if label else ():
            named, _, where = part.partition("=")
            if named == label:
                found[where] += round(value)
    return dict(found)


def _answered_by_source(rows: Iterable[Record]) -> dict[str, int]:
    found = Counter[str]()
    for row in rows:
        found.update(row.get("cached_by", {}))
    return dict(found)


def _sum(values: Values, names: tuple[str, ...]) -> float | None:
    found = [
        value
        for key, value in values.items()
        if key.partition("{")[0].removesuffix("_total") in names
    ]
    return sum(found) if found else None


def _gauge(values: Values, names: tuple[str, ...]) -> int | None:
    found = _sum(values, names)
    return None if found is None else int(found)
