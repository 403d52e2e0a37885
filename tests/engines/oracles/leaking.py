# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""vLLM's manager with a block that is lost now and then, for ``dsv4kv conform`` to find.

``python leaking.py FOLDER < sequences``: as ``driven.serve`` has them. Of a request that was
preempted twice, the first free block is forgotten when it lets go where it has computed a multiple
of 512 tokens and one: once in some 10⁵ operations.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "conform"))
from driven import serve, vllm


class Leaking(vllm.Session):
    """A session whose manager forgets."""

    def __init__(self, engine, settings):
        super().__init__(engine, settings)
        free = self._manager.free

        def lose(request):
            free(request)
            if request.num_preemptions == 2 and request.num_computed_tokens % 512 == 1:
                self._pool.free_block_queue.popleft()

        self._manager.free = lose


if __name__ == "__main__":
    kept = {name: getattr(vllm, name) for name in ("load", "version", "traits")}
    serve.serve(SimpleNamespace(Session=Leaking, **kept), sys.argv[1], sys.stdin, sys.stdout)
