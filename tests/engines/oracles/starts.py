"""Random starts of SGLang with what its configurator prints; ``python -m`` this asks again.

Where answers of ours and the planner's differed: prefixes not kept, no overlap, a start that is
refused, ranks of a pipeline, limits that do not divide among the replicas. 0.5.21 to 0.5.23, each
in a folder ``sglang-VERSION`` of ``DSV4KV_ENGINES``, the newest in ``sglang``.
"""

import random
from functools import cache
from typing import Any

from dsv4kv.engines.names import find_engine
from tests.engines.oracles.asking import HERE, keep, read_kept
from tests.engines.oracles.planned import GIB, answered, model_of

FILE = HERE / "sglang_starts.jsonl.gz"
VERSIONS = ("0.5.21", "0.5.22", "0.5.23")
STARTS = 120
"""Of each version."""
MADE = "DSV4PoolConfigurator.calculate_pool_sizes, its logger and its errors"


def draw_starts(version: str) -> list[dict[str, Any]]:
    """Starts of a version, without answers."""
    return [_draw(version, random.Random(f"start {seed}")) for seed in range(STARTS)]


def _draw(version: str, draw: random.Random) -> dict[str, Any]:
    name = draw.choice(["v4-flash", "v4-pro", "v4.1-flash"])
    model, stages = model_of(name), draw.choice([1, 1, 2, 3, 4])
    if model.kind == "v41" and stages > 2:  # a stage without a source divides by zero there
        stages = 2
    rank, dp = draw.randrange(stages), draw.choice([1, 2, 8])
    total = draw.choice([None, 100, 250, 256])
    drafts = draw.choice([0, 0, 4])
    sizes = find_engine(f"sglang:{version}").stage_layers(model.num_layers, stages)
    first, little = sum(sizes[:rank]), draw.random() < 0.5
    return {
        "model": name,
        "version": version,
        "arch": "sm_90",
        "names": ["fp8_ds_mla", "fp8_ds_mla", "mxfp4" if model.kind == "v41" else "fp8"],
        "kind": model.kind,
        "ratios": list(model.compress_ratios),
        "owners": list(model.kv_owners or ()),
        "layers": model.num_layers,
        "held": [first, first + sizes[rank]],
        "stages": stages,
        "rank": rank,
        "dp": dp,
        "mega": False,
        "requests": total,
        "ratio": draw.choice([None, None, 0.05]),
        "page": 256,
        "chunk": draw.choice([8192, 16_384]) // dp,
        "context": model.max_context_tokens,
        "encoder": False,
        "drafts": int(drafts > 0 and rank == stages - 1),
        "draft_tokens": drafts,
        "overlap": draw.random() < 0.5,
        "prefix_cache": draw.random() < 0.5,
        "state": "fp32",
        "memory": int(draw.uniform(0.01, 3) * GIB if little else draw.uniform(3, 60) * GIB),
    }


@cache
def read_starts() -> tuple[dict[str, Any], ...]:
    """All starts with their answers."""
    return tuple(read_kept(FILE))


def ask_starts() -> list[dict[str, Any]]:
    """Every version's answers."""
    packages = {each: f"sglang-{each}" for each in VERSIONS} | {VERSIONS[-1]: "sglang"}
    return [
        row
        for version, package in packages.items()
        for row in answered("sglang", draw_starts(version), package)
    ]


if __name__ == "__main__":
    keep(FILE, MADE, ask_starts())
