"""Random settings with what vLLM 0.33.0's dummy runs ask for; ``python -m`` this asks again."""

import json
import random
from typing import Any

from tests.engines.oracles.asking import HERE, ask
from tests.engines.oracles.planned import model_of

FILE = HERE / "vllm_workspaces_0.33.0.jsonl"
SETTINGS = 60


def draw_settings() -> list[dict[str, Any]]:
    """Settings, without answers."""
    return [_draw(random.Random(f"workspace {seed}")) for seed in range(SETTINGS)]


def _draw(draw: random.Random) -> dict[str, Any]:
    name = draw.choice(["v4-flash", "v4-pro", "v4.1-flash", "v3.2"])
    model = model_of(name)
    mxfp4 = model.kind != "flat" and draw.random() < 0.5
    longest = model.max_context_tokens
    return {
        "model": name,
        "kind": model.kind,
        "ratio": min(filter(None, model.compress_ratios)),
        "context": draw.choice([4096, 33_793, 131_072, 262_144, 262_145, longest]),
        "step": draw.choice([2048, 8192, 8448, 16_384]),
        "topk": model.index_topk,
        "mxfp4": mxfp4,
    }


def ask_workspaces() -> list[dict[str, Any]]:
    """Every setting with vLLM's own bytes."""
    settings = draw_settings()
    answers = ask("vllm_workspaces.py", "vllm", settings)
    return [row | {"answer": answer} for row, answer in zip(settings, answers, strict=True)]


def read_workspaces() -> list[dict[str, Any]]:
    """All settings with their answers."""
    return [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(row) + "\n" for row in ask_workspaces()), "utf-8")
