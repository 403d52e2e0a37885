"""Random sequences against an engine's manager, until so many operations are done."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any, Protocol

from dsv4kv.conform.sequences import (
    PAGE,
    Prompt,
    Sequence,
    draw_operations,
    draw_prompts,
    serve_prompts,
    shrink,
)
from dsv4kv.engines.cache import Pool
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.registry import find_engine
from dsv4kv.engines.rules import run_rule
from dsv4kv.engines.speculation import SPECULATIONS
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request

INVARIANTS = {
    "blocks": "no block is lost, or held by two that do not share it",
    "reads": "what a step reads is there in every family, of the request's own tokens",
    "hits": "a prompt hits what the rule says",
    "ends": "every request ends, and then the pool is empty",
    "calls": "the engine raises nothing",
}
"""What must hold after every operation, by name."""
RULES = {None: "vllm-v4:dense", 0: "vllm-v4:semantic", 4096: "vllm-v4:4096"}
"""vLLM's rules of hits by its retention interval in tokens."""
_LENGTH, _PROMPTS = 200, 16
_SERVED = 4  # of so many sequences one has the hits of prompts one after the other
_ROOMY = 8000  # blocks in which nothing is evicted


class Manager(Protocol):
    """An engine's manager that can be asked.

    Attributes:
        version: The engine's.
        traits: What of the rules of hits it has.
    """

    version: str
    traits: dict[str, bool]

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        """``kind``, ``says`` and ``at`` of what broke; empty where nothing did."""


@dataclass(frozen=True)
class Failure:
    """An invariant that broke.

    Attributes:
        kind: Which of ``INVARIANTS``.
        says: What was seen, at the end of the shortest sequence.
        sequence: The shortest that was found.
        found_after: Operations that had been done when it was first seen.
    """

    kind: str
    says: str
    sequence: Sequence
    found_after: int


@dataclass
class Verdict:
    """What came of a check.

    Attributes:
        operations: Done, and how many sequences they were.
        sequences: See there.
        failures: By invariant, the first of each.
        broken: Sequences by the invariant that broke first.
    """

    operations: int = 0
    sequences: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)


def conform(
    manager: Manager,
    operations: int,
    seed: int,
    show: Callable[[Verdict], None] = lambda _: None,
) -> Verdict:
    """Ask until so many operations are done; an invariant that breaks is shrunk once."""
    verdict = Verdict()
    while verdict.operations < operations:
        sequence = draw(random.Random(f"{seed} {verdict.sequences}"), manager)
        answer = manager.ask(sequence)
        verdict.sequences += 1
        verdict.operations += answer.get("at", len(sequence.operations))
        if answer:
            verdict.broken[answer["kind"]] += 1
            if answer["kind"] not in verdict.failures:
                found = _shortest(manager, sequence, answer["kind"], verdict.operations)
                verdict.failures[answer["kind"]] = found
        show(verdict)
    return verdict


def draw(random_: random.Random, manager: Manager) -> Sequence:
    """A sequence for an engine with such traits."""
    served = random_.random() < 1 / _SERVED
    known, newest = manager.traits, manager.traits["lookahead"]
    chunk, longest = random_.choice([256, 512, 1024]), random_.choice([3, 6])
    ahead = random_.random() < 0.5
    context = longest * PAGE + 64
    room = least_blocks(context, (1 + ahead) * chunk) + random_.choice([0, 4, 20, 60, 200, 600])
    speculation = random_.choice([*SPECULATIONS] if newest else ["none", "mtp+connector"])
    # The rules know evictions of the newest version's steps, one at a time and without the blocks
    # that drafts take beyond a prompt.
    evicts = newest and not ahead and speculation == "none"
    settings = {
        "blocks": _ROOMY if served and not evicts else room,
        "context": context,
        "chunk_tokens": chunk,
        "running": random_.choice([2, 4, 8]),
        "ahead": ahead,
        "retention": random_.choice([*RULES]) if known["retention"] else None,
        "speculation": speculation,
        "draft_tokens": random_.choice([1, 3]),
    }
    drawn = draw_prompts(random_, count=_PROMPTS, longest=longest)
    prompts = [prompt for prompt in drawn if len(prompt[1]) <= longest]
    if served:
        return expect(Sequence(settings, serve_prompts(prompts, [0] * len(prompts))))
    return Sequence(settings, tuple(draw_operations(random_, prompts, _LENGTH, drafts=3)))


@cache
def least_blocks(context: int, in_flight: int) -> int:
    """Blocks without which vLLM does not start: of one request as long as there may be."""
    model = load_model("v4-flash")
    formats = choose_formats(model, indexer="fp8")
    deployment = Deployment(model, formats, context, in_flight)
    return ceil(find_engine("vllm:0.33").capacity(deployment, 1 << 40).units_per_request)


def expect(sequence: Sequence) -> Sequence:
    """The same with what the rule says of every prompt that is served alone."""
    prompts: list[Prompt] = [
        (operation[3], operation[2])
        for operation in sequence.operations
        if operation[0] == "serve"
    ]
    if not prompts:
        return sequence
    asked, settings = enumerate(prompts), sequence.settings
    table = collect_paths(Request(float(n), t, 1, tuple(p), PAGE) for n, (t, p) in asked)
    speculation = SPECULATIONS[settings["speculation"]]
    chunk, blocks = settings["chunk_tokens"], settings["blocks"]
    pool = Pool(table, blocks * PAGE, PAGE, load_model("v4-flash"), chunk, speculation)
    hits = run_rule(RULES[settings["retention"]], pool).resumed_tokens.tolist()
    return replace(sequence, operations=serve_prompts(prompts, hits))


def _shortest(manager: Manager, sequence: Sequence, kind: str, after: int) -> Failure:
    def broken(shorter: Sequence) -> bool:
        return manager.ask(expect(shorter)).get("kind") == kind

    found = expect(shrink(sequence, broken))
    return Failure(kind, manager.ask(found)["says"], found, after)
