"""A recorded server against its replay: what was planted is what explains the difference.

The server is made: it finds what the engine's rule finds, with one thing changed, and tells what a
real one tells. So every token of the difference has a known cause.
"""

import json
import random
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.names import find_rule
from dsv4kv.engines.rule import ENGINE_BLOCK_TOKENS as PAGE_TOKENS
from dsv4kv.model.presets import load_model
from dsv4kv.record.folder import Record, Recording
from dsv4kv.record.server import Server
from dsv4kv.replay.against import Paced, Span
from dsv4kv.replay.rules import Pool
from dsv4kv.replay.server import settings_of
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import Request

MODEL = load_model("v4-flash")
BEGUN_S = 1_800_000_000.0
BLOCKS = {"vllm": 960, "sglang": 320}
RULES = {"vllm": "vllm-v4:semantic", "sglang": "sglang-v4:tail"}
CHUNK = 512


@dataclass(frozen=True)
class Scene:
    """A server, and what is different about it."""

    family: str = "vllm"  # whose
    blocks: int = 0  # of its cache; others are told
    restarts: tuple[float, ...] = ()  # when its cache began anew
    unheard: frozenset[int] = frozenset()  # numbers of requests that it served and nobody recorded
    tells: bool = True  # whether it tells with every answer what it found
    # whether prompts are found while they are computed; None as its engine does
    at_once: bool | None = None
    requests: list[Request] = field(default_factory=lambda: conversations(3))  # what it was asked

    @property
    def spans(self) -> list[Span]:
        """A request every few seconds that takes half a second to answer and a few to end."""
        return [Span(r.arrival_s, r.arrival_s + 0.5, r.arrival_s + 4.0) for r in self.requests]

    @cached_property
    def hits(self) -> list[int]:
        """What it finds."""
        blocks = self.blocks or BLOCKS[self.family]
        pool = Pool(collect_paths(self.requests), blocks * 256, 256, MODEL, CHUNK)
        rule, at_once = find_rule(RULES[self.family]), self.family == "vllm"
        at_once = at_once if self.at_once is None else self.at_once
        found = Paced(pool, rule, self.spans, at_once=at_once, emptied=self.restarts).run()
        assert not found.rejected
        return found.hits


def conversations(seed: int, count: int = 90) -> list[Request]:
    """Requests of twelve conversations, each turn a few blocks longer than the last."""
    draw, fresh = random.Random(seed), iter(range(1, 1 << 20))
    known: list[list[int]] = [[next(fresh) for _ in range(8)] for _ in range(12)]
    requests = []
    for number in range(count):
        chain = draw.choice(known)
        chain += [next(fresh) for _ in range(draw.choice([4, 8, 20]))]
        spare = draw.randrange(64)
        requests.append(Request(number * 3.0, len(chain) * 64 - spare, 40, tuple(chain[:-1]), 64))
    return requests


def record(folder: Path, scene: Scene) -> Path:
    """What is recorded of it: requests, and its metrics every five seconds."""
    now = [BEGUN_S - 1.0]
    recording = Recording(folder, clock=lambda: now[0])
    rows = zip(scene.requests, scene.spans, scene.hits, strict=True)
    moments: list[tuple[float, str, Record]] = [
        (span.begin_s, "requests", _row(number, request, span, hit, scene))
        for number, (request, span, hit) in enumerate(rows)
        if number not in scene.unheard
    ]
    end_s = scene.spans[-1].last_s
    moments += [(at * 5.0, "metrics", {}) for at in range(int(end_s / 5) + 2)]
    unheard_s = [scene.spans[number].begin_s for number in sorted(scene.unheard)]
    for at, stream, record_ in sorted(moments, key=lambda moment: moment[:2]):
        if unheard_s and at > unheard_s[-1]:  # it was ended, and goes on
            recording.__exit__()
            now[0], unheard_s = BEGUN_S + at, []
            recording = Recording(folder, clock=lambda: now[0])
        elif unheard_s and at >= unheard_s[0]:
            continue
        now[0] = BEGUN_S + at
        recording.write(stream, record_ or _sample(at, scene))
    recording.write("notes", _told(scene))
    recording.__exit__()
    return folder


def _row(number: int, request: Request, span: Span, hit: int, scene: Scene) -> Record:
    names = ("arrival_s", "first_s", "last_s")
    row: Record = {name: BEGUN_S + at for name, at in zip(names, span, strict=True)}
    row |= {"source": "requests:0", "id": number, "input_tokens": request.input_tokens}
    row |= {"output_tokens": request.output_tokens, "ids": list(request.prefix_hashes)}
    return row | {"grain": 64} | ({"cached_tokens": hit} if scene.tells else {})


