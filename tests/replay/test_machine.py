"""Random arrivals and turns: what must hold after every one of them."""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv4kv.core.policies import POLICIES
from dsv4kv.core.prompts import IdealCache
from dsv4kv.core.served import Arrivals, Served
from dsv4kv.replay.build import Replay, build_replay
from tests.examples import examples
from tests.replay.scenes import LONG, SHORT, everyone, random_requests, small_config

STRATEGIES = ("full", "periodic:512", "zero", "zero:bounded", "ends", "ends+junctions")


CHOICES: dict[str, tuple[Any, ...]] = {
    "blocks": (9, 14, 20, 30, 50),
    "grain": ((128, 128), (128, 128), (128, 256), (256, 128), (512, 128)),
    "longest": (2, 4, 8),
    "outputs": (LONG, SHORT),
    "checkpoints": (0, 1, 2, 4, 100),
    "reuse": (True, True, True, False),
    "prefix__policy": tuple(POLICIES),
    "prefix__strategy": STRATEGIES,
    "prefix__defer": (True, True, False),
    "scheduler__step_tokens": (128, 300, 4096),
    "scheduler__paused_share": (0.0, 0.3, 1.0, 1.0),
    "scheduler__speculative__draft_tokens": (0, 0, 3),
}


class ReplayMachine(RuleBasedStateMachine):
    """A replay of a random trace, turn by turn."""

    replay: Replay

    @initialize(
        seed=st.integers(0, 10**6),
        chosen=st.fixed_dictionaries({n: st.sampled_from(v) for n, v in CHOICES.items()}),
    )
    def choose(self, seed: int, chosen: dict[str, Any]) -> None:
        self.build(seed, **chosen)

    def build(
        self,
        seed: int,
        blocks: int,
        grain: tuple[int, int],
        longest: int,
        outputs: tuple[int, ...],
        checkpoints: int,
        reuse: bool,
        **settings: Any,
    ) -> None:
        """``grain``: tokens of a block of the trace and of the cache."""
        config = small_config(
            cache__num_blocks=blocks,
            cache__block_tokens=grain[1],
            cache__num_checkpoints=checkpoints,
            prefix__reuse=reuse,
            **settings,
        )
        requests = random_requests(seed, 30, longest, outputs, grain[0])
        self.watch(build_replay(config, requests))

    def watch(self, replay: Replay) -> None:
        self.replay, self.scheduler = replay, replay.scheduler
        self.told = self.scheduler.ended = list[Served]()
        self.before_s, self.over = 0.0, False

    @rule(turns=st.integers(1, 200))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.over = self.over or not self.scheduler.turn()
            self.check()

    def check(self) -> None:
        scheduler, ledger = self.scheduler, self.scheduler.cache
        assert scheduler.clock.now_s >= self.before_s
        self.before_s = scheduler.clock.now_s
        held = everyone(scheduler)
        if isinstance(ledger, IdealCache):
            own = sum(each.blocks - each.committed * ledger.per_shared for each in held)
            assert own == ledger.private
        assert ledger.private + ledger.shared + ledger.cached <= ledger.total
        assert min(ledger.available, ledger.private, ledger.shared, ledger.cached) >= 0
        for each in held:
            assert each.blocks >= self.replay.memory.group.blocks_for(each.position)
        self.check_progress()
        numbers = [each.number for each in scheduler.paused]
        assert numbers == sorted(numbers)
        assert scheduler.cache.windows <= (self.replay.memory.num_checkpoints or 0)

    def check_progress(self) -> None:
        """Whoever starts again computes what it had generated, too, and generates the rest."""
        scheduler = self.scheduler
        left = {served: served.left for served in scheduler.decoding}
        left |= {served: served.output_tokens - served.generated for served in scheduler.paused}
        for served, tokens in left.items():
            assert tokens > 0
            assert served.position + tokens == served.total_tokens
        for served in scheduler.prefilling:
            assert served.position < served.prompt_tokens
            assert served.prompt_tokens == served.input_tokens + served.generated

    @invariant()
    def nobody_is_lost(self) -> None:
        scheduler = self.scheduler
        told = [each.number for each in self.told]
        inside = [each.number for each in [*scheduler.waiting, *everyone(scheduler)]]
        seen = Counter(told + inside)
        assert set(seen.values()) <= {1}
        assert isinstance(scheduler._arrivals, Arrivals)
        assert len(seen) == scheduler._arrivals._next

    def teardown(self) -> None:
        if hasattr(self, "replay"):
            self.end()

    def end(self) -> None:
        """Serve what is left; nothing is held then, and every token is accounted for."""
        while not self.over:
            self.over = not self.scheduler.turn()
            self.check()
        self.nobody_is_lost()
        ledger = self.scheduler.cache
        assert len(self.told) == 30
        ended = [each for each in self.told if each.finished_s is not None]
        assert (ledger.private, ledger.shared) == (0, 0)
        tokens = sum(each.output_tokens for each in ended)
        assert self.replay.outcome.output_tokens == tokens
        tally = self.replay.prompts.tally
        computed = self.scheduler.computed_tokens + tally.saved_tokens
        assert computed >= sum(each.input_tokens for each in ended)
        told = tally.saved_tokens + sum(tally.lost.values()) + tally.in_flight_tokens
        assert told == tally.seen_tokens
        assert min(tally.lost.values(), default=0) >= 0


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = examples(60, stateful_step_count=12)
