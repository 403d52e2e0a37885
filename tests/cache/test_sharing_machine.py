"""Shared prefixes, copies of their last block, rollback and too little memory: all or nothing."""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cache.machines import Cache
from tests.examples import examples

DRAWS = st.randoms(use_true_random=False)


class SharingMachine(RuleBasedStateMachine):
    """Every step is refused exactly where a plain count of holders says that blocks are lacking.

    Whatever is refused leaves every block with the requests that had it.
    """

    @initialize(sharing=st.sampled_from(["model", "model", "type", "layer"]))
    def build(self, sharing: str) -> None:
        self.cache = Cache(sharing, 0)

    @rule(draw=DRAWS)
    def something_happens(self, draw: Random) -> None:
        self.cache.draw = draw
        self.cache.happen()

    @rule(seed=st.integers(0, 2**20), events=st.integers(1, 60))
    def much_happens(self, seed: int, events: int) -> None:
        self.cache.draw = Random(seed)
        for _ in range(events):
            self.cache.happen()
            self.cache.check()

    @precondition(lambda self: self.cache.tokens)
    @rule()
    def step_twice(self) -> None:
        slots, tokens = list(self.cache.tokens), list(self.cache.tokens.values())
        self.cache.prepare(slots, tokens, tokens)

    @precondition(lambda self: self.cache.tokens)
    @rule()
    def all_go_back_and_come_again(self) -> None:
        """What requests shared is each one's own afterwards, if there is room."""
        slots, tokens = list(self.cache.tokens), list(self.cache.tokens.values())
        none = [0] * len(slots)
        self.cache.prepare(slots, tokens, none)
        self.cache.prepare(slots, none, tokens)

    @invariant()
    def check_everything(self) -> None:
        self.cache.check()


TestSharing = SharingMachine.TestCase
TestSharing.settings = examples(100, stateful_step_count=20)
