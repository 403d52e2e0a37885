"""Runs the systems: their conversations, a stand-in for the model, and what is checked.

A token's KV depends on all tokens before it, as a model's does, and the next token on that KV: a
row that is stale, shifted or another request's shows in every token after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dsv4kv.bench.run import run_case
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SYSTEMS, ChatSection, SystemsConfig
from dsv4kv.model.config import LayerSpec, build_schedule
from dsv4kv.model.presets import load_model

Tokens = NDArray[np.int32]
Kv = NDArray[np.uint64]

KV_WORDS = 16
"""Words of a token's KV, 8 bytes each; the first stands for the token and all before it."""

EXPERTS, TOP_K = 256, 6  # n_routed_experts and num_experts_per_tok of DeepSeek-V4-Flash
VOCABULARY = 129_280  # and its vocab_size
_FACTOR = 6364136223846793005  # of Knuth's MMIX generator: odd, so it has an inverse
_INVERSE = pow(_FACTOR, -1, 2**64)


@dataclass(frozen=True)
class Model:
    """Stands for a model: its KV, its next token, and the experts that ``layers`` route to."""

    layers: tuple[LayerSpec, ...]

    def compute(self, tokens: Tokens, before: Kv | None) -> Kv:
        """KV of tokens int32[T], uint64[T, words]; ``before`` is the KV of the last before them.

        The first word is h' = a · h + t + 1 modulo 2^64, for all tokens together.
        """
        count = len(tokens)
        powers = np.cumprod(np.full(count, _FACTOR, dtype=np.uint64))
        inverse = np.cumprod(np.full(count, _INVERSE, dtype=np.uint64))
        start = np.uint64(0) if before is None else before[0]
        history = powers * (start + np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * inverse))
        spread: Kv = history[:, None] * np.arange(1, 2 * KV_WORDS, 2, dtype=np.uint64)
        return spread

    def next_token(self, last: Kv) -> Tokens:
        """The token after one whose KV is ``last``, uint64[words]: int32[1]."""
        token = int(np.bitwise_xor.reduce(last >> np.uint64(20))) % VOCABULARY
        return np.array([token], dtype=np.int32)

    def route(self, tokens: Tokens, kv: Kv) -> NDArray[np.int16]:
        """Experts of tokens: int16[T, layers, k], by token id or by history as layers route."""
        places = np.arange(1, len(self.layers) * TOP_K + 1, dtype=np.uint64)
        factors = places.reshape(len(self.layers), TOP_K) * np.uint64(_FACTOR)
        hashed = np.array([spec.routes_by_id for spec in self.layers])
        source = np.where(hashed, tokens.astype(np.uint64)[:, None] + np.uint64(1), kv[:, :1])
        experts = (source[:, :, None] * factors) >> np.uint64(40)
        chosen: NDArray[np.int16] = (experts % np.uint64(EXPERTS)).astype(np.int16)
        return chosen


@dataclass(frozen=True, eq=False)
class Turn:
    """The ``number``-th question of a user; ``prompt`` int32 is all that was said, and it."""

    user: int
    number: int
    prompt: Tokens
    answer_tokens: int


class Chat:
    """Asks each user's next question when the one before is answered; then one more user joins."""

    def __init__(self, section: ChatSection, seed: int) -> None:
        self._section, self._users = section, iter(range(section.users))
        draw = np.random.default_rng(seed)
        self._system = draw.integers(VOCABULARY, size=section.system_tokens).astype(np.int32)

    def join(self, count: int) -> list[Turn]:
        """The first questions of users who join."""
        return [self._ask(user, 0, self._system) for user in islice(self._users, count)]

    def after(self, turn: Turn, said: Tokens) -> list[Turn]:
        """What follows on a turn with which ``said`` has been said, prompt and answer."""
        joined = self.join(1)
        if turn.number + 1 == self._section.turns:
            return joined
        return [self._ask(turn.user, turn.number + 1, said), *joined]

    def _ask(self, user: int, number: int, before: Tokens) -> Turn:
        # of each user's own: what is asked must not depend on the order of the answers
        draw = np.random.default_rng([user, number, int(self._system.sum())])
        section = self._section
        question = draw.integers(VOCABULARY, size=draw.integers(1, section.question_tokens + 1))
        prompt = np.concatenate([before, question.astype(np.int32)])
        return Turn(user, number, prompt, int(draw.integers(1, section.answer_tokens + 1)))


