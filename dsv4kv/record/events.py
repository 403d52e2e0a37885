"""KV events of a server, from its sockets.

vLLM and SGLang publish batches as msgpack: ``[seconds, events, rank]``. Events are maps with a
``type`` or, in older versions, arrays that begin with it; unknown fields and kinds are ignored.
Read in vLLM 0.33 and SGLang 0.5.23 (``distributed/kv_events.py``,
``disaggregation/kv_events.py``) and in older versions.

A batch is written in its own shape, with numbers in place of the server's block names, tokens,
sessions and adapters.

    {"at":…, "source":"events:0", "place":[12,ts], "ts":…, "rank":0, "events":[
      {"stored":[…], "parent":…, "size":256, "chain":true, "grain":64, "ids":[…], "session":…},
      {"removed":[…]}, {"cleared":true}]}

``ids`` stand for ``grain`` tokens each, without the tokens before. Blocks that are no ``chain``,
which windows' are not, are written by name only.

A publisher numbers its messages from 0 and keeps the last thousands to send again. Duplicates are
dropped. An early message waits while the missing ones are requested; after ``WAIT_S`` they are a
gap. Numbers that start again are a restarted publisher.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from threading import Event as Stop
from time import monotonic, time
from typing import Any

from dsv4kv.errors import ConfigError, mask_url
from dsv4kv.record import LEAST_TOKENS, Veil
from dsv4kv.record.folder import Record, Recording, check_row
from dsv4kv.record.run import parse_url
from dsv4kv.traces.files import MOST_S

BlockHash = int | bytes

_ORDER = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""Fields in the order of arrays."""

_PARTIAL = ("sliding", "chunked", "mamba")
"""Prefixes of the kinds of groups that keep a window or a state."""

_MOST_EVENTS, _MOST_HASHES = 2**17, 2**21  # of a batch: its row is one that readers take
_MOST_GROUPS = 2**10  # of a cache
_MOST_PARTS = 2**21  # lists and maps of a payload; each of one byte takes 70 B
_LISTS_AND_MAPS = bytes(range(0x80, 0xA0))  # how those begin that have few elements
_LONGEST_NAMES = 1_000  # of a request's adapter and tenant, with which every block is hashed


class Unreadable(ValueError):
    """A payload that is no batch."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks that were cached."""

    hashes: tuple[BlockHash, ...]  # the server's names of the blocks
    parent: BlockHash | None  # name of the block before the first; None at the start of the prompt
    tokens: tuple[int, ...]  # of all blocks; a window's groups may have tokens of more blocks
    block_tokens: int  # tokens of a block; 0 for an offloaded block that only has a place
    medium: str | None = None  # device; None is the GPU
    group: int | None = None  # number of the cache group; None where there is only one
    kind: str | None = None  # kind of the group
    window: int | None = None  # tokens of its window; None if it keeps everything
    session: str | None = None  # session named by the request
    # Other keys of a block's identity, one entry per block, or empty
    extras: tuple[object, ...] = ()

    @property
    def is_chain(self) -> bool:
        """Whether these are all blocks of a part of the prompt.

        For groups that keep a window or a state, servers name the last blocks, or all, and may
        have cached fewer.
        """
        partial = self.window is not None or (self.kind or "").startswith(_PARTIAL)
        whole = len(self.hashes) * self.block_tokens == len(self.tokens)
        return bool(self.block_tokens) and whole and not partial


@dataclass(frozen=True, slots=True)
class Removed:
    """Evicted blocks."""

    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache was cleared."""

    hashes = ()


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one step of the server's scheduler."""

    at_s: float  # by the server's clock, seconds since 1970
    events: tuple[Event, ...]  # in order
    rank: int = 0  # the server's data-parallel rank


