"""llama-server's slots: a prompt continues at the end of a slot, or at a checkpoint of it.

Windows and states of V4 cannot be cut back, so a slot resumes at its very end or at the last
checkpoint within what a prompt has in common with it. A prompt takes the idle slot with which it
has most in common, else the least recently used; prompts that lose their slot go to host memory.
Traces give whole blocks of a prompt: a slot continues if all its blocks come again.
Source: llama.cpp 0c1e57098, ``tools/server/server-context.cpp``, ``server-task.cpp``.
"""

from collections.abc import Callable

from dsv4kv.core.cache import EngineCache
from dsv4kv.core.served import Hit

ALIKE, KEPT, LOADED = 0.1, 0.5, 0.25
"""Shares: of a prompt that a slot must have, of a slot below which it is saved, of a saved one."""
MOST, STEP = 32, 8192
"""Checkpoints of a slot, and tokens between those that stay once it has as many."""
TAIL, BATCH = 4, 2048
"""Tokens at a prompt's end that are computed apart, behind a checkpoint; most of a step."""


class Prompt:
    """What a slot or host memory holds of one: whole blocks, tokens, checkpoints rising."""

    def __init__(
        self, path: list[int], tokens: int, checkpoints: list[tuple[int, int]], size: int = 0
    ) -> None:
        self.path, self.tokens, self.checkpoints = path, tokens, checkpoints
        self.saved_bytes = size  # in host memory

    def common(self, path: list[int], block_tokens: int) -> int:
        """Tokens of whole blocks that it has in common with another."""
        same, most = 0, min(len(self.path), len(path))
        while same < most and self.path[same] == path[same]:
            same += 1
        return same * block_tokens

    def holds(self, other: "Prompt", block_tokens: int) -> bool:
        """Whether it begins with the whole blocks of another, and is no shorter."""
        whole = other.tokens // block_tokens * block_tokens
        return self.tokens >= other.tokens and self.common(other.path, block_tokens) >= whole


class Slot:
    """One request's place: the prompt in it, since when it is idle, and who has it."""

    def __init__(self) -> None:
        self.prompt = Prompt([], 0, [])
        self.used, self.request = -1, -1


