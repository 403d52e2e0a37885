"""Chrome traces as torch.profiler writes them, made up."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.profile.trace import KINDS, NONE, Trace

Event = dict[str, Any]
HEAD = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A GPU"}], "host_name": "me"}


def event(category: str, name: str, start_us: float, length_us: float, **args: Any) -> Event:
    place = {"pid": 1, "tid": args.pop("tid", 9)}
    times = {"ts": 5e12 + start_us, "dur": length_us}
    return {"ph": "X", "cat": category, "name": name, **place, **times, "args": args}


def gpu_events() -> list[Event]:
    """Two steps, each one launch of two kernels and a copy; a kernel of nobody behind them."""
    found: list[Event] = []
    for step in range(2):
        at, correlation = step * 1_000, 50 + step
        on_gpu = {"device": 0, "stream": 7, "correlation": correlation}
        found += [
            event("user_annotation", "step", at, 100),
            event("user_annotation", "replay", at + 10, 50),
            event("cuda_runtime", "cudaGraphLaunch", at + 20, 5, correlation=correlation),
            event("kernel", "flush", at + 110, 30.5, **on_gpu),
            event("kernel", "gather_topk", at + 142, 60, **on_gpu),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 202, 3, bytes=64, **on_gpu),
            event("gpu_user_annotation", "step", at + 110, 95),
        ]
    return [*found, event("kernel", "lost", 5_000, 1, device=0, stream=7, correlation=99)]


def cpu_events() -> list[Event]:
    """One step of 100 µs: an operation of 80 with torch's of 50 inside, of which 20 inside it."""
    return [
        event("user_annotation", "step", 0, 100),
        event("user_annotation", "gather_topk csa", 10, 80),
        event("cpu_op", "aten::index", 20, 50), event("cpu_op", "aten::empty", 30, 20),
        event("cpu_op", "aten::empty", 200, 5), event("python_function", "of no interest", 0, 100),
    ]  # fmt: skip


def save(
    path: Path,
    events: list[Event],
    head: dict[str, Any] = HEAD,
    indent: int | None = 1,
    after: dict[str, Any] | None = None,
) -> Path:
    """Write a trace, packed if its name says so."""
    others = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    parts = {**head, "traceEvents": [*others, *events], "traceName": "x", **(after or {})}
    text = json.dumps(parts, indent=indent)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def told(trace: Trace) -> list[tuple[str, str, int, str | None]]:
    """Kind, name, step and phase of every piece of work, in the order of its begin."""
    work, names = trace.work, trace.names
    return [
        (
            KINDS[work.kind[i]], names[work.name[i]], int(work.step[i]),
            None if work.phase[i] == NONE else names[work.phase[i]],
        )
        for i in np.argsort(work.start_ns, kind="stable")
    ]  # fmt: skip
