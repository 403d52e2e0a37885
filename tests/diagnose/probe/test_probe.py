"""A server is asked, and what was planted in it is found."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, takewhile
from typing import Any

import pytest

from dsv4kv.diagnose.probe import PLANNED, Conclusion, Examination, examine
from dsv4kv.diagnose.questioner import Answer, Ledger, Prompt, Questioner, Refused
from tests.diagnose.probe.fakes import FakeServer, Setting, draw_setting, open_cache
from tests.examples import FULL

SEEDS = range(20 if FULL else 3)
ENGINES = ("vllm", "vllm-v4", "sglang", "sglang-v4")
ANSWERS = [question for planned in PLANNED.values() for question in planned.answers]
NEXT = {"none": 0, "dspark": 0, "mtp": 1}


def probe(server: Any, ledger: Ledger | None = None) -> Examination:
    return examine(Questioner(server, ledger or Ledger(10**8, 1e9), 7))


def values(found: Examination) -> dict[str, Conclusion]:
    return {each.question: each for each in found.conclusions}


def server(setting: Setting | None = None, **faults: object) -> FakeServer:
    cache = open_cache(setting or Setting("vllm", 300))
    return replace(FakeServer(cache), **faults)  # type: ignore[arg-type]


def check(setting: Setting, found: Examination) -> None:
    """Everything that was set is recovered, and nothing is called a fault."""
    told = values(found)
    size, v4 = setting.page_tokens, setting.engine.endswith("v4")
    assert told["step"].value == size
    if setting.speculation == "mtp+connector":
        lost = (size, 0) if not v4 else (63, 64) if setting.retention is None else (255, 256)
        assert (told["drafts"].value, told["next token"].value) == lost
    else:
        assert told["next token"].value == NEXT[setting.speculation]
    branches = told["branches"].value
    match setting.retention:
        case None:
            assert branches == size or told["branches"].level == "undecided"
        case 0:
            assert branches == 0 or setting.engine == "sglang-v4"
        case interval:
            assert branches == interval
    if not v4:
        held = told["capacity"].value
        assert isinstance(held, int)
        assert abs(held - setting.pages * size) <= size
    assert not [each for each in found.conclusions if each.level == "bad"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_settings_are_recovered_and_noise_is_no_fault(engine: str, seed: int) -> None:
    setting = draw_setting(engine, seed)
    check(setting, probe(server(setting, noise=0.02, seed=seed, salts=bool(seed % 2))))


@pytest.mark.parametrize(
    ("about", "question", "level", "says"),
    [
        ({"finds": False, "drafts": True, "counts": True}, "hits", "bad", "the server drafts"),
        ({"tells": False}, "hits", "undecided", "--enable-prompt-tokens-details"),
        ({"stale": 0.5, "noise": 0.02, "salts": False}, "equality", "bad", "WRONG"),
        ({"stale": 0.5, "noise": 2.0}, "equality", "undecided", "two cold answers differ"),
        ({"stale": 1.0}, "equality", "bad", "WRONG"),  # cold answers are equal to the bit
        ({"stale": 0.2}, "equality", "note", "no more than rounding makes of other shapes"),
        ({"stored": 1.0, "counts": True}, "tier", "bad", "is never read"),
        ({"stored": 1.0, "counts": True, "restores": True}, "tier", "note", "is read back"),
    ],
)
def test_what_is_planted_is_found_and_nothing_else(
    about: dict[str, Any], question: str, level: str, says: str
) -> None:
    told = values(probe(server(**about)))
    assert told[question].level == level
    assert says in told[question].answer
    assert {name for name, each in told.items() if each.level == "bad"} <= {question}
    if {"tells", "finds"} & {*about}:
        others = {each.level for name, each in told.items() if name != "hits"}
        assert others == {"undecided"}


@pytest.mark.parametrize("most_tokens", [1_000, 50_000, 400_000, 600_000])
def test_a_budget_of_tokens_is_never_exceeded_and_says_what_it_left_open(most_tokens: int) -> None:
    ledger = Ledger(most_tokens, 1e9)
    found = probe(server(), ledger)
    assert ledger.tokens <= most_tokens
    said = f"the budget of {most_tokens:,} tokens"
    assert any(said in each.answer for each in found.conclusions)


def test_a_budget_of_time_is_never_exceeded() -> None:
    fake = server()
    probe(fake, Ledger(10**8, 5.0))
    assert fake.clock_s <= 5.0


def test_every_question_is_answered_once_whatever_happens() -> None:
    for fake in (server(), server(finds=False), server(dies_at=50)):
        assert sorted(each.question for each in probe(fake).conclusions) == sorted(ANSWERS)


@pytest.mark.parametrize("by_chance", [False, True])
def test_replicas_behind_one_address_are_not_taken_for_a_cache(by_chance: bool) -> None:
    caches, draw = [open_cache(Setting("vllm", 300)) for _ in range(2)], random.Random(1)
    turns = cycle((1, 0))

    def serve(prompt: Prompt) -> int:
        return caches[draw.randrange(2) if by_chance else next(turns)](prompt)

    found = probe(FakeServer(serve))
    assert {each.level for each in found.conclusions} == {"undecided"}
    assert "replicas behind one address" in values(found)["step"].answer


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_of_a_cache_that_loses_at_random_no_size_is_told(share: float) -> None:
    draw, cache = random.Random(5), open_cache(Setting("vllm", 300))
    found = values(probe(FakeServer(lambda prompt: cache(prompt) * (draw.random() >= share))))
    assert {found[name].level for name in ("step", "drafts", "capacity")} == {"undecided"}


def test_prompts_that_were_asked_before_with_the_same_seed_are_noticed() -> None:
    fake = server(Setting("vllm", 3000))
    first, again = (probe(fake, Ledger(500_000, 1e9)) for _ in range(2))
    assert values(first)["branches"].level == "good"
    assert {each.level for each in again.conclusions} == {"undecided"}
    assert "the same --seed was asked before" in values(again)["hits"].answer


class Longest(FakeServer):
    """Takes prompts of up to so many tokens."""

    longest = 4000

    def ask(self, prompt: Prompt, *about: Any) -> Answer:
        if len(prompt) > self.longest:
            raise Refused("the server refused a prompt (400: maximum context length)")
        return super().ask(prompt, *about)


def test_a_server_of_short_prompts_is_asked_short_ones() -> None:
    told = values(probe(Longest(open_cache(Setting("vllm", 300)))))
    assert (told["hits"].level, told["step"].value) == ("good", 256)
    assert told["branches"].answer == "the server takes no prompts that are long enough"


@pytest.mark.parametrize(
    ("counts", "question"),
    [
        (lambda hit: min(hit, 256), "hits"), (lambda hit: hit // 512 * 256, "hits"),
        (lambda hit: 4096 * (hit >= 4096), "step"),
    ],
)  # fmt: skip
def test_hits_of_little_are_a_fault(counts: Callable[[int], int], question: str) -> None:
    """OpenAI-like servers may count blocks, or no more than so many tokens."""
    cache = open_cache(Setting("vllm", 300))
    ledger = Ledger(10**8, 1e9)
    told = values(probe(FakeServer(lambda prompt: counts(cache(prompt))), ledger))
    assert [name for name, each in told.items() if each.level == "bad"] == [question]
    assert told["capacity"].level == "undecided"
    assert ledger.tokens < 600_000


@pytest.mark.parametrize("more", [128, 256])
def test_more_cached_tokens_than_a_prompt_has_are_a_fault(more: int) -> None:
    """A server that reports a block too many of every hit."""
    cache = open_cache(Setting("vllm", 300))
    told = values(probe(FakeServer(lambda prompt: (hit := cache(prompt)) and hit + more)))
    assert told["hits"].level == "bad"
    assert "more than there are" in told["hits"].answer
    assert {each.level for name, each in told.items() if name != "hits"} == {"undecided"}


@pytest.mark.parametrize("compared", [256, 4_096])
def test_hits_of_tokens_that_were_never_sent_are_a_fault(compared: int) -> None:
    """A cache that takes prompts for equal whose first tokens are."""
    longest, cache = Counter[Prompt](), open_cache(Setting("vllm", 300))

    def serve(prompt: Prompt) -> int:
        start, most = prompt[:compared], (len(prompt) - 1) // 256 * 256
        false = min(longest[start], most) if len(prompt) > compared else 0
        longest[start] = max(longest[start], most)
        return max(cache(prompt), false)

    told = values(probe(FakeServer(serve)))
    assert told["hits"].level == "bad"
    assert "of them were ever sent" in told["hits"].answer
    levels = {each.level for name, each in told.items() if name in ("growing", "equality")}
    assert levels == {"undecided"}


def test_one_stale_hit_of_six_is_a_fault() -> None:
    fake, noise = server(noise=0.02), random.Random(1)

    def output(prompt: Prompt, outputs: int, wrong: float) -> Any:
        stale = wrong if outputs > 1 and noise.random() < 0.1 else 0.0
        return FakeServer._output(fake, prompt, outputs, stale)

    fake.stale = 1.0
    fake._output = output  # type: ignore[method-assign]
    assert values(probe(fake))["equality"].level == "bad"


@pytest.mark.parametrize(
    ("ends", "listed", "why"),
    [
        (1, 9, "answers have 1 to 8 tokens"),
        (8, 1, "no log-probabilities of words that were not chosen"),
    ],
)
def test_answers_that_tell_less_are_not_called_equal(ends: int, listed: int, why: str) -> None:
    fake = server()

    def output(prompt: Prompt, outputs: int, wrong: float) -> Any:
        words, likely = FakeServer._output(fake, prompt, outputs, 0.0)
        few = [dict(list(each.items())[:listed]) for each in likely]
        return (words[:ends], few[:ends]) if wrong else (words, few)

    fake.stale = 1.0
    fake._output = output  # type: ignore[method-assign]
    found = values(probe(fake))["equality"]
    assert (found.level, why in found.answer) == ("undecided", True)


class Shrinking:
    """An LRU cache of blocks that loses one of them for ever with every tenth prompt."""

    def __init__(self, blocks: int, size: int = 256) -> None:
        self._blocks, self._size, self._asked = blocks, size, 0
        self._held: dict[Prompt, None] = {}

    def __call__(self, prompt: Prompt) -> int:
        self._asked += 1
        self._blocks -= self._asked % 10 == 0
        keys = [prompt[:end] for end in range(self._size, len(prompt) + 1, self._size)]
        hits = list(takewhile(self._held.__contains__, keys[: (len(prompt) - 1) // self._size]))
        for key in reversed(keys):
            self._held.pop(key, None)
            self._held[key] = None
        for key in list(self._held)[: max(0, len(self._held) - self._blocks)]:
            del self._held[key]
        return self._size * len(hits)


def test_a_pool_that_shrinks_is_a_fault() -> None:
    told = values(probe(FakeServer(Shrinking(300))))
    assert told["step"].value == 256
    assert told["capacity"].level == "bad"
    assert "the pool SHRINKS" in told["capacity"].answer


def test_a_tier_that_stores_what_is_asked_for_again_is_no_fault() -> None:
    """A prompt that is lost after it was asked for once was never stored there."""
    fake, seen = server(counts=True), Counter[Prompt]()
    cold = fake.cache

    def serve(prompt: Prompt) -> int:
        seen[prompt] += 1
        hit = cold(prompt)
        stored = 256.0 * (seen[prompt] == 2)
        loaded = 256.0 * (seen[prompt] > 3 and hit < 1024)
        for name, more in (("store", stored), ("load", loaded)):
            key = f"vllm:kv_offload_{name}_tokens"
            fake.values[key] = fake.values.get(key, 0.0) + more
        return hit + int(loaded)

    fake.cache = serve
    assert values(probe(fake))["tier"].value == "read"
