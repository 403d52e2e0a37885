"""Random settings with what the engines' own planners make of them; ``python -m`` this asks again.

A file holds one JSON object a line: the first says which version answered and how, every other one
is a setting (as the program reads it), ``names`` of the formats, the ``model``, and ``answer``.
"""

import sys
from functools import cache
from itertools import groupby
from typing import Any

from dsv4kv.engines.contract import Deployment
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model
from tests.engines.oracles.asking import HERE, ask, keep, read_kept

VLLM, SGLANG = "vllm:0.33", "sglang:0.5.23"
NEWEST = "0.5.23"
"""Of SGLang; settings that name an older version are asked of it, in a folder of its own."""
PLANNERS = {
    "vllm": ("vllm_planner.py", "vllm_planner_0.33.0.jsonl.gz"),
    "sglang": ("sglang_pools.py", "sglang_pools_0.5.23.jsonl.gz"),
    "roles": ("sglang_pools.py", "sglang_roles_0.5.23.jsonl.gz"),
    "hicache": ("sglang_host.py", "sglang_host_0.5.23.jsonl.gz"),
    "offloading": ("vllm_host.py", "vllm_host_0.33.0.jsonl.gz"),
    "lmcache": ("lmcache_host.py", "lmcache_host_0.5.6.jsonl.gz"),
    "starts": ("sglang_pools.py", "sglang_starts.jsonl.gz"),
    "workspaces": ("vllm_workspaces.py", "vllm_workspaces_0.33.0.jsonl.gz"),
    "vllm defaults": ("vllm_planner.py", "vllm_defaults_0.33.0.jsonl.gz"),
    "sglang defaults": ("sglang_pools.py", "sglang_defaults_0.5.23.jsonl.gz"),
}
"""The program that answers, and what it answered: a setting each of a prefill or decode side
(``roles``), of host pools, of chunks in host memory (``offloading``, ``lmcache``), of what SGLang
0.5.21 to 0.5.23 print when they start, of vLLM's dummy runs, or of GPU pools alone; ``defaults``
are a ``case`` (model, GPU, TP and DP) with what the engine's own functions take unless it is given
(``tests/engines/defaults/recorded.jsonl``), not random."""


@cache
def model_of(name: str) -> DSV4Config:
    """A shipped model, read once."""
    return load_model(name)


def deployment_of(asked: dict[str, Any]) -> Deployment:
    """A setting as a deployment."""
    model, total = model_of(asked["model"]), asked.get("requests")
    overlap, dp = asked.get("overlap", True), asked.get("dp", 1)
    return Deployment(
        model=model,
        formats=choose_formats(model, *asked["names"]),
        max_context_tokens=asked["context"],
        in_flight_tokens=asked.get("flight") or (1 + overlap) * asked["chunk"],
        layers=tuple(range(*asked["held"]))
        if asked.get("stages") != 1 and "held" in asked
        else None,
        draft_layers=asked["drafts"],
        concurrency=total and total // dp,
        draft_tokens=asked["draft_tokens"],
        block_tokens=asked.get("block") or asked["page"],
        state_bytes=2 if asked.get("state") == "bf16" else 4,
        window_ratio=asked.get("ratio"),
        arch=asked["arch"],
        window_slots="own" if asked.get("encoder") else None,
        role=asked.get("role"),
        extra_slots=asked.get("extra_slots", 0),
        hisparse_ratio=asked.get("hisparse", 1),
        prefix_cache=asked.get("prefix_cache", True),
        overlap=overlap,
        stage=asked.get("rank", 0),
    )


@cache
def read_settings(name: str) -> tuple[dict[str, Any], ...]:
    """All settings of a planner with its answers."""
    return tuple(read_kept(HERE / PLANNERS[name][1]))


def answered(name: str) -> list[dict[str, Any]]:
    """The settings with the planner's answers now."""
    script, found = PLANNERS[name][0], list[dict[str, Any]]()
    engine = script.partition("_")[0]
    rows = groupby(read_settings(name), lambda asked: str(asked.get("version", NEWEST)))
    for version, group in rows:
        asked = [{key: row[key] for key in row if key != "answer"} for row in group]
        answers = ask(script, engine if version == NEWEST else f"{engine}-{version}", asked)
        found += [row | {"answer": told} for row, told in zip(asked, answers, strict=True)]
    return found


if __name__ == "__main__":
    for name in sys.argv[1:] or PLANNERS:
        keep(HERE / PLANNERS[name][1], answered(name))
