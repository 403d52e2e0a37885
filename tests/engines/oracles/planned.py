"""Random settings with what vLLM's own planner makes of them; ``python -m`` this asks it again.

A file holds one JSON object a line: the first says which version and source files answered, every
other one is a setting (as ``vllm_planner.py`` reads it), ``names`` of the formats, the ``model``,
and ``answer``. ``DSV4KV_ENGINES`` is the folder that ``make engines`` makes.
"""

import gzip
import json
import os
import random
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats

HERE = Path(__file__).parent
FILE = HERE / "vllm_planner_0.33.0.jsonl.gz"
SETTINGS = 500
ENGINE = "vllm:0.33"
GIB = 2**30
ABOUT = {
    "engine": "vllm",
    "version": "0.33.0",
    "sources": ["v1/core/kv_cache_planning.py", "v1/kv_cache_interface.py",
                "v1/attention/backends/mla/sparse_swa.py", "models/deepseek_v41/attention.py",
                "models/deepseek_v41/compressor.py", "models/deepseek_v4/attention.py",
                "model_executor/models/deepseek_v2.py"],
    "made": "get_kv_cache_groups and what it is counted with, on specs of the layers' own methods",
}  # fmt: skip
_BLOCKS = {"v4": (256, 512), "v41": (128, 256), "flat": (64, 128)}


@cache
def model_of(name: str) -> DSV4Config:
    """A shipped model, read once."""
    return load_model(name)


def draw_settings() -> Iterator[dict[str, Any]]:
    """All settings, without answers."""
    for seed in range(SETTINGS):
        yield _draw(random.Random(f"planner {seed}"))


def _draw(draw: random.Random) -> dict[str, Any]:
    name = draw.choice(["v4-flash", "v4-pro", "v4.1-flash", "v4.1-flash", "v3.2"])
    model, arch = model_of(name), draw.choice(["sm_90", "sm_100", "sm_103", "sm_120"])
    blackwell = arch in ("sm_100", "sm_103")
    plain = blackwell and model.kind != "flat" and draw.random() < 0.25
    dtype = draw.choice(["auto", "fp8"])
    if model.kind == "flat" and blackwell and draw.random() < 0.3:
        dtype = "nvfp4_ds_mla"
    backend = "FLASHINFER_MLA_SPARSE_DSV41" if plain else None
    mxfp4 = blackwell and model.kind != "flat" and draw.random() < 0.5
    tp = draw.choice([1, 4, 8, 16])
    site = Site(ENGINE, model, arch, tp, backend=backend, dtype=dtype)
    found = stored_formats(site, {"indexer": "mxfp4" if mxfp4 else None})
    smallest = 64 if model.kind == "v41" and arch == "sm_90" else _BLOCKS[model.kind][0]
    drafts = draw.choice([0, 0, 1, 3])
    context = draw.choice([4096, 33_792, 131_072, 912_128, 2**20])
    return {
        "model": name,
        "arch": arch,
        "names": [given for given, _ in found.values()],
        "kind": model.kind,
        "ratios": list(model.compress_ratios),
        "owners": list(model.kv_owners or ()),
        "layers": model.num_layers,
        "selecting": list(range(model.num_layers)),
        "capability": int(arch.removeprefix("sm_")),
        "dtype": dtype,
        "plain": plain,
        "mega": site.mega,
        "mxfp4": mxfp4,
        "drafts": drafts,
        "draft_tokens": draw.choice([1, 3, 5, 7]) if drafts else 0,
        "block": draw.choice([smallest, smallest, *_BLOCKS[model.kind][1:]]),
        "context": min(context, model.max_context_tokens),
        "flight": draw.choice([1, 2]) * draw.choice([2048, 8192, 8448, 16_384]),
        "memory": int(draw.uniform(2, 120) * GIB),
    }


def deployment_of(asked: dict[str, Any]) -> Deployment:
    """A setting as a deployment."""
    model = model_of(asked["model"])
    return Deployment(
        model=model,
        formats=choose_formats(model, *asked["names"]),
        max_context_tokens=asked["context"],
        in_flight_tokens=asked["flight"],
        draft_layers=asked["drafts"],
        draft_tokens=asked["draft_tokens"],
        block_tokens=asked["block"],
        arch=asked["arch"],
    )


@cache
def read_settings() -> tuple[dict[str, Any], ...]:
    """All settings with their answers."""
    with gzip.open(FILE, "rt") as lines:
        next(lines)
        return tuple(json.loads(line) for line in lines)


def answered(folder: Path) -> list[dict[str, Any]]:
    """The settings with the planner's answers, in its own environment."""
    settings = list(draw_settings())
    told = subprocess.run(
        [folder / "bin" / "python", HERE / "vllm_planner.py", folder / "vllm"],
        input="".join(json.dumps(setting) + "\n" for setting in settings),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    return [
        setting | {"answer": answer} for setting, answer in zip(settings, answers, strict=True)
    ]


def main() -> None:
    """Write the file; the same answers give the same bytes."""
    lines = [ABOUT, *answered(Path(os.environ["DSV4KV_ENGINES"]))]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
