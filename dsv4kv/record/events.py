"""KV events of a server, from its sockets.

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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from threading import Event as Stop
from time import monotonic, time
from typing import Any

from dsv4kv.errors import ConfigError, mask_url
from dsv4kv.record.folder import Record, Recording, check_row
from dsv4kv.record.run import missing_package, parse_url
from dsv4kv.record.veil import LEAST_TOKENS, Veil
from dsv4kv.record.wire import Batch, Cleared, Event, Removed, Stored, Unreadable, unpack

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


def parse(frames: list[bytes]) -> Message:
    """Decode topic, number, payload, after an empty frame if repeated; raises ``Unreadable``."""
    number = int.from_bytes(frames[-2], "big") if len(frames) > 1 else 2**63
    if number >= 2**63 or len(frames[-2]) != _NUMBER_BYTES:
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
        elif message.number > self.next and message.number not in self._early:
            asked = bool(self._early)
            self._hold(message)
            if not asked:
                yield from self._ask_again(self.next)
        else:
            self._hold(message)
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


def veiled(event: Event, veil: Veil) -> Record:
    """The record of an event."""
    if isinstance(event, Cleared):
        return {"cleared": True}
    names = [veil.name(one) for one in event.hashes]
    medium = event.medium if event.medium in _MEDIA else "OTHER"
    others = {"medium": medium, "group": event.group}
    if isinstance(event, Removed):
        record: Record = {"removed": names}
    else:
        record = {
            "stored": names,
            "parent": None if event.parent is None else veil.name(event.parent),
            "size": event.block_tokens,
            "chain": event.is_chain,
        }
        if event.is_chain and event.block_tokens >= LEAST_TOKENS:
            grain = veil.grain_of(event.block_tokens)
            record |= {"grain": grain, "ids": list(_contents(event, grain, veil))}
        others["session"] = None if event.session is None else veil.name(event.session)
    return record | {name: value for name, value in others.items() if value is not None}


def _contents(event: Stored, grain: int, veil: Veil) -> Iterator[int]:
    if not event.extras:
        yield from veil.content(event.tokens, grain)
        return
    size = event.block_tokens
    for number, extra in enumerate(event.extras):
        yield from veil.content(event.tokens[number * size : (number + 1) * size], grain, extra)


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
            record = self._batch(item) if isinstance(item, Message) else item
            try:
                check_row("events", record)
            except ValueError:
                record = {"what": "unreadable"}
            self._recording.write("events", {"source": self.name} | record)

    def _batch(self, message: Message) -> Record:
        batch = message.batch
        return {
            "place": [message.number, batch.at_s],
            "ts": batch.at_s,
            "rank": batch.rank,
            "events": [veiled(event, self._veil) for event in batch.events],
        }


class Socket:
    """A publisher's socket, and the one that sends lost messages again."""

    def __init__(self, url: str, replay: str | None, publisher: Publisher) -> None:
        """``replay``: the second socket's address, if there is one."""
        self._zmq = _package("zmq")
        _package("msgspec")
        self._url, self._replay, self._publisher = url, replay, publisher

    def run(self, stop: Stop) -> None:
        """Listen until ``stop`` is set."""
        with self._zmq.Context() as context, context.socket(self._zmq.SUB) as socket:
            socket.setsockopt(self._zmq.LINGER, 0)
            socket.setsockopt(self._zmq.MAXMSGSIZE, _MOST_BYTES)
            socket.setsockopt(self._zmq.RCVHWM, _QUEUED)
            socket.setsockopt(self._zmq.SUBSCRIBE, b"")
            self._connect(socket, self._url)
            sequence = Sequence(
                lambda first: self._ask(context, first, stop), after=self._publisher.came
            )
            self._publisher.write(sequence.catch_up())
            self._listen(socket, sequence, stop)
            self._publisher.write(sequence.give_up(at_once=True))

    def _listen(self, socket: Any, sequence: Sequence, stop: Stop) -> None:
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

    def _ask(self, context: Any, first: int, stop: Stop) -> Iterator[list[bytes]]:
        if self._replay is None:
            return
        with context.socket(self._zmq.DEALER) as socket:
            socket.setsockopt(self._zmq.LINGER, 0)
            # a publisher drops what is not taken, and is asked for it again
            socket.setsockopt(self._zmq.RCVHWM, _QUEUED)
            socket.setsockopt(self._zmq.MAXMSGSIZE, _MOST_BYTES)
            self._connect(socket, self._replay)
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            asked_s, reached = monotonic(), first - 1
            until_s = asked_s + _ANSWER_S
            while not stop.is_set() and monotonic() < min(until_s, asked_s + _REPLAY_S):
                if not socket.poll(_POLL_MS):
                    continue
                frames = socket.recv_multipart()
                if len(frames) > 1 and frames[-2] == END:
                    return
                yield frames
                number = int.from_bytes(frames[-2], "big") if len(frames) > 1 else -1
                if number > reached:  # what is said again is no answer
                    reached, until_s = number, monotonic() + _ANSWER_S

    def _connect(self, socket: Any, url: str) -> None:
        try:
            socket.connect(url)
        except self._zmq.ZMQError as error:
            why = self._zmq.strerror(error.errno)  # the error itself names the address
            raise ConfigError(f"{mask_url(url)}: cannot be listened to ({why}).") from None


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


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise missing_package("pyzmq" if name == "zmq" else name) from None
