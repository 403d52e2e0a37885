"""Random arrivals and turns: what must hold after every one of them."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv4kv.replay.blocks import BlockLedger
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.outcome import Outcome
from dsv4kv.replay.served import Served
from tests.replay.scenes import LONG, everyone, random_requests, small_config

POLICIES = ("lru", "lfu", "sieve", "s3fifo", "arc", "gdsf")
STRATEGIES = ("full", "periodic:256", "zero", "ends", "ends+junctions")


class Watched(Outcome):
    """Remembers who ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(16, outcome._block_tokens)
        self.ended: list[Served] = []
        self.refused: list[Served] = []

    def finish(self, served: Served) -> None:
        super().finish(served)
        self.ended.append(served)

    def reject(self, served: Served, reason: str) -> None:
        super().reject(served, reason)
        self.refused.append(served)


class ReplayMachine(RuleBasedStateMachine):
    """A replay of a random trace, turn by turn."""

    replay: Replay
    watched: Watched

    @initialize(
        seed=st.integers(0, 10**6),
        blocks=st.sampled_from([9, 14, 20, 30]),
        policy=st.sampled_from(POLICIES),
        strategy=st.sampled_from(STRATEGIES),
        paused_share=st.sampled_from([0.0, 0.3, 1.0]),
        drafts=st.sampled_from([0, 3]),
        reuse=st.sampled_from([True, True, False]),
    )
    def build(self, seed: int, **chosen: Any) -> None:
        config = small_config(
            cache__num_blocks=chosen["blocks"],
            cache__num_checkpoints=4,
            prefix__policy=chosen["policy"],
            prefix__strategy=chosen["strategy"],
            prefix__reuse=chosen["reuse"],
            scheduler__paused_share=chosen["paused_share"],
            scheduler__speculative__draft_tokens=chosen["drafts"],
        )
        self.replay = build_replay(config, random_requests(seed, 30, 8, LONG))
        self.scheduler = self.replay.scheduler
        self.watched = Watched(self.replay.outcome)
        self.scheduler._observer = self.watched
        self.before_s, self.paused_before, self.over = 0.0, list[Served](), False

    @rule(turns=st.integers(1, 200))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.paused_before = list(self.scheduler.paused)
            evictions = {served: served.evictions for served in self.paused_before}
            self.over = self.over or not self.scheduler.turn()
            self.check()
            self.check_fairness(evictions)

    def check_fairness(self, evictions: dict[Served, int]) -> None:
        """None that was paused goes on before an older one that was paused too."""
        still = {served.number for served in self.scheduler.paused}
        resumed = [
            served.number
            for served in self.paused_before
            if served.number not in still and served.evictions == evictions[served]
        ]
        kept = [served.number for served in self.paused_before if served.number in still]
        if resumed and kept:
            assert max(resumed) < min(kept)

    def check(self) -> None:
        scheduler, ledger = self.scheduler, self.scheduler.ledger
        assert scheduler.clock.now_s >= self.before_s
        self.before_s = scheduler.clock.now_s
        held = everyone(scheduler)
        if isinstance(ledger, BlockLedger):
            own = sum(each.blocks - each.committed * ledger.per_shared for each in held)
            assert own == ledger.private
        assert ledger.free + ledger.private + ledger.shared + ledger.cached == ledger.total
        assert min(ledger.free, ledger.private, ledger.shared, ledger.cached) >= 0
        for each in held:
            assert each.blocks >= self.replay.memory.group.blocks_for(each.position)
        if isinstance(ledger, BlockLedger) and ledger._index is not None:
            stats = ledger._index.stats()
            assert (stats.held, stats.evictable) == (ledger._held, ledger._evictable)
        numbers = [each.number for each in scheduler.paused]
        assert numbers == sorted(numbers)
        assert len(scheduler.prompts.checkpoints) <= (self.replay.memory.num_checkpoints or 0)

    @invariant()
    def nobody_is_lost(self) -> None:
        scheduler = self.scheduler
        told = [each.number for each in self.watched.ended + self.watched.refused]
        inside = [each.number for each in [*scheduler.waiting, *everyone(scheduler)]]
        seen = Counter(told + inside)
        assert set(seen.values()) <= {1}
        assert len(seen) == scheduler._arrivals._next

    def teardown(self) -> None:
        if not hasattr(self, "replay"):
            return
        while not self.over:
            self.over = not self.scheduler.turn()
            self.check()
        self.nobody_is_lost()
        ledger = self.scheduler.ledger
        assert len(self.watched.ended) + len(self.watched.refused) == 30
        assert (ledger.private, ledger.shared) == (0, 0)
        tokens = sum(each.output_tokens for each in self.watched.ended)
        assert self.watched.output_tokens == tokens
        computed = self.scheduler.computed_tokens + self.scheduler.prompts.tally.saved_tokens
        assert computed >= sum(each.input_tokens for each in self.watched.ended)


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=40, stateful_step_count=12)
