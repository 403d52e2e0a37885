"""Random prompts with the names that engines give their pages and files; this asks them again.

``DSV4KV_ENGINES=FOLDER python -m tests.engines.oracles.named`` writes both files; the folder is
``make engines``'. SGLang's hash is compiled there: a C++ compiler, ninja and libssl-dev.
"""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES = {
    "sglang": HERE / "sglang_files_0.5.23.jsonl",
    "vllm": HERE / "vllm_files_0.33.0.jsonl",
}
SETTINGS = 12
MODELS = ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro", "/data/weights", "v4")
POOLS = ("kv", "swa", "deepseek_v4_c4", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128")


def draw_settings(engine: str) -> list[dict[str, Any]]:
    """Settings, without answers."""
    draw = {"sglang": _draw_sglang, "vllm": _draw_vllm}[engine]
    return [draw(random.Random(f"{engine} names {seed}")) for seed in range(SETTINGS)]


def _tokens(draw: random.Random, least: int) -> list[int]:
    return [draw.randrange(129_280) for _ in range(least + draw.randrange(3 * least))]


def _draw_sglang(draw: random.Random) -> dict[str, Any]:
    stages, ranks, page = draw.choice([1, 1, 2]), draw.choice([1, 1, 4]), draw.choice([16, 64])
    return {
        "tokens": _tokens(draw, page),
        "page": page,
        "extra_key": draw.choice([None, None, "", "tenant é"]),
        "salt": draw.choice([None, None, "s"]),
        "model": draw.choice(MODELS),
        "stages": stages,
        "stage": draw.randrange(stages),
        "ranks": ranks,
        "rank": draw.randrange(ranks),
        "tp": draw.choice([1, 4]),
        "pools": draw.sample(POOLS, 3),
    }


def _draw_vllm(draw: random.Random) -> dict[str, Any]:
    layers = [f"model.layers.{layer}.attn" for layer in range(draw.randrange(3))]
    agnostic = draw.random() < 0.5
    tp = draw.choice([1, 2, 8])
    return {
        "tokens": _tokens(draw, 16),
        "hash_tokens": draw.choice([4, 4, 16]),
        "seed": draw.choice([None, None, "0", "1234"]),
        "group": draw.randrange(5),
        "mapper": {
            "model_name": draw.choice(MODELS),
            "tokens_per_hash": 4,
            "blocks_per_file": draw.choice([1, 4]),
            "tp_size": tp,
            "pp_size": 1,
            "pcp_size": 1,
            "dcp_size": 1,
            "rank": draw.randrange(tp),
            "dtype": "torch.bfloat16",
            "kv_cache_groups": [{"tokens_per_block": 256, "layer_names": layers}],
            "parallel_agnostic": agnostic,
            "replicated_layout": agnostic and draw.random() < 0.5,
        },
    }


def ask(engine: str, folder: Path) -> list[dict[str, Any]]:
    """Every setting with the engine's own names."""
    settings = draw_settings(engine)
    told = subprocess.run(
        [folder / "bin" / "python", HERE / f"{engine}_files.py", folder / engine],
        input="".join(json.dumps(setting) + "\n" for setting in settings),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    return [row | {"answer": answer} for row, answer in zip(settings, answers, strict=True)]


def read(engine: str) -> list[dict[str, Any]]:
    """All settings with their answers."""
    return [json.loads(line) for line in FILES[engine].read_text("utf-8").splitlines()]


def main() -> None:
    """Write the files; the same answers give the same bytes."""
    for engine, file in FILES.items():
        rows = ask(engine, Path(os.environ["DSV4KV_ENGINES"]))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
