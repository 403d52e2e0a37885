"""Deployments with the engines' own defaults, and what their planners make of them.

``python -m tests.engines.defaults.planned`` asks vLLM 0.33.0 and SGLang 0.5.23 again, as
``tests.engines.oracles.planned`` does. Tokens of a step, their overlap and the limit of requests
are those that ``recorded.jsonl`` has of their own functions; the memory of a new row is that of
``budget``.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

from dsv4kv.budget.answer import Answer, answer
from dsv4kv.budget.fit import available_bytes
from dsv4kv.engines.formats import Site, stored_formats
from tests.budget.questions import ask
from tests.engines.oracles.planned import SGLANG, VLLM, about, answered

FILE = KNOWN = Path(__file__).parent / "planned.jsonl"
RECORDED = Path(__file__).parent / "recorded.jsonl"
ENGINES = {"vllm": VLLM, "sglang": SGLANG}
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
CASES = list(
    product(("v4-flash", "v4-pro", "v4.1-flash"), ("h200", "b200", "b300"), ((8, 1), (1, 8)))
)


def default_answer(
    engine: str, model: str, gpu: str, layout: tuple[int, int], memory: int | None = None
) -> Answer:
    """What ``budget`` answers where nothing but these is given; ``memory`` is that for KV."""
    tp, dp = layout
    given = {} if memory is None else {"kv_memory": str(memory)}
    return answer(
        ask(engine=ENGINES[engine], model=model, gpu=gpu, tp=f"{tp}", dp=f"{dp}", **given)
    )


def recorded(engine: str, gpu: str, layout: tuple[int, int]) -> dict[str, Any]:
    """What the engine's own functions take by default."""
    rows = map(json.loads, RECORDED.read_text("utf-8").splitlines())
    (found,) = [
        row
        for row in rows
        if row["engine"] == engine
        and VERSIONS[engine] in row["versions"]
        and (row["gpu"], row["layout"]) == (gpu, [*layout, 1])
    ]
    assert isinstance(found, dict)
    return found


def setting_of(
    engine: str, model: str, gpu: str, layout: tuple[int, int], memory: int | None
) -> dict[str, Any]:
    """A deployment as the planner's script reads it; without ``memory`` by that of ``budget``."""
    found = default_answer(engine, model, gpu, layout)
    scenario, told = found.scenario, recorded(engine, gpu, layout)
    config, arch = scenario.config, scenario.gpu.arch
    site = Site(ENGINES[engine], config, arch, layout[0])
    names = [name for name, _ in stored_formats(site, {}).values()]
    low = config.kind == "v41"
    both = about(model, arch, names) | {
        "drafts": 0,
        "draft_tokens": 0,
        "context": config.max_context_tokens,
        "memory": memory or available_bytes(scenario, 0, found.context),
    }
    if engine == "vllm":
        return both | {
            "selecting": list(range(config.num_layers)),
            "capability": int((arch or "").removeprefix("sm_")),
            "dtype": "auto",
            "plain": False,
            "mega": site.mega,
            "mxfp4": False,
            "block": 64 if low and arch == "sm_90" else 128 if low else 256,
            "flight": told["overlap"] * told["step_tokens"],
        }
    return both | {
        "held": [0, config.num_layers],
        "mega": low and site.sglang_mega,
        "requests": 256 // layout[1],
        "ratio": None,
        "page": 256,
        "chunk": told["step_tokens"] // layout[1],
        "encoder": False,
        "overlap": True,
        "prefix_cache": True,
        "state": "fp32",
        "dim": 656,
        "item": 1,
    }


def main() -> None:
    """Write the file anew, for the memory that it has; the same answers give the same bytes."""
    rows = map(json.loads, KNOWN.read_text("utf-8").splitlines())
    known = {json.dumps([row["engine"], row["case"]]): row["memory"] for row in rows}
    lines = []
    for engine in VERSIONS:
        memory = [known.get(json.dumps([engine, case])) for case in CASES]
        settings = [setting_of(engine, *case, of) for case, of in zip(CASES, memory, strict=True)]
        for case, told in zip(CASES, answered(engine, settings), strict=True):
            lines.append({"engine": engine, "case": case, "memory": told["memory"],
                          "answer": told["answer"]})  # fmt: skip
    FILE.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
