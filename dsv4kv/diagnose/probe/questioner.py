"""Asks a server prompts that it has never seen, within a budget of tokens and time."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv4kv.errors import StoreUnavailable
from dsv4kv.record.metrics import Counted

if TYPE_CHECKING:
    from dsv4kv.diagnose.probe.client import OpenAiServer

Prompt = tuple[int, ...]
"""Token ids."""
FIRST_ID, IDS = 1024, 2**14
"""Ordinary tokens: of every vocabulary, and behind the special ones that come first."""
ENDINGS = 8
"""Ends that differ from one another at their first token."""


class Unreachable(StoreUnavailable):
    """A server that does not answer, or no longer."""


class Refused(Exception):
    """A prompt that a server does not take: too long, or a field that it does not know."""


class Spent(Exception):
    """What is to be asked next would go beyond the budget."""


@dataclass(frozen=True)
class Answer:
    """What a server said to one prompt."""

    prompt_tokens: int  # as it counts them
    cached_tokens: int | None  # of these, found in its cache; None where it does not report that
    ttft_s: float  # until the first token came
    words: tuple[str, ...] = ()  # the tokens of its answer
    likely: tuple[Mapping[str, float], ...] = ()  # log-probabilities of the likeliest, in nats
    cached_by: Mapping[str, int] = field(default_factory=dict)
    """The same by tier, where it reports that."""
    took_s: float = 0.0  # from when it was asked, and not too busy to answer, to the end


@dataclass
class Ledger:
    """What may be spent, and what is."""

    most_tokens: int  # of all prompts and answers
    most_s: float  # of all of it
    tokens: int = 0
    prompts: int = 0
    s_per_token: float = 0.0

    def admit(self, tokens: int, left_s: float) -> None:
        """Refuse what is expected to go beyond; raises ``Spent``."""
        if self.tokens + tokens > self.most_tokens:
            raise Spent(f"the budget of {self.most_tokens:,} tokens is used up")
        if left_s <= tokens * self.s_per_token:
            raise Spent(f"the budget of {self.most_s:,.0f} s is used up")


class Questioner:
    """Asks, and keeps count.

    Attributes:
        ledger: What is spent.
        counted: Growth of the server's counters, where they are read.
        drafts: Whether its counters speak of drafts.
        restored: Tokens that it says it found beyond the GPU.
        overcounted: The first answer that has more cached tokens than there are, and how many are.
    """

    def __init__(
        self, server: "OpenAiServer", ledger: Ledger, seed: int, begun_s: float | None = None
    ) -> None:
        """``begun_s``: when the budget of time began, on the server's clock; None for now."""
        self.server, self.ledger = server, ledger
        self.counted, self.drafts = Counted(), False
        self.overcounted: tuple[Answer, int] | None = None
        self.restored = 0
        self._random = random.Random(seed)
        self._begun_s = server.now_s() if begun_s is None else begun_s
        self._sample()

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.ledger.most_s - (self.server.now_s() - self._begun_s)

    def draw(self, tokens: int, ending: int = 0) -> Prompt:
        """Random tokens; of two endings the first tokens differ."""
        drawn = self._random.choices(range(FIRST_ID, FIRST_ID + IDS), k=tokens)
        drawn[:1] = [each - each % ENDINGS + ending for each in drawn[:1]]
        return tuple(drawn)

    def ask(self, prompt: Prompt, *, outputs: int = 1, salt: str | None = None) -> Answer:
        """The answer to a prompt.

        Raises ``Spent`` where it does not fit the budget, and as ``OpenAiServer.ask``.
        """
        ledger, tokens = self.ledger, len(prompt) + outputs
        ledger.admit(tokens, self.left_s)
        ledger.tokens += tokens
        ledger.prompts += 1
        answer = self.server.ask(prompt, outputs, salt, max(self.left_s, 0.001))
        ledger.s_per_token = max(ledger.s_per_token, answer.took_s / max(len(prompt), 512))
        self._sample()
        if (answer.cached_tokens or 0) > answer.prompt_tokens:
            self.overcounted = self.overcounted or (answer, answer.prompt_tokens)
        self.restored += sum(answer.cached_by.get(tier, 0) for tier in ("host", "storage"))
        return answer

    def hit(self, prompt: Prompt, sent: int | None = None) -> int:
        """Tokens of a prompt that were cached; the server is known to report them.

        ``sent``: how many of them were asked before, where that is not all.
        """
        answer = self.ask(prompt)
        hit = answer.cached_tokens or 0
        if sent is not None and hit > sent:
            self.overcounted = self.overcounted or (answer, sent)
        return hit

    def _sample(self) -> None:
        sampled = self.server.counters()
        if sampled is not None:
            self.counted.add(sampled[0])
            self.drafts |= sampled[1]
