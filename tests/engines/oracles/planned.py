"""Random settings with what the engines' own planners make of them; ``python -m`` this asks again.

A file holds one JSON object a line: the first says which version answered, every other one is a
setting (as the program reads it), ``names`` of the formats, the ``model``, and ``answer``.
"""

import random
import sys
from collections.abc import Callable
from functools import cache
from itertools import groupby
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

VLLM, SGLANG = "vllm:0.33", "sglang:0.5.23"
STARTED = ("0.5.21", "0.5.22", "0.5.23")
"""Versions of SGLang whose starts are asked for; each but the newest in a folder of its own."""
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
    site = Site(VLLM, model, arch, tp, backend=backend, dtype=dtype)
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
    site = Site(SGLANG, model, arch, 1 if mega else 8, dtype=dtype)
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
    engine = find_engine(SGLANG)
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
    engine = find_engine(VLLM)
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


def _draw_start(draw: random.Random, version: str) -> dict[str, Any]:
    """A start of SGLang, with what it prints.

    Answers of ours and the planner's differed where prefixes are not kept, steps do not overlap, a
    start is refused, for ranks of a pipeline and limits that do not divide among the replicas.
    """
    name = draw.choice(["v4-flash", "v4-pro", "v4.1-flash"])
    model, stages = model_of(name), draw.choice([1, 1, 2, 3, 4])
    if model.kind == "v41" and stages > 2:  # a stage without a source divides by zero there
        stages = 2
    rank, dp = draw.randrange(stages), draw.choice([1, 2, 8])
    total = draw.choice([None, 100, 250, 256])
    drafts = draw.choice([0, 0, 4])
    sizes = find_engine(f"sglang:{version}").stage_layers(model.num_layers, stages)
    first, little = sum(sizes[:rank]), draw.random() < 0.5
    names = ["fp8_ds_mla", "fp8_ds_mla", "mxfp4" if model.kind == "v41" else "fp8"]
    return about(name, "sm_90", names) | {
        "version": version,
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


def _draw_workspace(draw: random.Random) -> dict[str, Any]:
    """What decides how much a dummy run asks for."""
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


class Planner(NamedTuple):
    """A program that answers, its answers, how they are made, and how a setting is drawn."""

    script: str
    file: str
    made: str
    draw: Callable[..., dict[str, Any]]
    count: int = 500  # of every version


PLANNERS = {
    "vllm": Planner(
        "vllm_planner.py",
        "vllm_planner_0.33.0.jsonl.gz",
        "get_kv_cache_groups and what it counts with, on specs of the layers' own methods",
        _draw_vllm,
    ),
    "sglang": Planner(
        "sglang_pools.py",
        "sglang_pools_0.5.23.jsonl.gz",
        "DSV4PoolConfigurator, and DefaultPoolConfigurator with V3.2's cell",
        _draw_sglang,
    ),
    "roles": Planner(
        "sglang_pools.py",
        "sglang_roles_0.5.23.jsonl.gz",
        "DSV4PoolConfigurator of a prefill and of a decode side",
        _draw_roles,
    ),
    "hicache": Planner(
        "sglang_host.py",
        "sglang_host_0.5.23.jsonl.gz",
        "host pools by build_deepseek_v4_hicache_stack and build_host_pool_group",
        _draw_hicache,
    ),
    "offloading": Planner(
        "vllm_host.py",
        "vllm_host_0.33.0.jsonl.gz",
        "CPUOffloadingSpec on build_offloading_config, _derive_cpu_config, and masks",
        _draw_offloading,
    ),
    "lmcache": Planner(
        "lmcache_host.py",
        "lmcache_host_0.5.6.jsonl.gz",
        "downsample_and_stage_block_ids on groups of vLLM's blocks",
        _draw_lmcache,
    ),
    "starts": Planner(
        "sglang_pools.py",
        "sglang_starts.jsonl.gz",
        "DSV4PoolConfigurator.calculate_pool_sizes, its logger and its errors",
        _draw_start,
        count=120,
    ),
    "workspaces": Planner(
        "vllm_workspaces.py",
        "vllm_workspaces_0.33.0.jsonl.gz",
        "forward_mqa, _reserve_prefill_workspace and the indexer's shapes, of dummy runs",
        _draw_workspace,
        count=60,
    ),
}


def draw_settings(name: str) -> list[dict[str, Any]]:
    """All settings of a planner, without answers."""
    planner = PLANNERS[name]
    numbers = range(planner.count)
    if name == "starts":
        drawn = (random.Random(f"start {n}") for _ in STARTED for n in numbers)
        versions = (version for version in STARTED for _ in numbers)
        return list(map(planner.draw, drawn, versions))
    seed = "workspace" if name == "workspaces" else f"{name} planner"
    return [planner.draw(random.Random(f"{seed} {n}")) for n in numbers]


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
    return tuple(read_kept(HERE / PLANNERS[name].file))


def answered(name: str, settings: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Settings, all of them unless given, with the planner's answers."""
    script, found = PLANNERS[name].script, []
    engine, newest = script.partition("_")[0], STARTED[-1]
    rows = settings or draw_settings(name)
    for version, group in groupby(rows, lambda asked: asked.get("version", newest)):
        asked = list(group)
        answers = ask(script, engine if version == newest else f"{engine}-{version}", asked)
        found += [row | {"answer": told} for row, told in zip(asked, answers, strict=True)]
    return found


def main(*names: str) -> None:
    """Write all files, or those of some planners."""
    for name in names or PLANNERS:
        keep(HERE / PLANNERS[name].file, PLANNERS[name].made, answered(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