Unit = Literal["B", "tokens", "blocks", "requests"]


@dataclass(frozen=True)
class Row:
    """One quantity of one system."""

    quantity: str
    unit: Unit
    value: float


@dataclass
class Outcome:
    """What running one system gives, and comparisons with what a run without a cache gives."""

    system: str
    rows: list[Row] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=dict)  # comparisons made, by what was compared
    failures: list[str] = field(default_factory=list)  # a sentence for each that differed

    def check(self, what: str, right: bool, sentence: str, count: int = 1) -> None:
        """Count ``count`` comparisons; keep the sentence if they are not right."""
        self.checks[what] = self.checks.get(what, 0) + count
        if not right:
            self.failures.append(f"{self.system}: {sentence}")

    def check_answer(self, model: Model, turn: Turn, tokens: Tokens, kv: Kv) -> None:
        """Compare a finished turn's KV uint64[T, words] and tokens int32[T]."""
        who = f"question {turn.number} of user {turn.user}"
        right = np.array_equal(kv, model.compute(tokens, None))
        self.check("KV", right, f"the KV of {who} is another's.", len(tokens))
        said = turn.prompt
        for _ in range(turn.answer_tokens):  # worked out without any cache
            said = np.concatenate([said, model.next_token(model.compute(said, None)[-1])])
        sentence = f"the answer to {who} is not the one without a cache."
        self.check("tokens", np.array_equal(tokens, said), sentence, turn.answer_tokens)

    def counted(self, quantity: str, unit: Unit, value: float) -> None:
        self.rows.append(Row(quantity, unit, float(value)))


def _bench_config(config: SystemsConfig) -> BenchConfig:
    section = config.pools
    prompts = {"kind": "uniform", "low": section.prompt_tokens}
    synthetic = {
        "requests": 2 * section.requests,  # each slot has a second owner
        "input": prompts | {"high": section.prompt_tokens + section.requests},
        "output": {"kind": "fixed", "mean": section.decode_steps + 1},
    }
    drafts = {"draft_tokens": section.draft_tokens, "acceptance": 0.3}
    served = {"trace": None, "concurrency": section.requests, "step": "gather"}
    measured = {"verify_every": 1, "warmup_steps": 0, "memcpy_bytes": 2**20}
    context = 2 * section.prompt_tokens + 1024
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": {"preset": config.model, "layers": section.layers},
            "cache": {"sharing": "layer", "max_context_tokens": context},
            "workload": {**served, "synthetic": synthetic, "speculative": drafts},
            "measure": {"seed": config.seed, **measured},
        }
    )


def run_pools(config: SystemsConfig, _: Model) -> Outcome:
    """Every layer has pages and a table of its own: ``dsv4kv bench`` on the CPU."""
    case = run_case({}, _bench_config(config), lambda _: None)
    outcome = Outcome("pools")
    for name, count in case.verification.by_operation.items():
        outcome.check(name, True, "", count)
    problems = case.verification.failures or ([case.error] if case.error else [])
    outcome.failures += [f"pools: {problem}" for problem in problems]
    assert case.cache is not None
    assert case.totals is not None
    parts = {
        "pages of the layers": ("main", "indexer"),
        "windows and states of the layers": ("window", "state"),
        "block tables": ("tables",),
    }
    for quantity, names in parts.items():
        size = sum(pool.allocated_bytes for pool in case.cache.pools if pool.name in names)
        outcome.counted(quantity, "B", size)
    outcome.counted("requests served", "requests", case.totals.requests)
    outcome.counted("max blocks held", "blocks", case.totals.peak_blocks)
    outcome.counted("drafted tokens rolled back", "tokens", case.totals.rolled_back_tokens)
    return outcome


def run_systems(
    config: SystemsConfig, on_system: Callable[[str, int, int], None]
) -> list[Outcome]:
    """Run them; ``on_system`` is called with the next one, and how many of all are done."""
    torch.set_num_threads(1)
    model = Model(build_schedule(load_model(config.model)))
    outcomes: list[Outcome] = []
    names = list(SYSTEMS) if config.run == "all" else [config.run]
    for name in names:
        on_system(name, len(outcomes), len(names))
        outcomes.append(SYSTEMS[name].load()(config, model))
    return outcomes