def unpack(payload: bytes) -> Batch:
    """Read a payload; raises ``Unreadable`` if it is no batch."""
    import msgspec

    try:
        if len(payload) - len(payload.translate(None, _LISTS_AND_MAPS)) > _MOST_PARTS:
            raise ValueError("millions of lists")
        at_s, events, *rest = msgspec.msgpack.decode(payload)
        rank = next(iter(rest), None)
        if not -MOST_S <= at_s <= MOST_S:
            raise ValueError("no time")
        if len(events) > _MOST_EVENTS:
            raise ValueError("too many events")
        found = tuple(_events(events))
        if sum(len(each.hashes) for each in found) > _MOST_HASHES:
            raise ValueError("too many blocks")
        return Batch(float(at_s), found, _whole(0 if rank is None else rank))
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def _events(values: Iterable[Any]) -> Iterator[Event]:
    for value in values:
        if isinstance(value, dict):
            kind, fields = value["type"], value
        else:
            kind, *rest = value
            fields = dict(zip(_ORDER.get(kind, ()), rest, strict=False))
        if kind == "AllBlocksCleared":
            yield Cleared()
        if kind not in ("BlockRemoved", "BlockStored"):
            continue
        place = _text(fields.get("medium")), _optional(fields.get("group_idx"), _MOST_GROUPS)
        if kind == "BlockRemoved":
            yield Removed(_hashes(fields["block_hashes"]), *place)
        else:
            parent, tokens = fields.get("parent_block_hash"), _tokens(fields["token_ids"])
            yield Stored(
                _hashes(fields["block_hashes"]),
                None if parent is None else _hashes([parent])[0],
                tokens,
                _whole(fields["block_size"], 1 if tokens else 0),
                *place,
                _text(fields.get("kv_cache_spec_kind")),
                _optional(fields.get("kv_cache_spec_sliding_window")),
                _text(fields.get("session_id")),
                _extras(fields),
            )


def _hashes(values: Iterable[Any]) -> tuple[BlockHash, ...]:
    hashes = tuple(values)
    if not set(map(type, hashes)) <= {int, bytes}:
        raise TypeError("block hashes")
    return tuple(one % 2**64 if isinstance(one, int) else one for one in hashes)


def _tokens(values: list[Any]) -> tuple[int, ...]:
    """Tokens; of a tree that looks one ahead, the first of every pair."""
    firsts = values if set(map(type, values)) <= {int} else [pair[0] for pair in values]
    low, high = min(firsts, default=0), max(firsts, default=0)
    if not set(map(type, firsts)) <= {int} or low < 0 or high >= 2**63:
        raise TypeError("tokens")
    return tuple(firsts)


def _extras(fields: Mapping[str, Any]) -> tuple[object, ...]:
    blocks = len(fields["block_hashes"])
    of_all = tuple(fields.get(name) for name in ("lora_id", "lora_name", "cache_salt"))
    of_each = fields.get("extra_keys") or [None] * blocks
    if of_all == (None,) * 3 and not any(of_each):
        return ()
    if len(of_each) != blocks or len(repr(of_all)) > _LONGEST_NAMES or not _is_shallow(of_each):
        raise ValueError("extra_keys")
    return tuple((of_all, each) for each in of_each)


def _is_shallow(value: Any, left: int = 50) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(each, left - 1) for each in parts)


def _whole(value: Any, low: int = 0, high: int = 2**63) -> int:
    if type(value) is not int or not low <= value < high:
        raise ValueError(f"{value!r}"[:40])
    return value


def _optional(value: Any, high: int = 2**63) -> int | None:
    return None if value is None else _whole(value, 0, high)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("text")
    return value


WAIT_S = 2.0
_WAITING, _WAITING_BYTES = 256, 2**25  # of messages held while one is missing; then it is a gap
_REMEMBERED = 4096  # of which it is known that they came
_AHEAD_S = 60.0  # that a publisher's clock may be: one wrong time must not hide what follows

_NUMBER_BYTES = 8
END = b"\xff" * _NUMBER_BYTES
"""In place of a number: all requested messages have been sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message."""

    number: int
    batch: Batch
    payload: bytes


Item = Message | Record
"""A message, or the record of a gap, a restart or an unreadable message."""
Ask = Callable[[int], Iterable[list[bytes]]]
"""Requests the frames of all messages from a number on that a publisher still has."""


def _number_of(frames: list[bytes]) -> int:
    """The second last frame: topic, number, payload, after an empty frame if repeated; or -1."""
    known = len(frames) > 1 and len(frames[-2]) == _NUMBER_BYTES
    number = int.from_bytes(frames[-2], "big") if known else -1
    return number if number < 2**63 else -1


def parse(frames: list[bytes]) -> Message:
    """Decode a message; raises ``Unreadable``."""
    if (number := _number_of(frames)) < 0:
        raise Unreadable("it has no number")
    return Message(number, unpack(frames[-1]), frames[-1])


