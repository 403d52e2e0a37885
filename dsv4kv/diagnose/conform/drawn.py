"""What is asked of each engine's manager: pools, settings, and what its rule says of hits."""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any, Protocol

from dsv4kv.diagnose.conform.sequences import (
    PAGE,
    Prompt,
    Sequence,
    draw_operations,
    draw_prompts,
    serve_prompts,
)
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import RULES, find_engine
from dsv4kv.engines.prefix import Pool, run_rule
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request

Traits = Mapping[str, bool]
_MODEL = "v4-flash"
_LENGTH, _PROMPTS = 200, 16
_SERVED = 4  # of so many sequences one has the hits of prompts one after the other
_ROOMY = 8000  # blocks in which nothing is evicted
_HOSTED = 200  # pages of a sequence's prompts and more
_RETENTION = {
    rule.flags["retention"]: name for name, rule in RULES.items() if "retention" in rule.flags
}


def draw_vllm(draw: random.Random, traits: Traits, *, host: bool = False) -> Sequence:
    """A sequence for vLLM: a pool of at least what it demands at its start.

    With ``host`` memory a prompt that is served alone finds the GPU's cache empty: all that it
    hits is loaded, and it hits what it would hit of a GPU's cache in which nothing is evicted.
    """
    served, newest = draw.random() < 1 / _SERVED, traits["lookahead"]
    chunk, longest, ahead = draw.choice([256, 512, 1024]), draw.choice([3, 6]), draw.random() < 0.5
    context = longest * PAGE + 64
    room = least_blocks(context, (1 + ahead) * chunk) + draw.choice([0, 4, 20, 60, 200, 600])
    speculation = draw.choice([*SPECULATIONS] if newest else ["none", "mtp+connector"])
    retention = draw.choice([*_RETENTION]) if traits["retention"] else None
    # The rules know evictions of the newest version's steps, one at a time and without the blocks
    # that drafts take beyond a prompt.
    evicts = newest and not ahead and speculation == "none"
    settings = {
        "rule": _RETENTION[retention],
        "blocks": _ROOMY if served and (host or not evicts) else room,
        "context": context,
        "chunk_tokens": chunk,
        "running": draw.choice([2, 4, 8]),
        "ahead": ahead,
        "retention": retention,
        "speculation": speculation,
        "draft_tokens": draw.choice([1, 3]),
    }
    if host:
        settings |= _draw_host(draw, served=served)
    if host and served:
        # Where prompts part, and of a draft's last window, host memory keeps less than our rules.
        settings |= {"rule": _RETENTION[None], "retention": None}
        settings["speculation"] = draw.choice(["none", "mtp+connector"])
    return _operate(draw, settings, longest, served=served)


def _draw_host(draw: random.Random, *, served: bool) -> dict[str, Any]:
    """Chunks of host memory, and how they are used."""
    return {
        "host_chunks": _ROOMY if served else draw.choice([20, 60, 200, 1000, _ROOMY]),
        "host_policy": draw.choice(["lru", "arc"]),
        "host_threshold": 0 if served else draw.choice([0, 0, 2]),
        "host_prompts_only": draw.random() < 0.5,
        "host_sync_bytes": draw.choice([0, 0, 1 << 20, 1 << 40]),
    }


def draw_sglang(draw: random.Random, traits: Traits, *, host: bool = False) -> Sequence:
    """A sequence for SGLang: pages of context, and of windows for all that run and a chunk.

    With ``host`` memory a prompt that is served alone finds the GPU's cache empty.
    """
    served, longest = draw.random() < 1 / _SERVED, draw.choice([3, 6])
    chunk, running = draw.choice([1, 2, 4]), draw.choice([2, 4, 8])
    pages = 2 * (longest + 2) + draw.choice([0, 3, 10, 40])
    windows = min(pages, 2 * running + chunk + draw.choice([1, 3, 10, 40]))
    dense = draw.random() < 0.5
    if served:  # of older versions the rules know what a roomy pool hits that keeps all windows
        spare = draw.choice([0, 1, 3, 10]) if traits["newest"] else _ROOMY // 10
        windows, dense = longest + spare, dense or not traits["newest"]
        pages = 10 * windows  # the share that it has by default
    if host and served:
        pages, windows, dense = _HOSTED, _HOSTED, True
    settings: dict[str, Any] = {
        "rule": "sglang-v4:dense" if dense else "sglang-v4:tail",
        "blocks": pages,
        "windows": windows,
        "context": (longest + 2) * PAGE,
        "chunk_tokens": chunk * PAGE,
        "running": running,
        "speculation": draw.choice(["none", "mtp"]),
    }
    if host:
        policies = ["write_through", "write_back", "write_through_selective"]
        settings |= {
            "host_ratio": 1.0 if served else draw.choice([0.3, 1.0, 3.0]),
            "host_policy": draw.choice(policies[:2] if served else policies),
        }
    return _operate(draw, settings, longest, served=served)


class Draw(Protocol):
    """Draws a sequence for an engine of such traits, with host memory or without."""

    def __call__(self, draw: random.Random, traits: Traits, *, host: bool = False) -> Sequence:
        """See there."""


DRAWN: dict[str, Draw] = {
    "vllm": draw_vllm,
    "sglang": draw_sglang,
}
"""How sequences are drawn, by engine."""


def _operate(
    draw: random.Random, settings: dict[str, Any], longest: int, *, served: bool
) -> Sequence:
    drawn = draw_prompts(draw, count=_PROMPTS, longest=longest)
    prompts = [prompt for prompt in drawn if len(prompt[1]) <= longest]
    host = any(name.startswith("host_") for name in settings)
    if served:
        # Of a prompt of whole pages host memory has all but its last token, a GPU's cache a page
        # less; our rules are the GPU's.
        partial = "host_chunks" in settings
        asked = [prompt for prompt in prompts if not partial or prompt[0] % PAGE]
        return expect(Sequence(settings, serve_prompts(asked, [0] * len(asked))))
    operations = draw_operations(draw, prompts, _LENGTH, drafts=3, host=host)
    return Sequence(settings, tuple(operations))


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
    pool = Pool(
        collect_paths(Request(float(n), t, 1, tuple(p), PAGE) for n, (t, p) in asked),
        settings["blocks"] * PAGE,
        PAGE,
        load_model(_MODEL),
        settings["chunk_tokens"],
        SPECULATIONS[settings["speculation"]],
        windows=settings.get("windows"),
    )
    hits = run_rule(settings["rule"], pool).resumed_tokens.tolist()
    return replace(sequence, operations=serve_prompts(prompts, hits))


@cache
def least_blocks(context: int, in_flight: int) -> int:
    """Blocks without which vLLM does not start: of one request as long as there may be."""
    model = load_model(_MODEL)
    deployment = Deployment(model, choose_formats(model, indexer="fp8"), context, in_flight)
    return ceil(
        find_engine(RULES[_RETENTION[0]].engine).capacity(deployment, 1 << 40).units_per_request
    )
