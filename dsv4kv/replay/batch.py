"""Who runs, who waits, and the blocks they share: what preemption works on."""

from collections.abc import Callable
from dataclasses import dataclass

from dsv4kv.replay.contract import Ledger
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.served import Served


@dataclass(frozen=True)
class Batch:
    """Who runs, who waits, and what for.

    Attributes:
        ledger: The blocks.
        decoders: Who needs more of them.
        prefilling: Requests with prompt tokens to compute; their blocks are theirs.
        waiting: Requests without a slot, the next one first.
        let_go: Takes everything from a request, which will have to start again.
    """

    ledger: Ledger
    decoders: Decoders
    prefilling: list[Served]
    waiting: list[Served]
    let_go: Callable[[Served], None]

    def lacking(self) -> dict[Served, int]:
        """Blocks that each decoding request needs before it can take a step."""
        decoders = self.decoders
        return dict(zip(decoders.members, decoders.lacking().tolist(), strict=True))

    def stop(self, served: Served) -> None:
        """Take a request out of those that run, and everything from it."""
        if served in self.prefilling:
            self.prefilling.remove(served)
        else:
            self.decoders.remove([self.decoders.members.index(served)])
        self.let_go(served)
