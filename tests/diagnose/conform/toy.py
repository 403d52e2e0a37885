"""A cache manager in plain Python, its driver, and faults that can be planted in it.

``leak``: a request that is aborted after two preemptions loses a block. ``wears``: every 300th
block that is freed is lost, whatever the sequence. ``misses``: nothing hits with drafts.
``false``: a prompt of more than a page hits all of it, whatever is cached. ``unchained``: a page
is found whatever is before it. ``stuck``: the pool is
not empty after a preemption. ``raises``: four pages are an error.

Blocks of 64 tokens of one family; a prompt hits as vLLM's densest rule has it in a roomy pool: in
pages of 256 tokens, never its last token, with drafts never its last block.
"""

from collections import deque
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from dsv4kv.diagnose.conform import Driven, Sequence
from dsv4kv.diagnose.conform import driven as broken
from dsv4kv.diagnose.conform.driven import PAGE

BLOCK = 64
TRAITS = {"lookahead": False, "retention": False}
Key = tuple[int, ...]


class Toy(Driven):
    """A manager that can be asked, with its faults by name, and blocks that it ever freed."""

    def __init__(self, *faults: str) -> None:
        self.engine, self.version, self.traits = "vllm", "1.0", TRAITS
        self.faults, self.freed = faults, 0

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        driver = SimpleNamespace(Session=Session, NAME="toy")
        return broken.answer(driver, self, asdict(sequence))


class Session(broken.Operated):
    """An empty cache; operations are those of ``dsv4kv/diagnose/conform``."""

    def __init__(self, toy: Toy, settings: dict[str, Any]) -> None:
        self._toy, self._faults, self._settings = toy, toy.faults, settings
        self._free = deque(range(1, 200))
        self._requests: dict[int, list[int]] = {}
        self._preempted: dict[int, int] = {}
        self._cached: set[Key] = set()

    def _count(self) -> None:
        held = [0] * 200
        for block in (block for blocks in self._requests.values() for block in blocks):
            held[block] += 1
        broken.check_free(held, list(self._free), len(self._free))

    def end(self) -> None:
        for number in [*self._requests]:
            self._let_go(number)
        if len(self._free) != 199 or ("stuck" in self._faults and self._preempted):
            broken.note("ends", "not all blocks are free")

    def _do_admit(self, number: int, pages: list[int], tokens: int, output: int) -> None:
        if "raises" in self._faults and tokens == 4 * PAGE:
            raise IndexError("list index out of range")
        self._requests[number] = []
        del pages, output

    def _do_step(self, accepted: int) -> None:
        for blocks in self._requests.values():
            if len(blocks) < 4 and self._free:
                blocks.append(self._free.popleft())
        del accepted

    def _do_finish(self, accepted: int) -> None:
        del accepted
        if self._requests:
            self._let_go(next(iter(self._requests)))

    def _do_abort(self, number: int) -> None:
        if number in self._requests:
            if "leak" in self._faults and self._preempted.get(number, 0) > 1:
                self._requests[number][:1] = []
            self._let_go(number)

    def _do_preempt(self) -> None:
        for number in [*self._requests]:
            self._preempted[number] = self._preempted.get(number, 0) + 1
            self._let_go(number, keep=True)

    def _do_reset(self) -> None:
        self._cached.clear()

    def _serve(self, number: int, pages: list[int], tokens: int) -> int:
        keys = [_key(pages, end) for end in range(BLOCK, tokens + 1, BLOCK)]
        if "unchained" in self._faults:
            keys = [(page, end % PAGE) for *_, page, end in keys]
        spare = BLOCK if self._settings["speculation"] != "none" else 0
        ends = range(PAGE, tokens, PAGE)
        found = [end for end in ends if self._cached.issuperset(keys[: (end + spare) // BLOCK])]
        found = [end for end in found if end + spare < tokens]
        hit = 0 if "misses" in self._faults and spare else max(found, default=0)
        if "false" in self._faults and tokens > PAGE and hit < tokens - 1:
            hit = tokens - 1
            broken.note("reads", f"{number} goes on at {hit} with another prompt's blocks")
        self._cached.update(keys)
        return hit

    def _let_go(self, number: int, *, keep: bool = False) -> None:
        for block in self._requests.pop(number):
            self._toy.freed += 1
            if "wears" not in self._faults or self._toy.freed % 300:
                self._free.append(block)
        if keep:
            self._requests = {number: [], **self._requests}


def _key(pages: list[int], end: int) -> Key:
    return (*pages[: -(-end // PAGE)], end)
