"""Decoding requests that lack blocks: who is paused, who goes on, who has to start again."""

from itertools import accumulate, takewhile

from dsv4kv.replay.batch import Batch
from dsv4kv.replay.served import Served, insert_by_age


class Pauses:
    """Stops younger requests where the blocks do not suffice for all.

    Attributes:
        paused: Requests that keep their blocks and do not run, oldest first.
    """

    preempted = False

    def __init__(self, batch: Batch, most_blocks: int) -> None:
        """``most_blocks``: what paused requests may keep for themselves."""
        self.paused: list[Served] = []
        self._batch, self._most_blocks = batch, most_blocks
        self._ledger, self._decoders = batch.ledger, batch.decoders

    def settle(self) -> None:
        """Before a step: pause whom blocks do not suffice for, let others go on."""
        self._pause()
        self._evict()
        self._resume()

    def make_room(self) -> None:
        """Nobody runs: the oldest paused request must be able to go on next."""
        if self._decoders.lacks(self.paused[0]) > self._ledger.available:
            assert len(self.paused) > 1, "a request does not fit although it is alone"
            self._start_again()

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
        """Let the youngest start again, no more than it takes.

        What they give back lets the oldest go on; those that still cannot keep to what they may.
        """
        while self.paused and self._staying_blocks() > self._most_blocks:
            self._start_again()

    def _staying_blocks(self) -> int:
        """Blocks that those hold for themselves who could not go on now."""
        return sum(map(self._private, self.paused[self._able() :]))

    def _start_again(self) -> None:
        """Take everything from the youngest; it waits at the place of its age."""
        served = self.paused.pop()
        self._batch.let_go(served)
        insert_by_age(self._batch.waiting, served)

    def _private(self, served: Served) -> int:
        """Blocks that a request holds for itself."""
        return served.blocks - served.committed * self._ledger.per_shared

    def _resume(self) -> None:
        """Let requests go on."""
        able = self._able()
        for served in self.paused[:able]:
            self._decoders.add(served)
        del self.paused[:able]

    def _able(self) -> int:
        """How many can go on beside those that run: the oldest, none overtakes another."""
        if not self.paused:
            return 0
        left = self._ledger.available - int(self._decoders.lacking().sum())
        needed = accumulate(map(self._decoders.lacks, self.paused))
        return sum(1 for _ in takewhile(lambda blocks: blocks <= left, needed))