class SlotCache(EngineCache):
    """Slots of one size, and prompts in host memory."""

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        slots: int,
        path_of: Callable[[int], list[int]],
        *,
        ubatch: int,
        unified: bool,
        checkpoints: bool,
        saved_bytes: Callable[[int], int],
        host_bytes: int,
    ) -> None:
        """``saved_bytes``: of a number of tokens in host memory; a checkpoint is one of 0 tokens.

        Of ``unified`` slots those that are idle are emptied when a prompt begins.
        """
        super().__init__(blocks, block_tokens, ubatch)
        self._slots = [Slot() for _ in range(slots)]
        self._size, self._path_of, self._unified = blocks // slots, path_of, unified
        self._checkpoints = checkpoints
        self._saved_bytes, self._host_bytes = saved_bytes, host_bytes
        self._host: list[Prompt] = []
        self._clock = 0

    @property
    def available(self) -> int:
        """All: a request that has a slot lacks nothing."""
        return self.total

    def refuses(self, tokens: int) -> str:
        return "" if tokens <= self._size * self.block_tokens else "longer than a slot"

    def fits(self, request: int, tokens: int, promised: int, step_tokens: int) -> bool:
        return any(slot.request < 0 for slot in self._slots)

    def find(self, request: int, tokens: int) -> Hit:
        path = self._path_of(request)
        held = [slot.prompt for slot in self._slots] + self._host
        found = max([prompt.common(path, self.block_tokens) for prompt in held])
        return Hit(0, found // self.block_tokens, 0)

    def get_new_blocks(self, blocks: int) -> None:
        """Nothing: a request has its slot."""

    def evict(self, blocks: int) -> None:
        """Nothing is shared."""

    def begin(self, request: int, tokens: int) -> Hit:
        path, size = self._path_of(request), self.block_tokens
        found = self.find(request, tokens).found
        slot = self._choose(path, tokens)
        slot.request = request
        self._clock += 1
        self.uncached -= self._size
        for other in self._slots:
            if other.request < 0 and other.prompt.tokens:
                self._save(other.prompt)
                if self._unified:
                    other.prompt = Prompt([], 0, [])
        prompt = slot.prompt
        common = prompt.common(path, size)
        if common // size == prompt.tokens // size and common < tokens and prompt.tokens:
            at = common  # it ends there, or within the block after it
        else:
            usable = min(common, tokens - 1)
            at = max([end for end, _ in prompt.checkpoints if end <= usable], default=0)
        kept = [each for each in prompt.checkpoints if each[0] <= at + 1 and at]
        slot.prompt = Prompt(path, tokens, kept)
        last = tokens - min(BATCH, TAIL + self.chunk_tokens)
        for end in [at, last, tokens - TAIL]:
            if self._checkpoints and end >= max(1, at, last):
                self._mark(slot.prompt, end, request)
        resumed = -(-at // size)
        return Hit(resumed, max(resumed, found), resumed, resumed * size - at)

    def _choose(self, path: list[int], tokens: int) -> Slot:
        chosen, alike = None, ALIKE
        idle = [slot for slot in self._slots if slot.request < 0]
        for slot in idle:
            share = slot.prompt.common(path, self.block_tokens) / tokens
            if slot.prompt.tokens and share > alike:
                chosen, alike = slot, share
        if chosen is None:
            chosen = min(reversed(idle), key=lambda slot: slot.used)  # of new ones the last
        elif alike * tokens >= KEPT * chosen.prompt.tokens:
            return chosen
        self._save(chosen.prompt)
        self._load(chosen, path, tokens)
        return chosen

    def _save(self, prompt: Prompt) -> None:
        """Put a prompt into host memory; prefixes of it are dropped, then the oldest."""
        size = self.block_tokens
        if any(each.holds(prompt, size) for each in self._host):
            return
        marks = prompt.checkpoints[:]
        needed = self._saved_bytes(prompt.tokens) + len(marks) * self._saved_bytes(0)
        if not prompt.tokens or needed > self._host_bytes:
            return
        self._host = [each for each in self._host if not prompt.holds(each, size)]
        kept = sum([each.saved_bytes for each in self._host])
        while self._host and kept + needed > self._host_bytes:
            kept -= self._host.pop(0).saved_bytes
        self._host.append(Prompt(prompt.path, prompt.tokens, marks, needed))

    def _load(self, slot: Slot, path: list[int], tokens: int) -> None:
        """Bring back the prompt with a larger share kept and more in common, if there is one."""
        best, own = None, slot.prompt
        alike = own.common(path, self.block_tokens)
        kept = alike / own.tokens if own.tokens else -1.0
        for each in self._host:
            common = each.common(path, self.block_tokens)
            share = common / each.tokens
            if share >= LOADED and share > kept and common > alike:
                best, alike, kept = each, common, share
        if best is not None:
            self._host.remove(best)
            slot.prompt = best

    def _mark(self, prompt: Prompt, end: int, request: int) -> None:
        marks, place, last = prompt.checkpoints, 0, -1
        while len(marks) + 1 >= MOST and place < len(marks):
            at, owner = marks[place]
            if owner != request and last >= 0 and at <= last + STEP:
                del marks[place]
            else:
                place, last = place + 1, at
        del marks[: max(0, len(marks) + 1 - MOST)]
        prompt.checkpoints = [each for each in marks if each[0] != end] + [(end, request)]

    def compute(self, request: int, position: int) -> int:
        return min(position // self.block_tokens, len(self._path_of(request)))

    def end(self, request: int, decoded_blocks: int = 0, position: int = 0) -> int:
        slot = next(slot for slot in self._slots if slot.request == request)
        slot.request, slot.used = -1, self._clock
        self._clock += 1
        self.uncached += self._size
        self.freed += 1
        return len(slot.prompt.path)

    def loaded(self, request: int, begin: int, end: int, position: int) -> None:
        """No tier is below slots."""