class Sequence:
    """Puts the messages of one publisher in order; ``next``: number of the next message."""

    def __init__(
        self,
        ask: Ask = lambda _: (),
        *,
        after: tuple[int, float] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``after``: number and time of the last message before this process."""
        self.next, self._last_s = (after[0] + 1, _believed(after[1])) if after else (0, 0.0)
        self._ask, self._clock = ask, clock
        self._early: dict[int, Message] = {}
        self._since_s = 0.0  # when something began to be missing
        self._came: dict[int, bytes] = {}

    def catch_up(self) -> Iterator[Item]:
        """Request messages from the last one on; if that differs, the publisher was restarted."""
        yield from self._ask_again(max(0, self.next - 1))

    def take(self, frames: list[bytes]) -> Iterator[Item]:
        """Accept one message; yields every message that is now in order."""
        try:
            message = parse(frames)
        except Unreadable:
            yield {"what": "unreadable"}
            return
        if message.number < self.next:
            if self._is_known(message):
                return
            yield from self._restart()
            self._hold(message)
            yield from self._ask_again(0)
        else:
            asks = message.number > self.next and not self._early
            self._hold(message)
            if asks:
                yield from self._ask_again(self.next)
        yield from self._in_turn()
        yield from self.give_up()

    def give_up(self, *, at_once: bool = False) -> Iterator[Item]:
        """Declare messages lost that have been missing for too long."""
        late = self._clock() - self._since_s > WAIT_S
        held = sum(len(each.payload) for each in self._early.values())
        many = len(self._early) > _WAITING or held > _WAITING_BYTES
        if self._early and (at_once or late or many):
            first = min(self._early)
            yield {"what": "gap", "first": self.next, "last": first - 1}
            self.next = first
            yield from self._in_turn()
            if at_once:
                yield from self.give_up(at_once=True)

    def _is_known(self, message: Message) -> bool:
        if message.number in self._came:
            return self._came[message.number] == _digest(message)
        return message.batch.at_s <= self._last_s

    def _restart(self) -> Iterator[Item]:
        yield from self.give_up(at_once=True)
        self.next = 0
        self._came.clear()
        yield {"what": "restart", "place": [-1, 0.0]}

    def _ask_again(self, first: int) -> Iterator[Item]:
        """Request messages again while that helps: a publisher drops what is too much."""
        reached = None
        while reached != self.next:
            reached = self.next
            for frames in self._ask(first):
                try:
                    message = parse(frames)
                except Unreadable:
                    continue
                if message.number < self.next and not self._is_known(message):
                    yield from self._restart()
                if message.number >= self.next:
                    self._hold(message)
                yield from self._in_turn()
                yield from self.give_up()
            first = self.next

    def _hold(self, message: Message) -> None:
        if not self._early:
            self._since_s = self._clock()
        self._early.setdefault(message.number, message)

    def _in_turn(self) -> Iterator[Item]:
        while message := self._early.pop(self.next, None):
            self.next += 1
            self._last_s = _believed(message.batch.at_s)
            self._came[message.number] = _digest(message)
            if len(self._came) > _REMEMBERED:
                del self._came[next(iter(self._came))]
            self._since_s = self._clock()
            yield message


def _believed(at_s: float) -> float:
    return min(at_s, time() + _AHEAD_S)


def _digest(message: Message) -> bytes:
    return blake2b(message.payload, digest_size=8).digest()


_MEDIA = {None, "CPU", "CPU_PINNED", "DISK", "EXTERNAL", "GPU", "STORAGE"}
_POLL_MS = 100
_ANSWER_S = 2.0  # longest wait for the next message of a replay
_REPLAY_S = 30.0  # for all of them, while new messages wait
_QUIET_S = 5.0  # without a message so long, it is asked whether the last ones were lost
_MOST_BYTES = 2**23  # of one message; a larger one is none
_QUEUED = 64  # messages; behind them the publisher waits


def _veiled(event: Event, veil: Veil) -> Record:
    if isinstance(event, Cleared):
        return {"cleared": True}
    names = [veil.name(one) for one in event.hashes]
    medium = event.medium if event.medium in _MEDIA else "OTHER"
    others = {"medium": medium, "group": event.group}
    if isinstance(event, Removed):
        record: Record = {"removed": names}
    else:
        parent = None if event.parent is None else veil.name(event.parent)
        size = event.block_tokens
        record = {"stored": names, "parent": parent, "size": size, "chain": event.is_chain}
        if event.is_chain and size >= LEAST_TOKENS:
            grain = size if size % veil.grain else veil.grain
            parts: list[tuple[Any, object]] = [(event.tokens, None)]
            if event.extras:
                places = range(0, len(event.tokens), size)
                parts = [
                    (event.tokens[at : at + size], extra)
                    for at, extra in zip(places, event.extras, strict=True)
                ]
            ids = [one for tokens, extra in parts for one in veil.content(tokens, grain, extra)]
            record |= {"grain": grain, "ids": ids}
        others["session"] = None if event.session is None else veil.name(event.session)
    return record | {name: value for name, value in others.items() if value is not None}


class Publisher:
    """Writes the messages of one publisher."""

    def __init__(self, number: int, recording: Recording, veil: Veil) -> None:
        self.name = f"events:{number}"
        self._recording, self._veil = recording, veil

    @property
    def came(self) -> tuple[int, float] | None:
        """Number and time of its last message, also before this process."""
        place = self._recording.place("events", self.name)
        return (place[0], place[1]) if isinstance(place, list) else None

    def write(self, items: Iterable[Item]) -> None:
        """Write messages, gaps and restarts."""
        for item in items:
            record = self._record_of(item) if isinstance(item, Message) else item
            try:
                check_row("events", record)
            except ValueError:
                record = {"what": "unreadable"}
            self._recording.write("events", {"source": self.name} | record)

    def _record_of(self, message: Message) -> Record:
        batch = message.batch
        events = [_veiled(event, self._veil) for event in batch.events]
        place = [message.number, batch.at_s]
        return {"place": place, "ts": batch.at_s, "rank": batch.rank, "events": events}


class Socket:
    """A publisher's socket, and the one that sends lost messages again."""

    def __init__(self, url: str, replay: str | None, publisher: Publisher) -> None:
        """``replay``: the second socket's address, if there is one."""
        for name, package in (("zmq", "pyzmq"), ("msgspec", "msgspec")):
            try:
                import_module(name)
            except ImportError:
                raise ConfigError(
                    f"recording needs the package {package}, which is not installed: "
                    "pip install 'dsv4kv[record]'."
                ) from None
        self._zmq: Any = import_module("zmq")
        self._url, self._replay, self._publisher = url, replay, publisher

    def run(self, stop: Stop) -> None:
        """Listen until ``stop`` is set."""
        with (
            self._zmq.Context() as context,
            self._connected(context, self._zmq.SUB, self._url) as socket,
        ):
            sequence = Sequence(
                lambda first: self._ask(context, first, stop), after=self._publisher.came
            )
            self._publisher.write(sequence.catch_up())
            heard_s, asked = monotonic(), True
            while not stop.is_set():
                if socket.poll(_POLL_MS):
                    self._publisher.write(sequence.take(socket.recv_multipart()))
                    heard_s, asked = monotonic(), False
                    continue
                self._publisher.write(sequence.give_up())
                if not asked and monotonic() - heard_s > _QUIET_S:
                    asked = True
                    self._publisher.write(sequence.catch_up())
            self._publisher.write(sequence.give_up(at_once=True))

    def _ask(self, context: Any, first: int, stop: Stop) -> Iterator[list[bytes]]:
        if self._replay is None:
            return
        with self._connected(context, self._zmq.DEALER, self._replay) as socket:
            socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
            asked_s, reached = monotonic(), first - 1
            until_s = asked_s + _ANSWER_S
            while not stop.is_set() and monotonic() < min(until_s, asked_s + _REPLAY_S):
                if not socket.poll(_POLL_MS):
                    continue
                frames = socket.recv_multipart()
                if len(frames) > 1 and frames[-2] == END:
                    return
                yield frames
                if (number := _number_of(frames)) > reached:  # what is said again is no answer
                    reached, until_s = number, monotonic() + _ANSWER_S

    def _connected(self, context: Any, kind: int, url: str) -> Any:
        socket = context.socket(kind)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.MAXMSGSIZE, _MOST_BYTES)
        # a publisher that is asked drops what is not taken, and is asked for it again
        socket.setsockopt(self._zmq.RCVHWM, _QUEUED)
        if kind == self._zmq.SUB:
            socket.setsockopt(self._zmq.SUBSCRIBE, b"")
        try:
            socket.connect(url)
        except self._zmq.ZMQError as error:
            socket.close()
            why = self._zmq.strerror(error.errno)  # the error itself names the address
            raise ConfigError(f"{mask_url(url)}: cannot be listened to ({why}).") from None
        return socket


def ranks_of(url: str, ranks: int) -> list[str]:
    """Addresses of a server's ranks, a port above each other; raises ``ConfigError``."""
    sentence = (
        f"{mask_url(url)!r} is not the address of a publisher: give tcp://HOST:PORT, as the "
        "server's --kv-events-config has it (with its host in place of *)."
    )
    if url.startswith("ipc://") and ranks == 1:
        return [url]
    parts = parse_url(url, ("tcp",), sentence)
    port = parts.port
    if not port or port + ranks > 2**16:
        raise ConfigError(sentence)
    host = parts.netloc.rpartition(":")[0]
    return [f"tcp://{host}:{port + rank}" for rank in range(ranks)]
