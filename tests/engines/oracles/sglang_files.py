# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Names of SGLang 0.5.23's own pages and files: ``python sglang_files.py FOLDER``.

A line of standard input is one setting: ``tokens``, ``page``, ``extra_key``, ``salt``, ``model``,
``stages``, ``stage``, ``ranks`` (of context parallelism), ``rank``, ``tp``, ``pools``. The answer:
the pages' ``digests``, their ``events``, and the ``files`` that its file back end writes for the
last page, of one byte each.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from stand_ins import bare_package, stand_in

MEMORY = "sglang.srt.mem_cache"
REAL = (
    "sglang.srt.environ",
    "sglang.srt.utils.cpp_extension_loader",
    f"{MEMORY}.utils",
    f"{MEMORY}.hicache_storage",
    f"{MEMORY}.cpp_utils.native_hash",
    f"{MEMORY}.storage.file.lru_file_evictor",
)


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    sys.path.insert(0, str(folder))
    for real in REAL:
        parts = real.split(".")
        for end in range(1, len(parts)):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                bare_package(name, str(folder.joinpath(*parts[:end])))
    stand_in("sglang", "triton", "msgspec", real=REAL)
    import torch
    from sglang.srt.mem_cache import hicache_storage as storage
    from sglang.srt.mem_cache import utils

    return SimpleNamespace(torch=torch, storage=storage, utils=utils)


def answer(engine: SimpleNamespace, asked: dict) -> dict:
    """What the engine names a prompt's pages."""
    key = SimpleNamespace(extra_key=asked["extra_key"], cache_salt=asked["salt"])
    seed = engine.utils.storage_namespace_seed(key.extra_key, key.cache_salt)
    whole = asked["tokens"][
        : len(asked["tokens"]) // asked["page"] * asked["page"]
    ]  # as its trees
    digests = engine.utils.get_hash_str(whole, seed, page_size=asked["page"])
    events = [engine.utils.hash_str_to_int64(digest) for digest in digests]
    config = engine.storage.HiCacheStorageConfig(
        tp_rank=0, tp_size=asked["tp"], pp_rank=asked["stage"], pp_size=asked["stages"],
        attn_cp_rank=asked["rank"], attn_cp_size=asked["ranks"], is_mla_model=True,
        enable_storage_metrics=False, is_page_first_layout=True, model_name=asked["model"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        store = engine.storage.HiCacheFile(config, place)
        for pool in asked["pools"]:
            name = store._log_key(pool, digests[-1])
            assert store.set(name, engine.torch.zeros(1, dtype=engine.torch.uint8))
        files = sorted(path.name for path in Path(place).iterdir())
        return {"digests": digests, "events": events, "files": files}


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)
