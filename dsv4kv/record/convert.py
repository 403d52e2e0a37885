"""A recording as requests of a trace: by a proxy or a log, or else rebuilt from events.

An event names its blocks and the block before them, so every block has a chain back to the start
of its prompt. The cached part of a request is the chain before its first stored block, and stored
blocks that were cached already (``kv_cache_report_mode=full``).

Unknown: a fully cached prompt has no event; prompts end at the last full block; prompt and
generated tokens look alike. A single block right after a request's last one is taken as generated,
more blocks as another request, even where a prompt was computed in several steps.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from dsv4kv.errors import TraceError
from dsv4kv.record import ROOT, chained
from dsv4kv.record.folder import Record, read_stream
from dsv4kv.record.metrics import count
from dsv4kv.traces.request import Request
from dsv4kv.units import counted

PROXY = "proxy:"
"""How the name of a proxy begins, as a source."""
_LATELY = 64  # requests of one id that a row may still be of
_NEAR_S = 60.0  # clocks of two hosts
_ZONE_S, _FARTHEST_ZONE_S = 900, 14 * 3600  # a log's clock may be of another time zone


def is_exchange(row: Record) -> bool:
    """Whether a row of ``requests`` is a request of its own, as a proxy's is, whatever its id."""
    return str(row.get("source", "")).startswith(PROXY)


def is_answered(row: Record) -> bool:
    """Whether a row of a proxy is of a request that a server took, be its answer whole or cut."""
    return bool(0 < row.get("status", 0) < 400)


def says_hits(row: Record) -> bool:
    """Whether a row of ``requests`` has its hits, no more of them than tokens of the prompt."""
    return bool(0 <= row.get("cached_tokens", -1) <= row.get("input_tokens", -1))


@dataclass(slots=True)
class One:
    """A request: what its rows say, and its sources, each with whether the row ended it."""

    row: Record
    parts: set[tuple[str, bool]]


