# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Managers that lose a block or a page now and then, for ``dsv4kv conform`` to find.

``python leaking.py ENGINE FOLDER < sequences``: as ``driven.serve`` has them.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "diagnose" / "conform"))
from driven import serve, sglang, vllm
from driven.sglang import PAGE


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


class LeakingHost(vllm.Session):
    """A chunk of host memory is lost when a store ends whose request has ended before."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        if self._host:
            manager = self._scheduler.connector.connector_scheduler.manager
            complete = manager.complete_store

            def lose(keys, context):
                complete(keys, context)
                key = next(iter(keys))
                ended = context.req_id not in self._scheduler.requests
                if ended and len(keys) % 5 == 3 and manager._policy.get(key).chunk_id % 97 == 5:
                    manager._policy.remove(key)
                    manager._num_evictable_cache_chunks -= 1

            manager.complete_store = lose


class LeakingSglang(sglang.Session):
    """When a request goes that ends 17 tokens into every other page."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        free = self._cache.free_kv_row

        def lose(kv, ranges):
            if kv.kv_allocated_len % 512 != 17:
                free(kv, ranges)

        self._cache.free_kv_row = lose


class LeakingHicache(sglang.Session):
    """Host memory loses a page of some nodes that it frees while there are requests."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        if self._host:
            pool = self._cache.host_pool_group.get_pool(engine.hicache.names.KV)
            free = pool.free

            def lose(indices):
                busy = self._waiting or self._running or self._chunked
                lost = busy and len(indices) > PAGE and int(indices[0]) // PAGE % 7 == 3
                return free(indices[PAGE:] if lost else indices)

            pool.free = lose


class HastyHicache(sglang.Session):
    """Stores are said to have ended when they begin."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        if self._host:
            submit = self._host.copies.submit_device_to_host

            def hasten(transfers):
                told = submit(transfers)
                told.finish_event = told.start_event
                return told

            self._host.copies.submit_device_to_host = hasten


LEAKING = {
    "hicache": (sglang, LeakingHicache),
    "hasty": (sglang, HastyHicache),
    "vllm": (vllm, LeakingVllm),
    "host": (vllm, LeakingHost),
    "sglang": (sglang, LeakingSglang),
}

if __name__ == "__main__":
    driver, session = LEAKING[sys.argv[1]]
    kept = {name: getattr(driver, name) for name in ("NAME", "load", "traits")}
    made = SimpleNamespace(Session=session, **kept)
    serve.serve(made, sys.argv[2], sys.stdin, sys.stdout)