def _sample(at: float, scene: Scene) -> Record:
    done = [number for number, span in enumerate(scene.spans) if span.begin_s <= at]
    hits = scene.hits
    found = sum(hits[number] for number in done)
    asked = sum(scene.requests[number].input_tokens for number in done)
    since = max((each for each in scene.restarts if each <= at), default=-100.0)
    values = {"process_start_time_seconds": BEGUN_S + since}
    if scene.family == "vllm":
        values |= {"vllm:prefix_cache_hits_total": found, "vllm:kv_cache_usage_perc": 0.1}
        values |= {"vllm:prefix_cache_queries_total": asked, "vllm:num_preemptions_total": 0}
    else:
        values |= {"sglang:cached_tokens_total": found, "sglang:prompt_tokens_total": asked}
        values |= {"sglang:max_total_num_tokens": BLOCKS["sglang"] * 256, "sglang:page_size": 256}
    return {"source": "metrics:0", "values": values}


def _told(scene: Scene) -> Record:
    settings = {"num_gpu_blocks": str(BLOCKS["vllm"] + 1)} if scene.family == "vllm" else {}
    return {"what": "server", "source": "metrics:0", "settings": settings}


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def against(folder: Path, *more: object) -> dict[str, Any]:
    """What ``replay --against`` says."""
    step = ("--set", f"scheduler.step_tokens={CHUNK}")
    done = run("replay", folder, "--against", *step, *more, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def causes(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {each["name"]: (each["low"], each["high"]) for each in found["causes"]}


@pytest.mark.parametrize("family", RULES)
def test_a_server_that_follows_the_rule_agrees_in_every_minute(
    family: str, tmp_path: Path
) -> None:
    scene = Scene(family)
    found = against(record(tmp_path / "server", scene))
    assert found["total"]["server"]["hit_tokens"] == sum(scene.hits) > 0
    assert found["difference_tokens"] == found["unexplained_tokens"] == 0
    for minute in found["minutes"]:
        assert minute["server"]["hit_tokens"] == minute["replay"]["hit_tokens"]
    rule = next(each for each in found["settings"] if each["key"] == "prefix.rule")
    assert rule["value"] == RULES[family]


@pytest.mark.parametrize("family", RULES)
@pytest.mark.parametrize("smaller", [False, True])
def test_what_one_cause_makes_is_named_and_explains_every_token(
    family: str, smaller: bool, tmp_path: Path
) -> None:
    whole, half = BLOCKS[family], BLOCKS[family] // 2
    scene, cause = Scene(family, restarts=(100.2, 190.4)), "the cache began anew"
    seen = "2, at 1:40, 3:10"
    if smaller:
        scene, cause = Scene(family, blocks=half), "a smaller pool than stated"
        seen = f"{half:,} of {whole:,} blocks fit what it found best"
    found = against(record(tmp_path / "server", scene))
    lost = found["difference_tokens"]
    assert lost < 0
    assert causes(found)[cause] == (lost, lost)
    assert next(each["seen"] for each in found["causes"] if each["name"] == cause) == seen
    assert found["unexplained_tokens"] == 0


def test_a_time_when_nobody_recorded_is_named_and_bounds_what_was_lost_in_it(
    tmp_path: Path,
) -> None:
    scene = Scene(unheard=frozenset(range(30, 45)))
    found = against(record(tmp_path / "server", scene))
    named = causes(found)
    low, high = named["recording paused"]
    assert low < 0 == high
    # conversations went on in between: what the server found of them nobody saw
    assert named["cached before the recording, or generated"][0] > 0
    assert found["unexplained_tokens"] == 0


@pytest.mark.parametrize("family", RULES)
def test_prompts_that_are_found_while_they_are_computed_are_a_cause_of_their_own(
    family: str, tmp_path: Path
) -> None:
    requests = [replace(each, arrival_s=0.2 * n) for n, each in enumerate(conversations(5))]
    scene = Scene(family, at_once=family != "vllm", requests=requests)
    found = against(record(tmp_path / "server", scene))
    low, high = causes(found)["prompts found while they are computed"]
    assert (low < 0) if family == "vllm" else (high > 0)
    assert low <= found["difference_tokens"] <= high
    assert found["unexplained_tokens"] == 0


def test_a_launch_command_tells_rule_model_and_steps(tmp_path: Path) -> None:
    folder = record(tmp_path / "server", Scene())
    command = "vllm serve deepseek-ai/DeepSeek-V4-Pro --prefix-cache-retention-interval 4096"
    command += " --max-num-batched-tokens 4096"
    found = run("replay", folder, "--against", "--command", command, "--json", "-")
    settings = {each["key"]: each["value"] for each in json.loads(found.stdout)["settings"]}
    assert settings == {
        "model.preset": "v4-pro",
        "prefix.rule": "vllm-v4:4096",
        "cache.num_blocks": str(BLOCKS["vllm"]),
        "scheduler.step_tokens": "4096",
    }


def refused(*words: object) -> str:
    done = run("replay", *words)
    assert done.exit_code in {2, 4}, done.output
    return " ".join(done.output.split())


def test_what_cannot_be_compared_is_refused_with_what_to_give(tmp_path: Path) -> None:
    assert "is no recording" in refused(tmp_path, "--against")
    assert "add --against" in refused(record(tmp_path / "recording", Scene()))
    assert "add --against" in refused(tmp_path, "--command", "vllm serve x")
    silent = record(tmp_path / "silent", Scene(tells=False))
    for path in silent.glob("metrics.*"):
        path.unlink()
    assert "did not say how many tokens it found" in refused(silent, "--against")
    with Recording(tmp_path / "lengths") as recording:
        row = {"source": "requests:0", "arrival_s": BEGUN_S, "input_tokens": 9}
        recording.write("requests", row | {"cached_tokens": 4})
    assert "no prompt has ids" in refused(tmp_path / "lengths", "--against")
    folder = record(tmp_path / "server", Scene())
    for path in folder.glob("metrics.*"):
        path.unlink()
    assert "whose server it is is not known" in refused(folder, "--against")


@pytest.mark.parametrize("size", ["0", "x", "9" * 5_000])
def test_a_size_that_no_server_has_is_not_known(size: str) -> None:
    settings = {"num_tokens": "640", "page_size": size, "block_size": size, "num_gpu_blocks": size}
    server = Server("vllm", settings, [], [], 0, None, [], None, [])
    known = {each.key: each.value for each in settings_of(server, None, None, None, None)}
    assert known.get("cache.block_tokens") is None
    assert known["cache.num_blocks"] == str(640 // PAGE_TOKENS)


def drawn(draw: random.Random) -> tuple[list[Request], list[Span]]:
    """Requests that overlap and generate, and share what they begin with."""
    chains: list[tuple[int, ...]] = [()]
    requests, spans = [], []
    for number in range(40):
        base = draw.choice(chains)
        own = range(1 + 100 * number, 1 + 100 * number + draw.randint(1, 5))
        chains.append((*base[: draw.randint(0, 8)], *own))
        begin_s = number * draw.choice([0.0, 0.1, 2.0])
        first_s = begin_s + draw.choice([0.0, 0.5])
        spans.append(Span(begin_s, first_s, first_s + draw.choice([0.0, 3.0, 30.0])))
        ids, output = chains[-1], draw.choice([0, 1, 300, 4_000])
        requests.append(Request(begin_s, 256 * len(ids) - draw.randint(0, 60), output, ids, 256))
    order = sorted(range(40), key=lambda number: spans[number].begin_s)
    return [requests[number] for number in order], [spans[number] for number in order]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("rule", ["vllm", "vllm-v4:semantic", "sglang", "sglang-v4:tail"])
def test_whoever_fits_is_served_and_the_pool_is_never_too_full(rule: str, at_once: bool) -> None:
    preempted = evicted = 0
    for seed in range(4):
        draw = random.Random(f"{rule} {seed}")
        requests, spans = drawn(draw)
        windows = 320 if rule.startswith("vllm-v4") else 0
        blocks = windows + draw.choice([16, 40, 200]) * (10 if ":tail" in rule else 1)
        pool = Pool(collect_paths(requests), blocks * 256, 256, MODEL, 512)
        looks = [0.5 * step for step in range(200)]
        emptied = [20.25] if seed % 2 else []
        found = Paced(
            pool, find_rule(rule), spans, at_once=at_once, emptied=emptied, looks=looks
        ).run()
        assert len(found.used) == len(looks)
        assert all(0 <= used <= blocks for used in found.used)
        pairs = zip(found.hits, requests, strict=True)
        assert all(0 <= hit < request.input_tokens for hit, request in pairs)
        preempted += len(found.preempted)
        evicted += len(found.evicted)
    assert evicted
    assert preempted or ":" in rule
