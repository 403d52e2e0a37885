"""Conversations: every turn begins with all that was said before, and all with the same prompt."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from dsv4kv.config.systems import ChatSection
from dsv4kv.systems.contents import Model, Tokens

_VOCABULARY = 129_280


@dataclass(frozen=True)
class Turn:
    """A question, and what it follows.

    Attributes:
        user: Who asks.
        number: The user's how-many-th question, from 0.
        prompt: int32: the conversation so far and the question.
        answer_tokens: Tokens to generate.
    """

    user: int
    number: int
    prompt: Tokens
    answer_tokens: int


class Chat:
    """Asks each user's next question when the one before is answered; then one more user joins."""

    def __init__(self, section: ChatSection, seed: int) -> None:
        """Draw what is asked; what is answered is the model's."""
        self._section = section
        self._random = np.random.default_rng(seed)
        self._users = iter(range(section.users))
        self._system = self._draw(section.system_tokens)

    def first(self) -> list[Turn]:
        """The first questions of the users who are there at the start."""
        return self._join(self._section.begin)

    def after(self, turn: Turn, said: Tokens) -> list[Turn]:
        """What follows on a turn with which ``said`` has been said, prompt and answer."""
        joined = self._join(1)
        if turn.number + 1 == self._section.turns:
            return joined
        return [self._ask(turn.user, turn.number + 1, said), *joined]

    def _join(self, count: int) -> list[Turn]:
        return [self._ask(user, 0, self._system) for user in islice(self._users, count)]

    def _ask(self, user: int, number: int, before: Tokens) -> Turn:
        # of each user's own: what is asked must not depend on the order of the answers
        draw = np.random.default_rng([user, number, int(self._system.sum())])
        section = self._section
        question = draw.integers(_VOCABULARY, size=draw.integers(1, section.question_tokens + 1))
        prompt = np.concatenate([before, question.astype(np.int32)])
        return Turn(user, number, prompt, int(draw.integers(1, section.answer_tokens + 1)))

    def _draw(self, count: int) -> Tokens:
        return self._random.integers(_VOCABULARY, size=count).astype(np.int32)


def generate(model: Model, turn: Turn) -> Tokens:
    """Prompt and answer as they must come out, worked out without any cache: int32."""
    tokens, last = turn.prompt, model.compute(turn.prompt, None)[-1]
    for _ in range(turn.answer_tokens):
        token = np.array([model.next_token(last)], dtype=np.int32)
        tokens, last = np.concatenate([tokens, token]), model.compute(token, last)[0]
    return tokens
