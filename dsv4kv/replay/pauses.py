"""Decoding requests that lack blocks: who is paused, who goes on, who has to start again."""

from collections.abc import Callable

from dsv4kv.replay.contract import Ledger
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.served import Served, insert_by_age


class Pauses:
    """Stops younger requests where the blocks do not suffice for all.

    Attributes:
        paused: Requests that keep their blocks and do not run, oldest first.
    """

    def __init__(
        self,
        ledger: Ledger,
        decoders: Decoders,
        most_blocks: int,
        start_again: Callable[[Served], None],
    ) -> None:
        """Watch over the requests that decode.

        Args:
            ledger: The blocks.
            decoders: Who needs more of them.
            most_blocks: Blocks that paused requests may keep for themselves.
            start_again: Takes everything from a request and lets it wait.
        """
        self.paused: list[Served] = []
        self._ledger, self._decoders = ledger, decoders
        self._most_blocks, self._start_again = most_blocks, start_again

    def settle(self) -> None:
        """Before a step: pause whom blocks do not suffice for, let others go on."""
        self._pause()
        self._evict()
        self._resume()

    def make_room(self) -> None:
        """Nobody runs: the oldest paused request must be able to go on next."""
        if self._decoders.lacks(self.paused[0]) > self._ledger.available:
            assert len(self.paused) > 1, "a request does not fit although it is alone"
            self._start_again(self.paused.pop())

    def _pause(self) -> None:
        """Pause requests that cannot cross a block boundary, youngest first."""
        decoders, available = self._decoders, self._ledger.available
        if decoders.most_lacking() <= available:
            return
        lacking = decoders.lacking()
        missing = int(lacking.sum()) - available
        if missing <= 0:
            return
        places = sorted(
            lacking.nonzero()[0].tolist(), key=lambda place: -decoders.members[place].number
        )
        chosen = []
        for place in places:
            if missing <= 0:
                break
            missing -= int(lacking[place])
            chosen.append(place)
        for served in decoders.remove(chosen):
            served.pauses += 1
            insert_by_age(self.paused, served)

    def _evict(self) -> None:
        """Let the youngest start again while all hold more than they may."""
        held = sum(map(self._private, self.paused))
        while len(self.paused) > 1 and held > self._most_blocks:
            held -= self._private(self.paused[-1])
            self._start_again(self.paused.pop())

    def _private(self, served: Served) -> int:
        """Blocks that a request holds for itself."""
        return served.blocks - served.committed * self._ledger.per_shared

    def _resume(self) -> None:
        """Let requests go on, oldest first; none overtakes another."""
        if not self.paused:
            return
        needed = int(self._decoders.lacking().sum())
        while self.paused:
            needed += self._decoders.lacks(self.paused[0])
            if needed > self._ledger.available:
                return
            self._decoders.add(self.paused.pop(0))
