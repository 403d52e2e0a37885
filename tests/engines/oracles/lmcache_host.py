# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""LMCache 0.5.6's own cut of a chunk: the blocks that it keeps of every group of vLLM's.

``python lmcache_host.py FOLDER < settings > answers`` in an environment of its own; FOLDER holds
the unpacked wheel. A line is one setting: ``chunk`` (tokens), ``groups``: of each its ``tokens``
of a block, ``window`` (tokens, -1 for none), ``slots`` of a block, ``bytes`` of a slot over its
layers. The answer: bytes of a chunk over all groups, or ``refused``, LMCache's sentence.
Source: ``v1/kv_layer_groups.py``, ``v1/multiprocess/object_group_transfer.py``.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines, open_packages

REAL = ("lmcache.v1.kv_layer_groups", "lmcache.v1.multiprocess.object_group_transfer")


def load(folder: Path) -> SimpleNamespace:
    """The modules."""
    open_packages(folder, REAL)
    from lmcache import utils

    utils.lmcache_deprecate = lambda _: lambda method: method
    from lmcache.v1 import kv_layer_groups as groups
    from lmcache.v1.multiprocess import object_group_transfer as transfer

    return SimpleNamespace(groups=groups, transfer=transfer)


def answer(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a chunk: blocks kept of every group by their bytes."""
    chunk, made = asked["chunk"], object.__new__(engine.groups.KVLayerGroupsManager)
    made._lmcache_tokens_per_chunk, made._full_sw_kv = chunk, False
    made._kernel_groups = [
        engine.groups.KernelGroupInfo(
            layer_indices=[0], shape_desc=SimpleNamespace(bs=group["slots"]), dtype=None,
            engine_kv_format=None, tokens_per_block=group["tokens"],
            sw_size_tokens=group["window"],
        )
        for group in asked["groups"]
    ]  # fmt: skip
    try:
        for number, group in enumerate(asked["groups"]):
            made._validate_block_chunk_size_config(
                number, slots_per_block=group["slots"], tokens_per_block=group["tokens"],
                lmcache_tokens_per_chunk=chunk, sw_size_tokens=group["window"],
            )  # fmt: skip
    except ValueError as error:
        return {"refused": str(error)}
    context = SimpleNamespace(
        kv_layer_groups_manager=made, lmcache_tokens_per_chunk=chunk,
        calculate_num_blocks=lambda tokens, n: made.calculate_num_blocks(n, tokens),
        stage_block_ids=lambda ids: ids,
    )  # fmt: skip
    ids = [list(range(chunk // group["tokens"])) for group in asked["groups"]]
    kept = engine.transfer.downsample_and_stage_block_ids(context, ids)
    sizes = [
        len(blocks) * group["slots"] * group["bytes"]
        for blocks, group in zip(kept, asked["groups"], strict=True)
    ]
    return {"chunk_bytes": sum(sizes)}


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
