"""Requests driven one by one, where no loop schedules them: what a prefix is taken from."""

import numpy as np

from dsv4kv.bench.serve.executor import StepExecutor, StepTokens
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step


class Requests:
    """Requests of one cache; requests of one serial have the same tokens."""

    def __init__(self, manager: KVCacheManager, executor: StepExecutor) -> None:
        """Drive requests of a cache."""
        self.manager, self.executor = manager, executor

    def admit(self) -> int:
        """A slot for a request."""
        return self.manager.admit_request()

    def release(self, slot: int) -> None:
        """A request ends."""
        self.manager.release_request(slot, self.manager.generation(slot))

    def place(self, slot: int, serial: int, tokens: int) -> None:
        """Let a request that was just admitted hold a prompt, its end written as served."""
        prepare_forward(self.manager, [slot], [0], [tokens])
        self.executor.place(self.manager, slot, serial, tokens)

    def compute(self, slot: int, serial: int, *ends: int) -> None:
        """Compute a prompt in chunks up to each of these tokens, as far as they are ahead."""
        for end in ends:
            if end > self.manager.tokens[slot]:
                self.executor.prefill(self.step(slot, serial, end))

    def decode(self, slot: int, serial: int, steps: int, *, observed: bool = False) -> None:
        """Decode a token in each step."""
        for _ in range(steps):
            after = int(self.manager.tokens[slot]) + 1
            self.executor.decode(self.step(slot, serial, after, observed=observed))

    def step(self, slot: int, serial: int, after: int, *, observed: bool = False) -> StepTokens:
        """Prepare a request for the tokens up to ``after``; the caller executes them."""
        before = int(self.manager.tokens[slot])
        prepare_forward(self.manager, [slot], [before], [after])
        batch = Step.of(self.manager, [slot], [before], [after])
        return StepTokens(batch, np.array([serial]), np.array([after]), observed=observed)
