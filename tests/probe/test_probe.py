"""A server is asked, and what was planted in it is found."""

from dataclasses import replace

import pytest

from dsv4kv.probe.experiments import PLANNED, Conclusion, Examination, Known, examine
from dsv4kv.probe.questioner import Ledger, Questioner
from tests.examples import FULL
from tests.probe.fakes import FakeServer, Setting, draw_setting, open_cache

SEEDS = range(20 if FULL else 3)
ENGINES = ("vllm", "vllm-v4", "sglang", "sglang-v4")
ANSWERS = [question for planned in PLANNED.values() for question in planned.answers]
NEXT = {"none": 0, "dspark": 0, "mtp": 1}


def probe(server: FakeServer, most_tokens: int = 10**8, most_s: float = 1e9) -> Examination:
    return examine(Questioner(server, Ledger(most_tokens, most_s), 7), Known())


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


def test_a_cache_that_finds_nothing_with_drafts_is_a_fault() -> None:
    told = values(probe(server(finds=False, drafts=True, counts=True)))
    assert told["hits"].level == "bad"
    assert "the server drafts" in told["hits"].answer
    assert all(each.level == "undecided" for name, each in told.items() if name != "hits")


@pytest.mark.parametrize("salts", [True, False])
def test_answers_that_a_hit_makes_wrong_are_a_fault(salts: bool) -> None:
    told = values(probe(server(stale=0.5, noise=0.02, salts=salts)))
    assert told["equality"].level == "bad"
    assert [name for name, each in told.items() if each.level == "bad"] == ["equality"]


def test_a_tier_that_stores_and_is_never_read_is_a_fault() -> None:
    told = values(probe(server(stored=1.0, counts=True)))
    assert (told["tier"].value, told["tier"].level) == ("never read", "bad")


def test_a_tier_that_is_read_is_no_fault() -> None:
    told = values(probe(server(stored=1.0, counts=True, restores=True)))
    assert (told["tier"].value, told["tier"].level) == ("read", "note")


@pytest.mark.parametrize(("lead", "trail"), [(1, 0), (3, 5)])
def test_tokens_that_a_server_puts_around_prompts_are_counted(lead: int, trail: int) -> None:
    setting = Setting("vllm", 300, 128, speculation="mtp")
    bare, found = (values(probe(server(setting, **about)))
                   for about in ({}, {"lead": lead, "trail": trail}))  # fmt: skip
    undecided = {"next token"} if trail else set()
    assert {name for name, each in found.items() if each.level == "undecided"} == undecided
    assert {name: each.value for name, each in found.items() if name not in undecided} == {
        name: each.value for name, each in bare.items() if name not in undecided
    }


def test_words_that_are_no_token_each_leave_the_step_undecided() -> None:
    found = values(probe(server(splits=7)))
    assert found["hits"].level == "good"
    assert found["step"].level == "undecided"
    assert "other tokens than words" in found["step"].answer


def test_counters_tell_where_answers_do_not() -> None:
    setting = Setting("vllm", 300, 128)
    check(setting, probe(server(setting, tells=False, counts=True)))


def test_time_tells_of_hits_where_nothing_else_does_and_of_nothing_else() -> None:
    told = values(probe(server(tells=False)))
    assert told.pop("hits").value == "by time"
    assert {each.level for each in told.values()} == {"undecided"}
    assert "--enable-prompt-tokens-details" in told["step"].answer


def test_without_tokens_or_times_hits_are_undecidable() -> None:
    assert {each.level for each in probe(server(tells=False, finds=False)).conclusions} == {
        "undecided"
    }


@pytest.mark.parametrize("dies_at", [1, 2, 40, 120])
def test_what_was_learned_of_a_server_that_dies_is_kept(dies_at: int) -> None:
    found = probe(server(dies_at=dies_at))
    told = values(found)
    assert "ConnectionResetError" in found.died
    assert not [each for each in found.conclusions if each.level == "bad"]
    assert (told["hits"].level == "good") == (dies_at > 2)
    assert (told["step"].value == 256) == (dies_at == 120)
    assert told["capacity"].level == "undecided"


@pytest.mark.parametrize("most_tokens", [1_000, 50_000, 400_000, 600_000])
def test_a_budget_of_tokens_is_never_exceeded_and_says_what_it_left_open(most_tokens: int) -> None:
    asked = Questioner(server(), Ledger(most_tokens, 1e9), 1)
    found = examine(asked, Known())
    assert asked.ledger.tokens <= most_tokens
    said = f"the budget of {most_tokens:,} tokens"
    assert any(said in each.answer for each in found.conclusions)


def test_a_budget_of_time_is_never_exceeded() -> None:
    fake = server()
    examine(Questioner(fake, Ledger(10**8, 5.0), 1), Known(wait_s=60.0))
    assert fake.clock_s <= 5.0


def test_every_question_is_answered_once_whatever_happens() -> None:
    for fake in (server(), server(finds=False), server(dies_at=50)):
        asked = [name for name in ANSWERS if name != "waiting"]
        assert sorted(each.question for each in probe(fake).conclusions) == sorted(asked)


def test_a_wait_is_asked_for_where_it_is_wanted() -> None:
    found = examine(Questioner(server(), Ledger(10**8, 1e9), 1), Known(wait_s=60.0))
    assert values(found)["waiting"].level == "good"