class Requests:
    """Requests by id: a row is of one that has no such row yet, and agrees; else of a new one.

    Of the ``most`` ids seen last.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._of, self._most = dict[object, list[One]](), most

    def add(self, record: Record, row: Record, otherwise: object) -> One | None:
        """A new request, of an id or of ``otherwise``; None if ``row`` went into one."""
        source = "" if is_exchange(record) else str(record.get("source"))
        part = source, not source or "last_s" in record or "output_tokens" in record
        begun = source, False
        name = record.get("id", otherwise)
        known = self._of[name] = self._of.pop(name, [])[-_LATELY:]
        if len(self._of) > self._most:
            del self._of[next(iter(self._of))]
        fitting = [one for one in known if not one.parts & {part, (source, True)}]
        for one in sorted(fitting, key=lambda one: begun not in one.parts):
            if _agree(one.row, row, timed=begun not in one.parts):
                # a log's line of its end may know when it came, whatever the log's time zone
                is_known = "arrival_s" in row and one.parts == {begun}
                one.parts.add(part)
                mine, other = (row, one.row) if is_known or not source else (one.row, row)
                one.row = other | mine | (_ids_of(other) or _ids_of(mine))
                return None
        known.append(One(row, {part}))
        return known[-1]


def _agree(a: Record, b: Record, *, timed: bool) -> bool:
    lengths = {row["input_tokens"] for row in (a, b) if "input_tokens" in row}
    if len(lengths) > 1 or (_ids_of(a) and _ids_of(b) and a["ids"] != b["ids"]):
        return False
    for name in ("arrival_s", "last_s") if timed else ():
        if name in a and name in b:
            apart = abs(a[name] - b[name])
            beside = min(apart % _ZONE_S, -apart % _ZONE_S)
            return bool(apart <= _FARTHEST_ZONE_S + _NEAR_S and beside <= _NEAR_S)
    return True


def _ids_of(row: Record) -> Record:
    known = "ids" in row and row.get("ids_of") != "text"
    return {name: row[name] for name in ("ids", "grain")} | {"ids_of": None} if known else {}


def outline(row: Record) -> Record:
    """The fields of a row that decide which request it belongs to."""
    names = ("arrival_s", "last_s", "input_tokens", "grain", "ids_of")
    found = {name: row[name] for name in names if row.get(name) is not None}
    compared = row.get("ids") and "grain" in row and row.get("ids_of") != "text"
    return found | ({"ids": hash(tuple(row["ids"]))} if compared else {})


def count_requests(rows: Iterable[Record]) -> int:
    """How many requests there are."""
    requests = Requests()
    found = [requests.add(row, outline(row), f"row {n}") for n, row in enumerate(rows)]
    return sum(one is not None for one in found)


@dataclass(slots=True, eq=False)
class Block:
    """A block of a chain."""

    before: "Block | None"  # the block before it; None where the chain begins
    ids: tuple[int, ...]  # its ids, ``grain`` tokens each, made of everything up to there
    tokens: int  # from the chain's beginning to its end


@dataclass(slots=True, eq=False)
class Store:
    """A request by events: blocks stored together after cached ones."""

    at_s: float  # when, by the server's clock; never before the prompt was computed
    cached_tokens: int  # of the prompt's full blocks, which were cached before
    end: Block  # last block of the prompt
    grain_tokens: int  # what an id stands for
    output_tokens: int = 0  # of single blocks that were stored behind it later

    @property
    def ids(self) -> list[int]:
        """Ids of the prompt, first to last."""
        found: list[int] = []
        block: Block | None = self.end
        while block is not None:
            found += reversed(block.ids)
            block = block.before
        return found[::-1]


@dataclass(slots=True)
class _Server:
    """One publisher's blocks."""

    # All blocks ever announced, by the server's name
    blocks: dict[int, Block] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)  # names of the blocks in the GPU's memory
    # Requests by the last block stored after them
    tips: dict[int, Store] = field(default_factory=dict)
    # The first group that keeps everything; empty until it is known
    group: list[int | None] = field(default_factory=list)
    size: int = 0  # tokens of its blocks; smaller ones are parts of blocks

    def take(self, record: Record) -> list[Store]:
        """Return the requests that one record of events began."""
        new: dict[Store, None] = {}
        restarted = [{"cleared": True}] * (record.get("what") == "restart")
        for event in [*restarted, *record.get("events", ())]:
            if "cleared" in event:  # chains stay known
                self.cached.clear()
                self.tips.clear()
            elif event.get("medium") not in {None, "GPU"}:
                continue
            elif "removed" in event and event.get("group") in self.group:
                self.cached.difference_update(event["removed"])
            elif event.get("chain") and event["stored"]:
                self.group = self.group or [event.get("group")]
                if event.get("group") in self.group and event["size"] >= self.size:
                    self.size = int(event["size"])
                    self._store(event, record["ts" if "ts" in record else "at"], new)
        return list(new)

    def _store(self, event: Record, at_s: float, new: dict[Store, None]) -> None:
        names, size, parent = event["stored"], int(event["size"]), event["parent"]
        # a block that was never announced has no known ids and no known predecessor
        before = None if parent is None else self.blocks.setdefault(parent, Block(None, (), 0))
        already = len(list(takewhile(self.cached.__contains__, names))) * size
        blocks = _link(before, event)
        self.blocks |= zip(names, blocks, strict=True)
        self.cached.update(names)
        store = self.tips.pop(parent, None)
        if store in new:  # consecutive blocks of one step are one request's
            store.cached_tokens += already if store.cached_tokens == store.end.tokens else 0
            store.end = blocks[-1]
        elif store and len(names) == 1 and not already:
            store.output_tokens += size
        else:
            cached = already + (before.tokens if before else 0)
            store = Store(at_s, cached, blocks[-1], event.get("grain", size))
            new[store] = None
        self.tips[names[-1]] = store


def _link(before: Block | None, event: Record) -> list[Block]:
    names, size = event["stored"], event["size"]
    contents = event.get("ids") or names
    each = len(contents) // len(names)
    last = ROOT if before is None else before.ids[-1] if before.ids else event["parent"]
    ids = list(chained(contents, last))
    tokens = before.tokens if before else 0
    blocks: list[Block] = []
    for number in range(len(names)):
        own = tuple(ids[number * each : (number + 1) * each])
        before = Block(before, own, tokens + (number + 1) * size)
        blocks.append(before)
    return blocks


def find_stores(records: Iterable[Record]) -> list[Store]:
    """Return all requests, in order, by records of the stream ``events``."""
    servers: dict[str, _Server] = {}
    return [
        store
        for record in records
        for store in servers.setdefault(record["source"], _Server()).take(record)
    ]


_MOST_OWN = 2**20  # blocks of a prompt without ids
_MOST_HELD = 2**27  # ids of prompts by events, which a few bytes add millions of: 1 GiB
_MERGED = (
    *("arrival_s", "first_s", "last_s", "input_tokens", "output_tokens", "cached_tokens"),
    *("session", "ids", "grain", "ids_of"),
)
_OWN_IDS = 2**62
"""The first of the unshared ids; a random id of 63 bits is unlikely to collide."""
_STORES_ONLY = (
    "stores-only: these are prompts as the server stored them; those that were cached as a whole "
    "are missing, so there is no hit rate"
)

