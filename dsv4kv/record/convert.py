"""A recording as requests of a trace: by a proxy or a log, or else rebuilt from events.

An event names its blocks and the block before them, so every block has a chain back to the start
of its prompt. The cached part of a request is the chain before its first stored block, and stored
blocks that were cached already (``kv_cache_report_mode=full``).

Unknown: a fully cached prompt has no event; prompts end at the last full block; prompt and
generated tokens look alike. A single block right after a request's last one is taken as generated,
more blocks as another request, even where a prompt was computed in several steps.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import overload

from dsv4kv.errors import TraceError
from dsv4kv.record.folder import Record, read_stream
from dsv4kv.record.metrics import count
from dsv4kv.record.requests import One, Requests, is_answered, is_exchange, says_hits
from dsv4kv.record.veil import ROOT, chained
from dsv4kv.traces.request import Request
from dsv4kv.units import counted

_GPU = {None, "GPU"}


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

    def forget(self) -> None:
        """Clear the cache; chains stay known."""
        self.cached.clear()
        self.tips.clear()

    def take(self, record: Record) -> list[Store]:
        """Return the requests that one record of events began."""
        new: dict[Store, None] = {}
        if record.get("what") == "restart":
            self.forget()
        for event in record.get("events", ()):
            if "cleared" in event:
                self.forget()
            elif event.get("medium") not in _GPU:
                continue
            elif "removed" in event and event.get("group") in self.group:
                self.cached.difference_update(event["removed"])
            elif "stored" in event and _is_chain(event, self):
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


def find_stores(records: Iterable[Record]) -> list[Store]:
    """Return all requests, in order, by records of the stream ``events``."""
    servers: dict[str, _Server] = {}
    return [
        store
        for record in records
        for store in servers.setdefault(record["source"], _Server()).take(record)
    ]


def _is_chain(event: Record, server: _Server) -> bool:
    if not event["chain"] or not event["stored"]:
        return False
    if not server.group:
        server.group.append(event.get("group"))
    if event.get("group") not in server.group:
        return False
    server.size = max(server.size, int(event["size"]))
    return int(event["size"]) == server.size


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


class Rows(Sequence[Request]):
    """Requests of ordered rows, made on access because rows are smaller."""

    def __init__(self, rows: Sequence[Record], whole: "Rows | None" = None) -> None:
        """``whole``: the rows that these are a slice of; it sets times and sessions."""
        self._rows = rows
        self._begun_s: float = whole._begun_s if whole else rows[0]["arrival_s"]
        named = dict.fromkeys(row["session"] for row in rows if "session" in row)
        own = {name: number for number, name in enumerate(named)}
        self._sessions: dict[int, int] = whole._sessions if whole else own

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Request: ...
    @overload
    def __getitem__(self, place: slice) -> "Rows": ...
    def __getitem__(self, place: int | slice) -> "Request | Rows":
        if isinstance(place, slice):
            return Rows(self._rows[place], self)
        return self._request(self._rows[place])

    def __iter__(self) -> Iterator[Request]:
        return map(self._request, self._rows)

    def _request(self, row: Record) -> Request:
        """Ids are of full blocks; the rest of a prompt has none."""
        last_s = row.get("last_s")
        return Request(
            arrival_s=row["arrival_s"] - self._begun_s,
            input_tokens=row["input_tokens"],
            output_tokens=row.get("output_tokens", 0),
            prefix_hashes=tuple(row.get("ids", ())),
            hash_block_tokens=row.get("grain", 0),
            session=self._sessions.get(row.get("session", -1)),
            answer_s=None if last_s is None else max(0.0, last_s - row["arrival_s"]),
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """The requests of a recording."""

    requests: Sequence[Request]  # in order of arrival, from 0 s
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
    # Requests of which the server reported more hits than tokens: in ``cached_tokens`` as unknown
    overstated: int


def read_recording(folder: Path) -> Recorded:
    """Read the requests of a proxy or a log, else rebuilt from events; raises ``TraceError``."""
    rows, unsized = _complete(read_stream(folder, "requests"))
    stores_only = not rows
    if stores_only:
        stores = find_stores(read_stream(folder, "events"))
        if sum(store.end.tokens // max(1, store.grain_tokens) for store in stores) > _MOST_HELD:
            raise TraceError(
                f"{folder}: the prompts of its events have over {_MOST_HELD:,} ids, each with "
                "those before it: record requests, too (--proxy or --requests), or a shorter time."
            )
        rows = [
            {
                "arrival_s": store.at_s,
                "input_tokens": store.end.tokens,
                "output_tokens": store.output_tokens,
                "ids": array("q", store.ids),
                "grain": store.grain_tokens,
            }
            for store in stores
        ]
    if not rows and unsized:
        raise TraceError(
            f"{folder}: {counted(unsized, 'request')} recorded, and of none is the length known: "
            f"{_NO_USAGE}."
        )
    if not rows:
        raise TraceError(
            f"{folder}: no request was recorded: give record a source of requests (--proxy or "
            "--requests), or one of events (--events)."
        )
    rows.sort(key=lambda row: row["arrival_s"])
    sizes = {row["grain"] for row in rows if row.get("ids")}
    if len(sizes) > 1:
        raise TraceError(
            f"{folder}: ids of {' and '.join(map(str, sorted(sizes)))} tokens: a trace has one "
            "size; record servers of different block sizes separately."
        )
    begin = end = _OWN_IDS
    for row in rows if sizes else ():  # prompts without ids get unshared ones
        if not row.get("ids"):
            (size,) = sizes
            if row["input_tokens"] // size > _MOST_OWN:
                raise TraceError(
                    f"{folder}: a prompt of {row['input_tokens']:,} tokens has no ids, and those "
                    f"of others are of {size}: record more than {size} tokens an id, --id-tokens."
                )
            begin, end = end, end + row["input_tokens"] // size
            row |= {"ids": range(begin, end), "grain": size, "ids_of": "length"}
    begun_s = rows[0]["arrival_s"]
    first_s, last_s = (
        [None if (at := row.get(name)) is None else at - begun_s for row in rows]
        for name in ("first_s", "last_s")
    )
    counters = count(read_stream(folder, "metrics")).values()
    return Recorded(
        Rows(rows),
        stores_only,
        [row["cached_tokens"] if says_hits(row) else None for row in rows],
        begun_s,
        first_s,
        last_s,
        [row.get("ids_of") or "tokens" for row in rows],
        end - _OWN_IDS,
        [hits for counted in counters if (hits := counted.hits())],
        unsized,
        sum("cached_tokens" in row and not says_hits(row) for row in rows),
    )


def describe(recorded: Recorded) -> list[str]:
    """Sentences about the server's own figures."""
    pairs = zip(recorded.requests, recorded.cached_tokens, strict=True)
    known = [(request.input_tokens, cached) for request, cached in pairs if cached is not None]
    asked, cached = (sum(column) for column in zip(*known, strict=True)) if known else (0, 0)
    requests, by_text = counted(len(recorded.requests), "request"), recorded.ids_of.count("text")
    own = {
        "the server did not say how many tokens were cached": not known,
        f"by the server {cached:,} of {asked:,} prompt tokens were cached "
        f"({cached / max(asked, 1):.2%}), of {len(known):,} of {requests}": known,
        f"ids of {counted(by_text, 'prompt')} are of text: what they share is estimated": by_text,
        f"{counted(recorded.own_blocks, 'block')} of prompts known by length only are taken to "
        "share nothing": recorded.own_blocks,
    }
    missing = {
        f"{counted(recorded.unsized, 'request')} skipped: their length is not known: "
        f"{_NO_USAGE}": recorded.unsized,
        "the server reported more hits than tokens for "
        f"{counted(recorded.overstated, 'prompt')}: their hits are not counted": (
            recorded.overstated
        ),
    }
    counters = [
        f"by {engine}'s counters {found:,} of {asked:,} prompt tokens were cached "
        f"({found / asked:.2%}), from the first sample to the last"
        for engine, found, asked in recorded.counters
    ]
    said = {_STORES_ONLY: True} | missing if recorded.stores_only else own | missing
    return [
        *(sentence for sentence, is_so in said.items() if is_so),
        *([] if recorded.stores_only else counters),
    ]


def _complete(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Requests of known length, and the number of answered ones without."""
    requests, found = Requests(), list[One | None]()
    for number, record in enumerate(records):
        if "what" in record:
            continue
        row = {name: record[name] for name in _MERGED if record.get(name) is not None}
        if "grain" not in row:
            row.pop("ids", None)
        elif "ids" in row:
            row["ids"] = array("q", row["ids"])  # there are thousands, of many requests
        if is_exchange(record):
            row["answered"] = is_answered(record)
        found.append(requests.add(record, row, f"request {number}"))
    rows = [one.row for one in found if one]
    unsized = sum(row.pop("answered", False) and not _is_known(row) for row in rows)
    return [row for row in rows if _is_known(row)], unsized


def _is_known(row: Record) -> bool:
    return bool(row.get("input_tokens")) and "arrival_s" in row


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
