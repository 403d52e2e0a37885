"""Writes a folder of Weka conversations: one file per session, all on the clock of the trace.

Sessions are found by what prompts begin with. Ids are those of the whole folder (``global``):
kept where the format can hold them, numbered anew in their order where it cannot.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.files import replacing_folder
from dsv4kv.prefix.analysis.paths import Ints
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.runs import IdRuns, as_runs
from dsv4kv.workload.traces.sessions import Sessions, full_blocks
from dsv4kv.workload.traces.weka_ids import ID_BOUND


def write_weka(requests: Iterable[Request], folder: Path) -> int:
    """Write all conversations; return how many requests there were.

    They are held in memory. A block that is not full has no id in this format.

    Raises:
        TraceError: The folder is not empty or cannot be written, there are no requests, or one
            has no ids or ids of another size.
    """
    sessions, written = Sessions(), list[tuple[int, Request, IdRuns]]()
    for number, request in enumerate(requests):
        _check(number, request, written[0][1] if written else request)
        runs = as_runs(request.prefix_hashes).first(full_blocks(request))
        written.append((sessions.place(request)[0], request, runs))
    if not written:
        raise TraceError(f"{folder}: not written, there are no requests.")
    conversations: dict[int, list[tuple[Request, IdRuns]]] = {}
    fitting = _fit([runs for *_, runs in written])
    for (session, request, _), runs in zip(written, fitting, strict=True):
        conversations.setdefault(session, []).append((request, runs))
    _write(folder, conversations, written[0][1].hash_block_tokens)
    return len(written)


def _write(
    folder: Path, conversations: dict[int, list[tuple[Request, IdRuns]]], size: int
) -> None:
    digits = len(str(len(conversations)))
    try:
        with replacing_folder(folder) as unfinished:
            for session, turns in conversations.items():
                name = f"conversation-{session:0{digits}}"
                told = {
                    "id": name,
                    "block_size": size,
                    "hash_id_scope": "global",
                    "tool_tokens": 0,
                    "system_tokens": 0,
                    "requests": [_record(request, runs) for request, runs in turns],
                }
                text = json.dumps(told, separators=(",", ":"), allow_nan=False)
                (unfinished / f"{name}.json").write_text(text)
    except OSError as error:
        raise TraceError(
            f"{folder}: cannot be written ({error.strerror or error}): name a new folder."
        ) from None


def _record(request: Request, runs: IdRuns) -> dict[str, Any]:
    return {
        "t": request.arrival_s,
        "type": "n",
        "in": request.input_tokens,
        "out": request.output_tokens,
        "hash_ids": list(runs),
    }


def _check(number: int, request: Request, first: Request) -> None:
    size, count = request.hash_block_tokens, len(request.prefix_hashes)
    if not size or count < request.input_tokens // size:
        raise TraceError(
            f"a weka trace has an id for every full block, and request {number} has {count:,} ids "
            f"for {request.input_tokens:,} tokens: take another format."
        )
    if size != first.hash_block_tokens:
        raise TraceError(
            f"request {number} has ids of {size:,} tokens, request 0 of "
            f"{first.hash_block_tokens:,}: a weka trace has one block size."
        )


def _fit(ids: list[IdRuns]) -> list[IdRuns]:
    """Ids of every request, moved together where one is beyond what the format can hold."""
    if all(runs.lie_in(0, ID_BOUND) for runs in ids):
        return ids
    starts = np.concatenate([runs.starts for runs in ids])
    counts = np.concatenate([runs.counts for runs in ids])
    edges, number = _number_anew(starts, counts)
    return [IdRuns(number[edges.searchsorted(runs.starts)], runs.counts) for runs in ids]


def _number_anew(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """First ids of all runs, rising, and their new numbers: gaps between ids are closed.

    So a run stays one.
    """
    edges, place = np.unique(np.concatenate([starts, starts + counts]), return_inverse=True)
    opened, closed = np.split(place, 2)
    depth = np.zeros(len(edges), np.int64)
    np.add.at(depth, opened, 1)
    np.add.at(depth, closed, -1)
    covered = depth.cumsum() > 0  # whether ids lie between an edge and the next one
    sizes = np.where(covered[:-1], np.diff(edges), 0)
    return edges, np.concatenate([[0], sizes.cumsum()])