_NO_USAGE = (
    "answers had no usage, or were cut before it; streamed ones have it if clients ask for it "
    "(stream_options: include_usage) or the server adds it (vLLM's --enable-force-include-usage)"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The requests of a recording."""

    requests: list[Request]  # in order of arrival, from 0 s
    # Whether they are known by events only: fully cached prompts are missing, so there is no hit
    # rate
    stores_only: bool
    # Of every request, by the server; None where it did not report them
    cached_tokens: list[int | None]
    begun_s: float  # arrival of the first, seconds since 1970
    # Time of every request's first token, as arrivals count; None if not known
    first_s: list[float | None]
    last_s: list[float | None]  # time of its last token, the same way
    # Source of every request's ids: ``tokens``; ``text``, estimated; or ``length``, unshared
    ids_of: list[str]
    own_blocks: int  # blocks of prompts without ids in a trace that has some: they share nothing
    # Engine, tokens found and tokens looked up, of every server sampled
    counters: list[tuple[str, int, int]]
    unsized: int  # answered requests without known lengths, which are not in ``requests``
    lone: int  # requests of logs that do not say both when they came and how long they are
    # Requests of which the server reported more hits than tokens: in ``cached_tokens`` as unknown
    overstated: int


def read_recording(folder: Path) -> Recorded:
    """Read the requests of a proxy or a log, else rebuilt from events; raises ``TraceError``."""
    rows, unsized, lone = _complete(read_stream(folder, "requests"))
    stores_only = not rows
    rows = rows or _stored(folder)
    if not rows and (unsized or lone):
        raise TraceError(
            f"{folder}: {counted(unsized + lone, 'request')} recorded, and of none is the length "
            f"known: {_NO_USAGE}."
        )
    if not rows:
        raise TraceError(
            f"{folder}: no request was recorded: give record a source of requests (--proxy or "
            "--requests), or one of events (--events)."
        )
    rows.sort(key=lambda row: row["arrival_s"])
    own_blocks, begun_s = _add_own_ids(folder, rows), rows[0]["arrival_s"]
    first_s, last_s = (
        [None if (at := row.get(name)) is None else at - begun_s for row in rows]
        for name in ("first_s", "last_s")
    )
    counters = count(read_stream(folder, "metrics")).values()
    return Recorded(
        _requests_of(rows),
        stores_only,
        [row["cached_tokens"] if says_hits(row) else None for row in rows],
        begun_s,
        first_s,
        last_s,
        [row.get("ids_of") or "tokens" for row in rows],
        own_blocks,
        [hits for counted in counters if (hits := counted.hits())],
        unsized,
        lone,
        sum("cached_tokens" in row and not says_hits(row) for row in rows),
    )


def _requests_of(rows: list[Record]) -> list[Request]:
    """Requests of rows in order; ids are of full blocks, the rest of a prompt has none."""
    named = dict.fromkeys(row["session"] for row in rows if "session" in row)
    sessions = {name: number for number, name in enumerate(named)}
    return [
        Request(
            arrival_s=row["arrival_s"] - rows[0]["arrival_s"],
            input_tokens=row["input_tokens"],
            output_tokens=row.get("output_tokens", 0),
            prefix_hashes=row.get("ids", ()),
            hash_block_tokens=row.get("grain", 0),
            session=sessions.get(row.get("session", -1)),
            answer_s=max(0.0, row["last_s"] - row["arrival_s"]) if "last_s" in row else None,
        )
        for row in rows
    ]


def _complete(records: Iterable[Record]) -> tuple[list[Record], int, int]:
    """Requests of known length; how many others were answered, and how many only logs know."""
    requests, found = Requests(), list[One | None]()
    for number, record in enumerate(records):
        row = {name: record[name] for name in _MERGED if record.get(name) is not None}
        if "grain" not in row:
            row.pop("ids", None)
        elif "ids" in row:
            row["ids"] = array("q", row["ids"])  # there are thousands, of many requests
        if is_exchange(record):
            row["answered"] = is_answered(record)
        found.append(requests.add(record, row, f"request {number}"))
    known, short = list[Record](), list[Record]()
    for row in (one.row for one in found if one):
        (known if row.get("input_tokens") and "arrival_s" in row else short).append(row)
    answered = sum(row.get("answered", False) for row in short)
    return known, answered, sum("answered" not in row for row in short)


def _stored(folder: Path) -> list[Record]:
    """Rows of requests that are known by events only."""
    stores = find_stores(read_stream(folder, "events"))
    if sum(store.end.tokens // max(1, store.grain_tokens) for store in stores) > _MOST_HELD:
        raise TraceError(
            f"{folder}: the prompts of its events have over {_MOST_HELD:,} ids, each with "
            "those before it: record requests, too (--proxy or --requests), or a shorter time."
        )
    return [
        {
            "arrival_s": store.at_s,
            "input_tokens": store.end.tokens,
            "output_tokens": store.output_tokens,
            "ids": array("q", store.ids),
            "grain": store.grain_tokens,
        }
        for store in stores
    ]


def _add_own_ids(folder: Path, rows: list[Record]) -> int:
    """Give unshared ids to prompts without any, where others have some; returns how many."""
    sizes = {row["grain"] for row in rows if row.get("ids")}
    if len(sizes) > 1:
        raise TraceError(
            f"{folder}: ids of {' and '.join(map(str, sorted(sizes)))} tokens: a trace has one "
            "size; record servers of different block sizes separately."
        )
    end = _OWN_IDS
    for size in sizes:
        for row in (row for row in rows if not row.get("ids")):
            blocks = row["input_tokens"] // size
            if blocks > _MOST_OWN:
                raise TraceError(
                    f"{folder}: a prompt of {row['input_tokens']:,} tokens has no ids, and those "
                    f"of others are of {size}: record more than {size} tokens an id, --id-tokens."
                )
            row |= {"ids": range(end, end + blocks), "grain": size, "ids_of": "length"}
            end += blocks
    return end - _OWN_IDS


def describe(recorded: Recorded) -> list[str]:
    """Sentences about the server's own figures."""
    sentences = [_STORES_ONLY] if recorded.stores_only else list(_describe_hits(recorded))
    if recorded.unsized:
        sentences.append(
            f"{counted(recorded.unsized, 'request')} skipped: their length is not known: "
            f"{_NO_USAGE}"
        )
    if recorded.lone:
        sentences.append(
            f"{counted(recorded.lone, 'request')} of logs skipped: no line says both when it came "
            "and how long it is"
        )
    if recorded.overstated:
        sentences.append(
            "the server reported more hits than tokens for "
            f"{counted(recorded.overstated, 'prompt')}: their hits are not counted"
        )
    if recorded.stores_only:
        return sentences
    return sentences + [
        f"by {engine}'s counters {found:,} of {asked:,} prompt tokens were cached "
        f"({found / asked:.2%}), from the first sample to the last"
        for engine, found, asked in recorded.counters
    ]


def _describe_hits(recorded: Recorded) -> Iterator[str]:
    pairs = zip(recorded.requests, recorded.cached_tokens, strict=True)
    known = [(request.input_tokens, cached) for request, cached in pairs if cached is not None]
    if known:
        asked, cached = (sum(column) for column in zip(*known, strict=True))
        yield (
            f"by the server {cached:,} of {asked:,} prompt tokens were cached "
            f"({cached / max(asked, 1):.2%}), of {len(known):,} of "
            f"{counted(len(recorded.requests), 'request')}"
        )
    else:
        yield "the server did not say how many tokens were cached"
    if by_text := recorded.ids_of.count("text"):
        yield f"ids of {counted(by_text, 'prompt')} are of text: what they share is estimated"
    if recorded.own_blocks:
        blocks = counted(recorded.own_blocks, "block")
        yield f"{blocks} of prompts known by length only are taken to share nothing"


def in_blocks(requests: Iterable[Request], size: int) -> Iterator[Request]:
    """The same requests with ids of ``size`` tokens, a multiple of theirs; raises ``TraceError``.

    An id stands for everything before it, so of those in a block the last is kept. The rest of a
    prompt has the id of nothing else: whether it recurs is not known.
    """
    for number, request in enumerate(requests):
        if not request.hash_block_tokens:
            yield request
            continue
        step, rest = divmod(size, request.hash_block_tokens)
        if rest:
            raise TraceError(
                f"ids of {request.hash_block_tokens:,} tokens cannot be put together to blocks of "
                f"{size:,}: take another format."
            )
        full = request.input_tokens // size
        ids = tuple(request.prefix_hashes[step - 1 : full * step : step])
        tail = (_OWN_IDS - 1 - number,) if request.input_tokens % size else ()
        yield replace(request, prefix_hashes=ids + tail, hash_block_tokens=size)
