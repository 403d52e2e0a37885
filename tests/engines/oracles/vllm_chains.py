# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Hashes and hits of vLLM 0.33.0's own: ``python vllm_chains.py FOLDER``.

A line of standard input is one setting: ``prompts`` as lists of tokens, ``block`` in tokens,
``look_ahead`` in tokens, ``algorithm`` and ``seed`` (PYTHONHASHSEED). The answer: of every prompt
its blocks' ``hashes``, and the tokens it ``hits`` in a cache of one full-attention group that has
room for all, one after the other.
"""

import os
import sys
from pathlib import Path

import vllm_manager
from stand_ins import answer_lines

ROOM = 10_000


def answer(engine, asked: dict) -> dict:
    """What the engine names the blocks, and finds of them."""
    from vllm.utils.hashing import get_hash_fn_by_name

    os.environ["PYTHONHASHSEED"] = asked["seed"]
    named = get_hash_fn_by_name(asked["algorithm"])
    engine.kv_cache_utils.init_none_hash(named)
    block, look_ahead = asked["block"], asked["look_ahead"]
    hasher = engine.kv_cache_utils.get_request_block_hasher(block, named, look_ahead)
    group = {"page": block, "groups": "none", "retention": None, "blocks": ROOM}
    speculation = "mtp" if look_ahead else "none"
    trace = group | {"chunk_tokens": 1 << 20, "speculation": speculation}
    manager = vllm_manager.open_manager(engine, trace)
    found = {"hashes": [], "hits": []}
    for number, tokens in enumerate(asked["prompts"]):
        request = engine.Request(
            f"{number}", tokens, engine.SamplingParams(max_tokens=1), None, block_hasher=hasher
        )
        blocks, hit, _ = manager.get_computed_blocks(request)
        manager.allocate_slots(
            request, len(tokens) - hit, num_new_computed_tokens=hit, new_computed_blocks=blocks
        )
        request.num_computed_tokens = len(tokens)
        manager.free(request)
        found["hashes"].append([each.hex() for each in request.block_hashes])
        found["hits"].append(hit)
    return found


if __name__ == "__main__":
    engine = vllm_manager.load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
