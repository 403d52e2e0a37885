"""Messages of one publisher in their order, whatever the network did to them.

A publisher numbers its messages from 0 and keeps the last thousands for whoever asks again. What
comes twice is dropped. What comes too early waits for what is missing, which is asked for; once
``WAIT_S`` have passed it is a gap. Numbers that begin anew are a publisher that was restarted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic

from dsv4kv.recording.wire import Batch, Unreadable, unpack

WAIT_S = 2.0
_WAITING = 256  # messages held while one is missing; then it is a gap, too
_REMEMBERED = 4096  # of which it is known that they came

_NUMBER_BYTES = 8
END = b"\xff" * _NUMBER_BYTES
"""In place of a number: everything asked for has been sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One that could be read."""

    number: int
    batch: Batch
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that never came, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The publisher counts from 0 again."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something came that could not be read."""


Item = Message | Gap | Restarted | Unread
Ask = Callable[[int], Iterable[list[bytes]]]
"""Gives the frames of everything from a number on that a publisher still has."""


def parse(frames: list[bytes]) -> Message:
    """Read a message: topic, number, payload; what is sent again has an empty frame before.

    Raises:
        Unreadable: It has too few frames, no number or no batch.
    """
    if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
        raise Unreadable("it has no number")
    number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
    if number >= 2**63:
        raise Unreadable("it has no number")
    return Message(number, unpack(payload), payload)


class Sequence:
    """Puts the messages of one publisher in order.

    Attributes:
        next: Number that comes next.
    """

    def __init__(
        self,
        ask: Ask = lambda _: (),
        *,
        after: tuple[int, float] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``after``: number and time of the last message before this process."""
        self.next, self._last_s = (after[0] + 1, after[1]) if after else (0, 0.0)
        self._ask, self._clock = ask, clock
        self._early: dict[int, Message] = {}
        self._since_s = 0.0  # when something began to be missing
        self._came: dict[int, bytes] = {}

    def catch_up(self) -> Iterator[Item]:
        """Take what the publisher still has, from where this sequence is.

        The last message that came is asked for, too: another in its place is another publisher's.
        """
        yield from self._ask_again(max(0, self.next - 1))

    def take(self, frames: list[bytes]) -> Iterator[Item]:
        """Take one message as it came; give everything whose turn it is now."""
        try:
            message = parse(frames)
        except Unreadable:
            yield Unread()
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
        """Call missing what has been missing for too long."""
        late = self._clock() - self._since_s > WAIT_S
        if self._early and (at_once or late or len(self._early) > _WAITING):
            first = min(self._early)
            yield Gap(self.next, first - 1)
            self.next = first
            yield from self._in_turn()
            if at_once:
                yield from self.give_up(at_once=True)

    def _is_known(self, message: Message) -> bool:
        """Whether an old number is an old message, and not one of a new publisher."""
        if message.number in self._came:
            return self._came[message.number] == _digest(message)
        return message.batch.at_s <= self._last_s

    def _restart(self) -> Iterator[Item]:
        yield from self.give_up(at_once=True)
        self.next = 0
        self._came.clear()
        yield Restarted()

    def _ask_again(self, first: int) -> Iterator[Item]:
        """Take what is sent again, as long as that helps: a publisher drops what is too much."""
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
            first = self.next

    def _hold(self, message: Message) -> None:
        if not self._early:
            self._since_s = self._clock()
        self._early.setdefault(message.number, message)

    def _in_turn(self) -> Iterator[Item]:
        while message := self._early.pop(self.next, None):
            self.next += 1
            self._last_s = message.batch.at_s
            self._came[message.number] = _digest(message)
            if len(self._came) > _REMEMBERED:
                del self._came[next(iter(self._came))]
            self._since_s = self._clock()
            yield message


def _digest(message: Message) -> bytes:
    return blake2b(message.payload, digest_size=8).digest()
