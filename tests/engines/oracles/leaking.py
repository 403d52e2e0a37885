# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Managers that lose a block now and then, for ``dsv4kv conform`` to find.

``python leaking.py ENGINE FOLDER < sequences``: as ``driven.broken`` has them.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "diagnose" / "conform"))
import driven
from driven import sglang, vllm


class LeakingVllm(vllm.Session):
    """Once in some 50,000 operations, when a request goes that was preempted twice."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        free = self._manager.free

        def lose(request):
            free(request)
            if request.num_preemptions == 2 and request.num_computed_tokens % 1024 == 257:
                self._pool.free_block_queue.popleft()

        self._manager.free = lose


class LeakingSglang(sglang.Session):
    """When a request goes that ends 17 tokens into every other page."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        free = self._cache.free_kv_row

        def lose(kv, ranges):
            if kv.kv_allocated_len % 512 != 17:
                free(kv, ranges)

        self._cache.free_kv_row = lose


LEAKING = {
    "vllm": (vllm, LeakingVllm),
    "sglang": (sglang, LeakingSglang),
}

if __name__ == "__main__":
    driver, session = LEAKING[sys.argv[1]]
    kept = {name: getattr(driver, name) for name in ("NAME", "load", "traits")}
    made = SimpleNamespace(Session=session, **kept)
    driven.serve(made, sys.argv[2], sys.stdin, sys.stdout)
