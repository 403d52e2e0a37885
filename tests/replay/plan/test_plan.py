"""The cheapest deployment: true bounds, a search that finds it, a command that starts it."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dsv4kv.budget.layout import Layout
from dsv4kv.errors import ConfigError
from dsv4kv.replay.plan.question import Question, Slo, busiest, parse_slos, poisson, unseen_tokens
from dsv4kv.replay.plan.search import WINDOW, Search, Tally, list_kinds, plan
from dsv4kv.replay.plan.trial import Kind, Split, name_args, open_server, parse_splits, simulate
from dsv4kv.traces.request import Request
from tests.replay.clock.test_fit import run

MODEL = "v4-flash"
SETTINGS = [f"model.preset={MODEL}"]
LOOSE = parse_slos(["ttft_p90=100s", "tpot_p50=10s"])


def small_trace(seed: int, count: int = 40, gap_s: float = 0.05) -> list[Request]:
    """Prompts of one to twenty blocks of 512 tokens, half of them a longer version of another."""
    draw, now_s, made = Random(seed), 0.0, list[Request]()
    for number in range(count):
        ids: Sequence[int] = tuple(draw.choice(made).prefix_hashes) if number % 2 else ()
        new = draw.randint(1, 20)
        ids = (*ids[:20], *(1000 * number + each for each in range(new)))
        made.append(Request(now_s, 512 * len(ids), draw.randint(2, 60), ids, 512))
        now_s += draw.expovariate(1 / gap_s)
    return made


def question(seed: int, *slos: str, **chosen: float) -> Question:
    """About a small trace, with 8 GPUs at most."""
    made = Question(small_trace(seed), parse_slos(slos), most_gpus=8)
    return replace(made, **chosen)  # type: ignore[arg-type]


def open_search(
    asked: Question, kinds: Sequence[Kind], tally: Tally | None = None, window: int = WINDOW
) -> Search:
    return Search(asked, kinds, busiest(asked.requests, window), tally or Tally())


def kinds_of(
    asked: Question,
    engine: str = "sglang",
    tally: Tally | None = None,
    gpus: Sequence[str] = ("h200", "b200"),
    splits: Sequence[Split | None] = (None,),
) -> list[Kind]:
    routers = ["round_robin", "dynamo"]
    return list_kinds(asked, SETTINGS, engine, gpus, routers, MODEL, tally or Tally(), splits)


def brute_force(asked: Question, kinds: Sequence[Kind]) -> float | None:
    """The least cost, of every number of replicas of every kind, simulated."""
    costs = (
        replicas * kind.gpus * asked.price(kind.server.gpu)
        for kind in kinds
        for replicas in range(1, asked.most_gpus // kind.gpus + 1)
        if replicas > 1 or kind.router == "round_robin"
        if simulate(asked, asked.requests, kind, replicas, asked.speed).meets
    )
    return min(costs, default=None)


SPLITS = (Split(1, 1), Split(2, 1))


@pytest.mark.parametrize(
    ("seed", "ttft", "splits"),
    [(1, "1500ms", (None,)), (2, "2500ms", (None,)), (1, "2500ms", SPLITS)],
)
def test_brute_force_finds_nothing_cheaper(
    seed: int, ttft: str, splits: Sequence[Split | None]
) -> None:
    asked = question(seed, f"ttft_p90={ttft}", "tpot_p50=30ms", speed=4.0)
    asked = replace(asked, requests=asked.requests[:16])
    everything = replace(asked, slos=LOOSE)  # whose bounds rule nothing out
    everything_asked = [
        replace(kind, bounds=replace(kind.bounds, question=asked))
        for kind in kinds_of(everything, gpus=["b200"], splits=splits)
    ]
    best = brute_force(asked, everything_asked)
    kinds = kinds_of(asked, gpus=["b200"], splits=splits)
    found = plan(open_search(asked, kinds)).best
    assert best is not None
    assert found is not None
    assert found.meets
    assert found.cost == best


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("seed", [3, 4])
def test_no_request_is_faster_than_the_bounds(engine: str, seed: int) -> None:
    asked = replace(question(seed, "ttft_p90=100s", "tpot_p50=10s"), slos=LOOSE)
    for kind in kinds_of(asked, engine, splits=(None, Split(1, 1)))[::8]:
        for percent in (10.0, 50.0, 90.0):
            slos = (Slo("ttft", percent, 1e3), Slo("tpot", percent, 1e3))
            trial = simulate(replace(asked, slos=slos), asked.requests, kind, 2, 1.0)
            floor = np.percentile(kind.bounds.ttft_s, percent, method="lower")
            assert floor <= trial.values_s[f"ttft_p{percent:g}"]
            assert kind.bounds.tpot_s <= trial.values_s[f"tpot_p{percent:g}"]


@pytest.mark.parametrize("slo", ["ttft_p50=300ms", "ttft_p90=900ms", "latency_p50=800ms"])
@pytest.mark.parametrize("split", [None, Split(1, 1)])
def test_a_simulation_that_is_given_up_would_have_broken_a_limit(
    slo: str, split: Split | None
) -> None:
    asked = question(6, slo)
    kind = kinds_of(replace(asked, slos=LOOSE), splits=[split])[0]
    given_up = simulate(asked, asked.requests, kind, 1, 50.0)
    assert not given_up.meets
    assert not given_up.values_s
    assert simulate(asked, asked.requests, kind, 1, 50.0, to_end=True).excess(asked.slos) > 1
    for speed in (1.0, 2.0, 5.0, 10.0):
        quick, sure = (
            simulate(asked, asked.requests, kind, 1, speed, to_end=each) for each in (False, True)
        )
        assert quick.meets == sure.meets


def test_every_deployment_considered_is_ruled_out_or_simulated() -> None:
    asked, tally = question(1, "ttft_p90=900ms", "tpot_p50=30ms"), Tally()
    answer = plan(open_search(asked, kinds_of(asked, tally=tally, gpus=["b200"]), tally))
    assert sum(tally.pruned.values()) + len(answer.trials) == tally.considered == 52


@pytest.mark.parametrize("seed", [1, 2])
def test_a_safer_answer_is_what_a_search_with_its_limits_finds(seed: int) -> None:
    asked = question(seed, "ttft_p90=3s", speed=2.0)
    answer = plan(open_search(asked, kinds_of(asked, gpus=["b200"])))
    assert answer.best is not None
    safer = answer.safer or answer.best
    assert not safer.near(asked.slos)
    limits = tuple(replace(s, limit_s=s.limit_s / answer.best.error(s)) for s in asked.slos)
    tight = replace(asked, slos=limits)
    alone = open_search(tight, kinds_of(tight, gpus=["b200"])).find_cheapest()[0]
    assert (safer.kind.label, safer.units) == (alone.kind.label, alone.units)


def test_the_whole_trace_says_how_many_are_enough_and_not_its_fullest_window() -> None:
    burst = small_trace(1, count=30, gap_s=0.001)
    calm = [replace(each, arrival_s=100.0 + 10 * n) for n, each in enumerate(small_trace(2, 90))]
    asked = Question([*burst, *calm], parse_slos(["ttft_p50=500ms"]), most_gpus=64)
    kinds = [kind for kind in kinds_of(asked, gpus=["b200"]) if kind.server.label == "b200 TP2"]
    search = open_search(asked, kinds, window=30)
    answer = plan(search)
    assert answer.best is not None
    assert answer.best.requests == len(asked.requests)
    whole = brute_force(replace(asked, most_gpus=8), kinds)
    assert whole is not None
    assert answer.best.cost == whole
    assert answer.best.cost < search.find_cheapest()[0].cost


def test_with_think_times_a_queue_makes_requests_come_later_and_one_replica_may_do() -> None:
    session = [replace(each, session=0) for each in small_trace(1, gap_s=0.001)]
    asked = Question(session, parse_slos(["ttft_p90=2s"]), most_gpus=8)
    answers = {}
    for sessions in ("trace", "think"):
        settings = [*SETTINGS, f"fleet.sessions={sessions}"]
        gpus, routers = ["b200"], ["round_robin"]
        kinds = list_kinds(asked, settings, "sglang", gpus, routers, MODEL, Tally())
        (kind,) = [each for each in kinds if each.server.label == "b200 TP2"]
        answers[sessions] = kind.min_units(100.0), simulate(asked, session, kind, 1, 100.0).meets
    assert answers == {"trace": (2, False), "think": (1, True)}


def test_the_highest_rate_of_some_gpus_keeps_the_limits_and_a_higher_one_does_not() -> None:
    asked = replace(question(1, "ttft_p90=700ms"), exactly=True)
    kinds = [kind for kind in kinds_of(asked) if kind.server.label == "b200 TP8"][:1]
    best = plan(open_search(asked, kinds)).best
    assert best is not None
    assert best.gpus == 8
    assert best.meets
    assert not simulate(asked, asked.requests, kinds[0], 1, best.speed * 1.1).meets


def test_a_trace_too_short_to_say_what_rate_is_sustained_is_refused() -> None:
    asked = replace(question(1, "ttft_p90=20s"), exactly=True)
    kinds = [kind for kind in kinds_of(asked, gpus=["b200"]) if kind.server.label == "b200 TP8"]
    with pytest.raises(ConfigError, match="too few to say what rate it sustains"):
        plan(open_search(asked, kinds[:1]))


def test_prompt_tokens_seen_before_need_not_be_computed() -> None:
    first, longer = Request(0, 1024, 1, (1, 2), 512), Request(1, 1536, 1, (1, 2, 3), 512)
    assert unseen_tokens([first, longer, first]) == [1024, 512, 1]
    assert unseen_tokens([first, longer, first], any_order=True) == [1, 512, 1]


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (parse_slos, ["ttft=2s"], "write a time, its percentile and its limit"),
        (parse_slos, ["ttft_p99=0s"], "write a time"),
        (parse_slos, [f"ttft_p99={'9' * 400}s"], "at most a day"),
        (parse_slos, ["ttft_p99=2s", "ttft_p99=3s"], "has a limit already"),
        (parse_slos, ["tpot_p50=50ms"], "how long a request may wait"),
        (parse_slos, [], "how long a request may wait"),
        *((parse_splits, [text], "write prefill and decode replicas")
          for text in ("1", "0:1", "a:b", "-1:1", f"{'9' * 400}:1")),
        (partial(poisson, 10**400, 1, 1.0), 0, "give at most 2,147,483,647 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_for_is_refused(
    read: Callable[[Any], object], given: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(given)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--price", "h200=0", "--price", "b200=4"], "more than 0"),
        (["--price", "h200=nan", "--price", "b200=4"], "more than 0"),
        (["--price", "h100=2"], "h100 is not asked about: --gpu h200,b200"),
        (["--price", "h200=2"], "give one for b200"),
        (["--split", ""], "--split '': name at least one"),
        (["--slo", "tpot_p50=9ms", "--isl", "9", "--osl", "1", "--rate", "1"],
         "every answer has one token"),
        (["--set", "cost.tp=2"], "plan decides cost.tp"),
        (["--set", "fleet.prefill.replicas=2"], "plan decides fleet.prefill"),
        (["--speed", "inf"], "Invalid value for '--speed'"),
    ],
)  # fmt: skip
def test_what_would_have_no_effect_or_no_sense_is_refused(words: list[str], said: str) -> None:
    trace = [] if "--isl" in words else ["builtin:chat"]
    done = run(["plan", *trace, "--slo", "ttft_p99=2s", *words])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())


def test_args_that_choose_a_layout_are_refused() -> None:
    asked, args = question(1, "ttft_p90=2s"), "--dp-size 2 --enable-dp-attention --ep-size 2"
    with pytest.raises(ConfigError, match=r"--args '--dp-size 2 .*layouts are searched"):
        open_server(asked, SETTINGS, "sglang", "h200", Layout(tp=2), args=args)


def test_half_a_character_in_args_is_replaced() -> None:
    assert name_args(["\udcff", ""]) == {"args 1": "?", "": ""}  # which JSON can hold


@pytest.mark.parametrize(("split", "speed"), [("none", "2000"), ("1:1", "200")])
def test_the_replay_of_a_plan_is_what_was_planned(split: str, speed: str, tmp_path: Path) -> None:
    slo = ["--slo", "ttft_p90=400ms", "--router", "round_robin", "--speed", speed]
    file = tmp_path / "plan.json"
    words = ["plan", "builtin:chat", "--gpu", "b200", "--split", split, *slo, "--json", str(file)]
    (line,) = (e for e in run(words).stdout.splitlines() if e.startswith("dsv4kv replay "))
    again = run([*shlex.split(line)[1:], "--set", "fleet.slo.ttft_ms=400", "--json", "-"])
    found = json.loads(again.stdout)["cases"][0]["replay"]["fleet"]
    best = json.loads(file.read_text())["best"]
    assert best["replicas"] > 1
    assert found["good_requests"] == round(best["good_share"] * best["requests"])
