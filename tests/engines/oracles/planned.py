"""Random settings with what the engines' own planners make of them; ``python -m`` this asks again.

A file holds one JSON object a line: the first says which version answered, every other one is a
setting (as the program reads it), ``names`` of the formats, the ``model``, and ``answer``.
"""

import random
import sys
from functools import cache
from typing import Any, NamedTuple

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model
from tests.engines.oracles.asking import HERE, ask, keep, read_kept


class Planner(NamedTuple):
    """A program that answers, its answers, whose sizes they hold, and how they are made."""

    script: str
    file: str
    engine: str
    made: str


PLANNERS = {
    "vllm": Planner(
        "vllm_planner.py",
        "vllm_planner_0.33.0.jsonl.gz",
        "vllm:0.33",
        "get_kv_cache_groups and what it counts with, on specs of the layers' own methods",
    ),
    "sglang": Planner(
        "sglang_pools.py",
        "sglang_pools_0.5.23.jsonl.gz",
        "sglang:0.5.23",
        "DSV4PoolConfigurator, and DefaultPoolConfigurator with V3.2's cell",
    ),
    "roles": Planner(
        "sglang_pools.py",
        "sglang_roles_0.5.23.jsonl.gz",
        "sglang:0.5.23",
        "DSV4PoolConfigurator of a prefill and of a decode side",
    ),
    "hicache": Planner(
        "sglang_host.py",
        "sglang_host_0.5.23.jsonl.gz",
        "sglang:0.5.23",
        "host pools by build_deepseek_v4_hicache_stack and build_host_pool_group",
    ),
    "offloading": Planner(
        "vllm_host.py",
        "vllm_host_0.33.0.jsonl.gz",
        "vllm:0.33",
        "CPUOffloadingSpec on build_offloading_config, _derive_cpu_config, and masks",
    ),
    "lmcache": Planner(
        "lmcache_host.py",
        "lmcache_host_0.5.6.jsonl.gz",
        "vllm:0.33",
        "downsample_and_stage_block_ids on groups of vLLM's blocks",
    ),
}
ENGINES = {name: planner.engine for name, planner in PLANNERS.items()}
SETTINGS = 500
GIB = 2**30
_BLOCKS = {"v4": (256, 512), "v41": (128, 256), "flat": (64, 128)}


@cache
def model_of(name: str) -> DSV4Config:
    """A shipped model, read once."""
    return load_model(name)


def about(name: str, arch: str | None, names: list[str]) -> dict[str, Any]:
    """What every program reads of a model and its formats."""
    model = model_of(name)
    return {
        "model": name,
        "arch": arch,
        "names": names,
        "kind": model.kind,
        "ratios": list(model.compress_ratios),
        "owners": list(model.kv_owners or ()),
        "layers": model.num_layers,
    }


def draw_settings(engine: str) -> list[dict[str, Any]]:
    """All settings, without answers."""
    drawn = {
        "vllm": _draw_vllm,
        "sglang": _draw_sglang,
        "roles": _draw_roles,
        "hicache": _draw_hicache,
        "offloading": _draw_offloading,
        "lmcache": _draw_lmcache,
    }[engine]
    return [drawn(random.Random(f"{engine} planner {seed}")) for seed in range(SETTINGS)]


