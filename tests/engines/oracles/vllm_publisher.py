# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""vLLM 0.33's ``KVCacheManager`` and ``ZmqEventPublisher`` on traces, one request after the other.

``python vllm_publisher.py FOLDER < traces > answers``; traces are those of ``vllm_manager.py``. An
answer is ``hits`` of every request and ``frames`` of every message that was received.
Source: ``distributed/kv_events.py``; ``v1/core/sched/scheduler.py`` publishes after every step.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from listening import publish_and_receive
from vllm_manager import load, open_manager, serve


def answer(engine: SimpleNamespace, trace: dict[str, Any]) -> dict[str, Any]:
    """Serve a trace and publish what its steps changed."""
    from vllm.distributed import kv_events

    hits: list[int] = []

    def publish(publisher: Any) -> int:
        manager = open_manager(engine, trace, enable_kv_cache_events=True)
        batches = 0

        def step() -> None:
            nonlocal batches
            if events := manager.take_events():
                publisher.publish(kv_events.KVEventBatch(ts=time.time(), events=events))
                batches += 1

        count = len(trace["prompts"])
        hits.extend(serve(engine, manager, trace, number, step) for number in range(count))
        return batches

    def open_publisher(endpoint: str) -> Any:
        return kv_events.ZmqEventPublisher(0, endpoint)

    return {"frames": publish_and_receive(open_publisher, publish), "hits": hits}


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)
