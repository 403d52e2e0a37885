"""What a server stored, put back together from its events.

A stretch of blocks that a server announces belongs behind the block that it names. So every block
has a chain back to where its prompt began, and ids like those of any trace. Of a stretch that
begins a request, the part that was cached already is known: it is what comes before it, and what
of it is announced although it was there (``kv_cache_report_mode=full``).

What cannot be known: a prompt that is cached as a whole is not announced at all; prompts end at
the last full block; a prompt and what is generated after it look alike. A single block right
behind a request's last one is taken as generated; more of them are taken as another request, also
where one was computed in several steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dsv4kv.recording.folder import Record
from dsv4kv.recording.veil import ROOT, chained

_GPU = {None, "GPU"}


@dataclass(slots=True, eq=False)
class Block:
    """A block of a chain.

    Attributes:
        before: The block before it; None where the chain begins.
        ids: Its ids, ``grain`` tokens each, made of everything up to there.
        tokens: From the chain's beginning to its end.
        whole: Whether the chain's beginning was seen.
    """

    before: "Block | None"
    ids: tuple[int, ...]
    tokens: int
    whole: bool = True


@dataclass(slots=True, eq=False)
class Store:
    """What was stored at once behind what was there: a request, as far as events know.

    Attributes:
        at_s: When, by the server's clock; never before the prompt was computed.
        cached_tokens: Of the prompt's full blocks, which were cached before.
        output_tokens: Of single blocks that were stored behind it later.
        session: The session's number, if requests named it.
        end: Last block of the prompt.
        grain_tokens: What an id stands for.
    """

    at_s: float
    cached_tokens: int
    session: int | None
    end: Block
    grain_tokens: int
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Of the prompt's full blocks."""
        return self.end.tokens

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
    """What one publisher has announced.

    Attributes:
        blocks: All blocks that were ever announced, by the server's name.
        cached: Names of those that are in the GPU's memory.
        tips: Requests by the block that was stored last behind them.
        group: The first of its groups that keeps everything; empty until it is known.
        size: Tokens of its blocks; stretches of smaller ones are parts of blocks.
    """

    blocks: dict[int, Block] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)
    tips: dict[int, Store] = field(default_factory=dict)
    group: list[int | None] = field(default_factory=list)
    size: int = 0

    def forget(self) -> None:
        """Nothing is cached any more; chains are still known."""
        self.cached.clear()
        self.tips.clear()


@dataclass(slots=True)
class Tally:
    """What else was found.

    Attributes:
        gaps: Messages that never came.
        restarts: How often a server began anew.
        removed: Blocks that left the GPU's memory.
        orphans: Requests whose chain begins before the recording, or in a gap.
    """

    gaps: int = 0
    restarts: int = 0
    removed: int = 0
    orphans: int = 0


class Chains:
    """Reads the records of the stream ``events``, in order."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._servers: dict[str, _Server] = {}

    def read(self, records: Iterable[Record]) -> list[Store]:
        """Everything that was stored by requests, in order."""
        return [store for record in records for store in self._take(record)]

    def _take(self, record: Record) -> Iterator[Store]:
        server = self._servers.setdefault(record["source"], _Server())
        what = record.get("what")
        if what == "gap":
            self.tally.gaps += record["last"] - record["first"] + 1
        elif what == "restart":
            self.tally.restarts += 1
            server.forget()
        elif what is None:
            yield from self._batch(server, record)

    def _batch(self, server: _Server, record: Record) -> Iterator[Store]:
        new: list[Store] = []
        for event in record["events"]:
            if "cleared" in event:
                server.forget()
            elif event.get("medium") not in _GPU:
                continue
            elif "removed" in event and event.get("group") in server.group:
                self.tally.removed += len(server.cached.intersection(event["removed"]))
                server.cached.difference_update(event["removed"])
            elif "stored" in event and _is_chain(event, server):
                self._store(server, event, record["ts"], new)
        yield from new

    def _store(self, server: _Server, event: Record, at_s: float, new: list[Store]) -> None:
        names, size, parent = event["stored"], int(event["size"]), event["parent"]
        before = None if parent is None else server.blocks.setdefault(parent, _orphan())
        already = _leading(names, server.cached) * size
        blocks = _link(before, event)
        server.blocks |= zip(names, blocks, strict=True)
        server.cached.update(names)
        store = server.tips.pop(parent, None)
        if store in new:  # what one step stores behind each other is one request's
            store.cached_tokens += already if store.cached_tokens == store.tokens else 0
            store.end = blocks[-1]
        elif store and len(names) == 1 and not already:
            store.output_tokens += size
        else:
            cached = already + (before.tokens if before else 0)
            grain = event.get("grain", size)
            store = Store(at_s, cached, event.get("session"), blocks[-1], grain)
            self.tally.orphans += not store.end.whole
            new.append(store)
        server.tips[names[-1]] = store


def _orphan() -> Block:
    """A block of which nothing is known, nor of what comes before it."""
    return Block(None, (), 0, whole=False)


def _is_chain(event: Record, server: _Server) -> bool:
    """Whether what was stored is of the group that keeps everything, and there is something."""
    if not event["chain"] or not event["stored"]:
        return False
    if not server.group:
        server.group.append(event.get("group"))
    if event.get("group") not in server.group:
        return False
    server.size = max(server.size, int(event["size"]))
    return int(event["size"]) == server.size


def _leading(names: list[int], cached: set[int]) -> int:
    """How many of the first are cached."""
    return next((at for at, name in enumerate(names) if name not in cached), len(names))


def _link(before: Block | None, event: Record) -> list[Block]:
    """The blocks of a stretch behind the block before."""
    names, size = event["stored"], event["size"]
    contents = event.get("ids") or names
    each = len(contents) // len(names)
    ids = list(chained(contents, _last_id(before, event["parent"])))
    tokens = before.tokens if before else 0
    blocks: list[Block] = []
    for number in range(len(names)):
        own = tuple(ids[number * each : (number + 1) * each])
        whole = before is None or before.whole
        before = Block(before, own, tokens + (number + 1) * size, whole)
        blocks.append(before)
    return blocks


def _last_id(block: Block | None, name: int) -> int:
    """The id that a chain goes on from; a block of which nothing is known has its name."""
    if block is None:
        return ROOT
    return block.ids[-1] if block.ids else name