def _draw_vllm(draw: random.Random) -> dict[str, Any]:
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
    site = Site(ENGINES["vllm"], model, arch, tp, backend=backend, dtype=dtype)
    found = stored_formats(site, {"indexer": "mxfp4" if mxfp4 else None})
    smallest = 64 if model.kind == "v41" and arch == "sm_90" else _BLOCKS[model.kind][0]
    drafts = draw.choice([0, 0, 1, 3])
    context = draw.choice([4096, 33_792, 131_072, 912_128, 2**20])
    return about(name, arch, [given for given, _ in found.values()]) | {
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


def _draw_sglang(draw: random.Random) -> dict[str, Any]:
    name = draw.choice(["v4-flash", "v4-pro", "v4.1-flash", "v4.1-flash", "v3.2"])
    model, arch = model_of(name), draw.choice(["sm_90", "sm_100"])
    mega = model.kind == "v41" and arch == "sm_100" and draw.random() < 0.6
    dtype = draw.choice(["bfloat16", "fp8_e4m3"]) if model.kind == "flat" else "auto"
    site = Site(ENGINES["sglang"], model, arch, 1 if mega else 8, dtype=dtype)
    found = stored_formats(site, {})
    layers = model.num_layers
    split = draw.choice([None, None, 20 if model.kind == "v41" else layers // 2])
    held = [0, layers]
    if split and model.kind != "flat":
        held = draw.choice([[0, split], [split, layers]])
    drafts = draw.choice([0, 0, 2, 4]) if model.kind != "flat" else 0
    requests = draw.choice([None, 16, 64, 256, 256])
    plain = model.kind == "flat" and found["main"][0] == "fp8"
    ratio = draw.choice([None, None, 0.05, 0.15])
    page = 64 if model.kind == "flat" else draw.choice([256, 256, 128])
    chunk = draw.choice([4096, 8192, 16_384])
    context = draw.choice([131_072, model.max_context_tokens])
    state, memory = draw.choice(["fp32", "fp32", "bf16"]), int(draw.uniform(2, 120) * GIB)
    encoder = model.kind == "v41" and requests is not None and draw.random() < 0.4
    return about(name, arch, [given for given, _ in found.values()]) | {
        "held": held,
        "mega": mega,
        "requests": requests,
        "ratio": ratio,
        "page": page,
        "chunk": chunk,
        "context": context,
        "encoder": encoder,
        "drafts": (3 if encoder else 1) if drafts else 0,
        "draft_tokens": drafts,
        "overlap": True,
        "prefix_cache": True,
        "state": state,
        "memory": memory,
        "dim": 656 if found["main"][0] == "fp8_ds_mla" else 576,
        "item": 2 if found["main"][0] == "bf16" and not plain else 1,
    }


def _draw_roles(draw: random.Random) -> dict[str, Any]:
    """A prefill or a decode side, whose prefixes are not kept; some with HiSparse."""
    asked, role = _draw_sglang(draw), draw.choice(["prefill", "decode", "decode", "decode"])
    while asked["kind"] == "flat" or (asked["encoder"] and role == "decode"):
        asked = _draw_sglang(draw)
    extra = draw.choice([0, 16, 32, 64]) if role == "decode" else 0
    kept = role == "prefill" and draw.random() < 0.7
    sparse = draw.choice([1, 1, 2, 5]) if asked["kind"] == "v4" and not kept else 1
    return asked | {
        "role": role, "extra_slots": extra, "prefix_cache": kept, "hisparse": sparse
    }  # fmt: skip


def _draw_hicache(draw: random.Random) -> dict[str, Any]:
    """A setting of the GPU's pools and what the host is given for it; AMD's GPUs, too."""
    asked = _draw_sglang(draw)
    flat = asked["kind"] == "flat"
    asked |= {"page": 64 if flat else 256, "ratio": asked["ratio"] if not flat else None}
    asked["drafts"] = draw.choice([0, 1]) if flat else asked["drafts"]
    if asked["kind"] != "v4":
        asked["held"] = [0, asked["layers"]]
    hip = asked["kind"] == "v4" and draw.random() < 0.2
    fp4 = asked["kind"] == "v4" and draw.random() < 0.3
    asked |= {"hip": hip, "fp4": fp4, "backend": "flashmla_mega" if asked["mega"] else "flashmla"}
    asked["arch"] = "gfx950" if hip else asked["arch"]
    asked["names"] = [*asked["names"][:2], "mxfp4" if fp4 else asked["names"][2]]
    page, full = asked["page"], draw.randrange(4000, 4_000_000)
    engine = find_engine(ENGINES["hicache"])
    assert isinstance(engine, SglangEngine)
    windows = 0 if flat else engine.pools(deployment_of(asked)).window_slots(full // page * page)
    given = draw.choice(["ratio"] * 8 + ["size", "nothing"])
    return asked | {
        "full": full // page * page,
        "window": windows,
        "host_ratio": draw.choice([0.5, 1.0, 2.0, 2.7, 6.0]) if given == "ratio" else None,
        "size": draw.choice([20, 150]) if given == "size" else 0,
        "layout": draw.choice(["page_first", "page_first", "layer_first", "page_first_direct"]),
        "memory": int(draw.choice([200, 500, 1000, 2000, 4000]) * GIB),
        "ranks": draw.choice([1, 4, 8]),
    }


def _draw_offloading(draw: random.Random) -> dict[str, Any]:
    """A setting of the GPU's pool, what the host is given, and a prompt that is stored there."""
    return _draw_vllm(draw) | {
        "tp": draw.choice([1, 2, 4, 8, 8, 16]),
        "pp": draw.choice([1, 1, 1, 2]),
        "given": int(draw.choice([0.01, 1, 20, 100, 1500]) * GIB * draw.uniform(0.5, 1)),
        "prompt": draw.choice([1, 255, 256, 4097, 131_072, draw.randrange(1, 400_000)]),
        "retention": draw.choice([0, 0, None, None, 4096, 32_768]),
    }


def _draw_lmcache(draw: random.Random) -> dict[str, Any]:
    """A chunk, and the groups of vLLM's blocks that it is cut from."""
    asked = _draw_vllm(draw)
    engine = find_engine(ENGINES["lmcache"])
    assert isinstance(engine, VllmEngine)
    groups = [
        {
            "tokens": group.block_tokens,
            "window": group.window_tokens or -1,
            "slots": 1,
            "bytes": sum(page.used_bytes for page in group.pages),
        }
        for group in engine.layout(deployment_of(asked)).groups
        if not group.ring
    ]
    return asked | {"chunk": draw.choice([64, 100, 256, 512, 768, 4096, 32_768]), "groups": groups}


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
def read_settings(engine: str) -> tuple[dict[str, Any], ...]:
    """All settings of an engine with their answers."""
    return tuple(read_kept(HERE / PLANNERS[engine].file))


def answered(
    engine: str, settings: list[dict[str, Any]] | None = None, package: str = ""
) -> list[dict[str, Any]]:
    """Settings, all of them unless given, with the planner's answers."""
    settings = settings or draw_settings(engine)
    script = PLANNERS[engine].script
    answers = ask(script, package or script.partition("_")[0], settings)
    return [
        setting | {"answer": answer} for setting, answer in zip(settings, answers, strict=True)
    ]


def main(*engines: str) -> None:
    """Write all files, or those of some engines."""
    for engine in engines or PLANNERS:
        planner = PLANNERS[engine]
        keep(HERE / planner.file, planner.made, answered(engine))


if __name__ == "__main__":
    main(*sys.argv[1:])
