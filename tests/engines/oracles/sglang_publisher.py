# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""SGLang 0.5.23's tree and ``ZmqEventPublisher`` on traces, one request after the other.

``python sglang_publisher.py FOLDER < traces > answers``; traces are as ``sglang_manager.py`` has
them. An answer is ``hits`` of every request and ``frames`` of every message that was received.
Source: ``disaggregation/kv_events.py``, ``scheduler_components/kv_events_publisher.py``.
"""

import json
import sys
import time
from array import array
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sglang_manager
from listening import publish_and_receive

EVENTS = "sglang.srt.disaggregation.kv_events"


def hash_pages(tokens: Sequence[int], before: bytes | None, size: int) -> list[str]:
    """A digest of every page and all before it, as the engine's C++ makes them."""
    digests = []
    for begin in range(0, len(tokens), size):
        packed = array("I", tokens[begin : begin + size]).tobytes()
        before = sha256((before or b"") + packed).digest()
        digests.append(before.hex())
    return digests


def answer(engine: SimpleNamespace, trace: dict[str, Any]) -> dict[str, Any]:
    """Serve a trace and publish what its steps changed."""
    from sglang.srt.disaggregation import kv_events

    hits: list[int] = []

    def publish(publisher: Any) -> int:
        cache = sglang_manager.open_cache(engine, trace, enable_kv_cache_events=True)
        batches = 0

        def step() -> None:
            nonlocal batches
            if events := cache.take_events():
                publisher.publish(kv_events.KVEventBatch(ts=time.time(), events=events))
                batches += 1

        hits.extend(sglang_manager.answer(engine, cache, trace, step))
        return batches

    def open_publisher(endpoint: str) -> Any:
        return kv_events.ZmqEventPublisher(0, endpoint)

    return {"frames": publish_and_receive(open_publisher, publish), "hits": hits}


if __name__ == "__main__":
    engine = sglang_manager.load(Path(sys.argv[1]), EVENTS)
    import sglang.srt.mem_cache.utils as hashing

    hashing.get_native_hash = hash_pages
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)
