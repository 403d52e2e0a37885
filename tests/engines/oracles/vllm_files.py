# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Names of vLLM 0.33.0's own blocks and files: ``python vllm_files.py FOLDER``.

A line of standard input is one setting: ``tokens``, ``hash_tokens``, ``seed`` (PYTHONHASHSEED,
null for none), ``group``, and ``mapper``, the arguments of its ``FileMapper``. The answer: the
blocks' ``hashes``, the ``fields`` of its ``config.json``, where that is, and the ``file`` of the
last block.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import vllm_planner


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    vllm_planner.load(folder)
    from vllm.utils import hashing
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload import base, file_mapper

    return SimpleNamespace(hashing=hashing, utils=kv_cache_utils, base=base, files=file_mapper)


def answer(engine: SimpleNamespace, asked: dict) -> dict:
    """What the engine names a prompt's blocks."""
    os.environ.pop("PYTHONHASHSEED", None)
    if asked["seed"] is not None:
        os.environ["PYTHONHASHSEED"] = asked["seed"]
    engine.utils.init_none_hash(engine.hashing.sha256)
    tokens, size, hashes, parent = asked["tokens"], asked["hash_tokens"], [], None
    for start in range(0, len(tokens) - size + 1, size):
        block = tokens[start : start + size]
        parent = engine.utils.hash_block_tokens(engine.hashing.sha256, parent, block)
        hashes.append(parent)
    mapper = engine.files.FileMapper(root_dir="root", **asked["mapper"])
    key = engine.base.make_offload_key(hashes[-1], asked["group"])
    return {
        "hashes": [each.hex() for each in hashes],
        "fields": mapper.get_run_config(),
        "config": mapper.get_config_file_path(),
        "file": mapper.get_file_name(key),
        "rank": mapper.rank,
    }


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)
