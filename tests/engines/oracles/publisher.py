# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""An engine's manager and ``ZmqEventPublisher`` on traces, one request after the other.

``python publisher.py FOLDER < traces > answers``: FOLDER is ``…/vllm`` or ``…/sglang``, traces are
as ``vllm_manager.py`` and ``sglang_manager.py`` read them. An answer is ``hits`` of every request
and ``frames`` of every message that a subscriber received over tcp, in hexadecimal.
Source: vLLM 0.33, ``distributed/kv_events.py``, ``v1/core/sched/scheduler.py`` (it publishes after
every step); SGLang 0.5.23, ``disaggregation/kv_events.py``,
``scheduler_components/kv_events_publisher.py``.
"""

import socket
import sys
import time
from array import array
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from stand_ins import answer_lines

PATIENCE_MS = 10_000
SUBSCRIBING_S = 0.3
EVENTS = {"vllm": "vllm.distributed.kv_events", "sglang": "sglang.srt.disaggregation.kv_events"}


def hash_pages(tokens: Sequence[int], before: bytes | None, size: int) -> list[str]:
    """A digest of every page and all before it, as SGLang's C++ makes them."""
    digests = []
    for begin in range(0, len(tokens), size):
        packed = array("I", tokens[begin : begin + size]).tobytes()
        before = sha256((before or b"") + packed).digest()
        digests.append(before.hex())
    return digests


def open_vllm(trace):
    """A manager, and what serves the trace with a call after every step; its hits."""
    manager = vllm_manager.open_manager(engine, trace, enable_kv_cache_events=True)
    numbers = range(len(trace["prompts"]))
    return manager, lambda step: [
        vllm_manager.serve(engine, manager, trace, number, step) for number in numbers
    ]


def open_sglang(trace):
    """The same of SGLang's tree."""
    cache = sglang_manager.open_cache(engine, trace, enable_kv_cache_events=True)
    return cache, lambda step: sglang_manager.answer(engine, cache, trace, step)


def answer(trace: dict[str, Any]) -> dict[str, Any]:
    """Serve a trace, publish what its steps changed, and listen to it."""
    import zmq

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listener = zmq.Context.instance().socket(zmq.SUB)
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    listener.setsockopt(zmq.RCVHWM, 0)
    listener.setsockopt(zmq.LINGER, 0)
    publisher = events.ZmqEventPublisher(0, f"tcp://*:{port}")
    listener.connect(f"tcp://127.0.0.1:{port}")
    time.sleep(SUBSCRIBING_S)
    manager, serve = open_cache(trace)
    batches = 0

    def step() -> None:
        nonlocal batches
        if taken := manager.take_events():
            publisher.publish(events.KVEventBatch(ts=time.time(), events=taken))
            batches += 1

    hits, frames = serve(step), []
    for _ in range(batches):
        assert listener.poll(PATIENCE_MS), "a message was lost"
        frames.append([frame.hex() for frame in listener.recv_multipart()])
    publisher.shutdown()
    listener.close()
    return {"frames": frames, "hits": hits}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if folder.name == "vllm":
        import vllm_manager

        engine, open_cache = vllm_manager.load(folder), open_vllm
    else:
        import sglang_manager

        engine, open_cache = sglang_manager.load(folder, EVENTS["sglang"]), open_sglang
        import sglang.srt.mem_cache.utils as hashing

        hashing.get_native_hash = hash_pages
    events = import_module(EVENTS[folder.name])
    answer_lines(answer)
