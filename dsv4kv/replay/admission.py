"""Requests that wait for a slot: who may begin, who waits for another one's prefix."""

from collections.abc import Sequence

from dsv4kv.model.sharing import TableGroup
from dsv4kv.replay.contract import Ledger, Prompts
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.served import Served


class Admission:
    """The queue; one that waits for a prefix lets others pass.

    Attributes:
        waiting: Requests in it, the next one first.
        deferrals: Requests that ever waited for another one's prefix.
    """

    def __init__(
        self, ledger: Ledger, prompts: Prompts, group: TableGroup, *, defer: bool
    ) -> None:
        self.waiting: list[Served] = []
        self.deferrals = 0
        self._ledger, self._prompts, self._group, self._defer = ledger, prompts, group, defer
        self._stuck_at = -1  # ledger.freed when a request last had to wait for blocks

    def add(self, served: Served) -> None:
        """Queue a request behind all others."""
        self.waiting.append(served)

    def take(self, prefilling: Sequence[Served], decoders: Decoders) -> Served | None:
        """Take the oldest request out that can begin; None if none can.

        Where the oldest that could lacks blocks, nobody overtakes it, and it is not looked at
        again before blocks have come back.
        """
        if self._stuck_at == self._ledger.freed:
            return None
        for place, served in enumerate(self.waiting):
            if self._still_blocked(served, prefilling):
                continue
            found = self._prompts.look_up(served)
            if self._defers(served, found, prefilling):
                continue
            if self._fits(served, found, decoders):
                return self.waiting.pop(place)
            self._stuck_at = self._ledger.freed
            return None
        return None

    def _still_blocked(self, served: Served, prefilling: Sequence[Served]) -> bool:
        """Whether the prefix a request waits for is still being computed."""
        other = served.blocked_by
        if other is None:
            return False
        if other in prefilling and other.committed <= served.found:
            return True
        served.blocked_by = None
        return False

    def _defers(self, served: Served, found: int, prefilling: Sequence[Served]) -> bool:
        """Whether another request is computing the block this one needs next."""
        if not self._defer or not self._prompts.misses(served, found):
            return False
        key = served.keys[found]
        for other in prefilling:
            if len(other.keys) > found >= other.committed and other.keys[found] == key:
                self.deferrals += not served.deferred
                served.deferred, served.blocked_by, served.found = True, other, found
                return True
        return False

    def _fits(self, served: Served, found: int, decoders: Decoders) -> bool:
        """Whether everything a whole prompt needs can be had."""
        needed = self._group.blocks_for(served.prompt_tokens)
        promised = int(decoders.lacking().sum())
        return self._prompts.fits(served, found, needed, promised)
