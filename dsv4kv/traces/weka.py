"""Weka's agentic traces (callanjfox/kv-cache-tester): one JSON file per conversation.

``hash_ids`` stand for full blocks. Requests of type ``subagent`` nest requests of their own, whose
times count from the sub-agent's start. A folder is merged on one clock: conversation k, by file
name, starts k × stagger seconds after the first.

A written folder has a file for every session, found by what prompts begin with, all on the clock
of the trace. Ids are valid in the whole folder (``global``): kept where the format can hold them,
numbered anew in their order where it cannot.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.files import replacing_folder
from dsv4kv.traces import files as tf
from dsv4kv.traces.formats import TraceFormat
from dsv4kv.traces.request import IdRuns, Request, Sessions, as_runs, full_blocks

ID_BOUND = 2**40
"""Ids are below it, so ids of many conversations can be kept apart in 64 bits."""
_SUFFIXES = (".json", ".json.gz")
_MAX_NESTING = 64

Placed = tuple[str, Request]
"""A request, and where in its file it is."""


def conversation_files(folder: Path) -> list[Path]:
    """The files of a folder that may be conversations, in order of their names."""
    files = (path for path in folder.iterdir() if path.name.endswith(_SUFFIXES))
    return sorted(files, key=attrgetter("name"))  # paths take ten times as long to compare


def read_weka_folder(folder: Path, options: tf.ReadOptions) -> Iterator[Placed]:
    """Yield all conversations' requests in order of arrival; all are held; ``TraceError``."""
    placed: list[Placed] = []
    sizes: dict[int, Path] = {}
    files = conversation_files(folder)
    read = [0, *accumulate(path.stat().st_size for path in files)]
    for number, path in enumerate(files):
        with tf.open_trace(path) as lines:
            found = _read_placed(lines, number, number * options.stagger_s)
        placed += [(f"{path}: {place}", request) for place, request in found]
        if found:
            sizes.setdefault(found[0][1].hash_block_tokens, path)
        if options.watch:
            options.watch(read[number + 1], read[-1])
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise TraceError(
            f"{second}: block_size is {two}, {first} has {one}: a trace has one block size."
        )
    if not placed:
        raise TraceError(f"{folder}: no conversation of the folder has a request.")
    placed.sort(key=lambda item: item[1].arrival_s)  # stable
    yield from placed


def _read_weka(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    placed = _read_placed(lines, 0, 0.0)
    yield from (request for _, request in sorted(placed, key=lambda item: item[1].arrival_s))


def _read_placed(lines: tf.TraceLines, number: int, start_s: float) -> list[Placed]:
    text = lines.rest()
    lines.number = 1  # one document: places inside it say more than its lines
    conversation = tf.parse_object(text)
    size = tf.read_tokens(conversation, "block_size", low=1)
    scope = tf.required(conversation, "hash_id_scope")
    if scope not in ("local", "global"):
        raise tf.Defect(f"hash_id_scope is {scope!r}, expected local or global")
    # local ids are moved to where no other conversation has any
    offset = (number + 1) * ID_BOUND if scope == "local" else 0
    found: list[Placed] = []
    _read_level(conversation, "", start_s, _Blocks(size, offset, number), found)
    return found


class _Blocks(NamedTuple):
    size: int  # tokens of a block
    offset: int  # what is added to its ids
    session: int  # number of the conversation


def _read_level(
    level: dict[str, Any], place: str, start_s: float, blocks: _Blocks, found: list[Placed]
) -> None:
    requests = tf.required(level, "requests")
    if not isinstance(requests, list) or place.count(".") > _MAX_NESTING:
        raise tf.Defect(f"{place}requests is no list, or nested more than {_MAX_NESTING} times")
    for index, record in enumerate(requests):
        here = f"{place}requests[{index}]"
        try:
            if not isinstance(record, dict):
                raise tf.Defect("an object is expected")
            time_s = start_s + tf.read_time(record, "t", "seconds")
            if record.get("type") != "subagent":
                found.append((here, _read_request(record, time_s, blocks)))
        except tf.Defect as defect:
            raise tf.Defect(f"{here}: {defect}") from None
        if record.get("type") == "subagent":
            _read_level(record, f"{here}.", time_s, blocks, found)


def _read_request(record: dict[str, Any], time_s: float, blocks: _Blocks) -> Request:
    input_tokens, size = tf.read_tokens(record, "in", low=1), blocks.size
    ids, took_s = _read_ids(tf.required(record, "hash_ids")), record.get("api_time", inf)
    if len(ids) != input_tokens // size:
        raise tf.Defect(
            f"hash_ids has {len(ids):,} ids, expected {input_tokens // size:,}: one per full "
            f"block of {size} of {input_tokens:,} tokens"
        )
    return Request(
        arrival_s=time_s,
        input_tokens=input_tokens,
        output_tokens=tf.read_tokens(record, "out", low=0),
        prefix_hashes=ids.moved(blocks.offset),
        hash_block_tokens=size,
        session=blocks.session,
        answer_s=float(took_s) if type(took_s) in (int, float) and 0 <= took_s < inf else None,
    )


def _read_ids(value: Any) -> IdRuns:
    is_list, ids = type(value) is list, None
    with suppress(TypeError, OverflowError):
        ids = IdRuns.of(value) if is_list else None
    # IdRuns takes true and false for 1 and 0; types of all ids take as long as reading the rest
    is_plain = ids is not None and (not len(ids) or ids.starts.min() > 1)
    if not is_plain and not (is_list and set(map(type, value)) <= {int}):
        raise tf.Defect("hash_ids is no list of whole numbers")
    if ids is None or not _fits(ids):
        raise tf.Defect(f"hash_ids go from {min(value)} to {max(value)}, expected 0 to 2^40")
    return ids


def _fits(ids: IdRuns) -> bool:
    starts, counts = ids.starts, ids.counts
    return bool(((starts >= 0) & (starts < ID_BOUND) & (counts <= ID_BOUND - starts)).all())


def write_weka(requests: Iterable[Request], folder: Path) -> int:
    """Write all conversations, held in memory; return how many requests; raises ``TraceError``.

    A block that is not full has no id in this format.
    """
    sessions, written = Sessions(), list[tuple[int, Request, IdRuns]]()
    for number, request in enumerate(requests):
        _check(number, request, written[0][1] if written else request)
        runs = as_runs(request.prefix_hashes).first(full_blocks(request))
        written.append((sessions.place(request)[0], request, runs))
    if not written:
        raise TraceError(f"{folder}: not written, there are no requests.")
    conversations: dict[int, list[dict[str, Any]]] = {}
    fitting = _fit([runs for *_, runs in written])
    for (session, request, _), runs in zip(written, fitting, strict=True):
        record = {
            "t": request.arrival_s,
            "type": "n",
            "in": request.input_tokens,
            "out": request.output_tokens,
            "hash_ids": runs,
        }
        conversations.setdefault(session, []).append(record)
    digits = len(str(len(conversations)))
    try:
        with replacing_folder(folder) as unfinished:
            for session, turns in conversations.items():
                name = f"conversation-{session:0{digits}}"
                document = {
                    "id": name,
                    "block_size": written[0][1].hash_block_tokens,
                    "hash_id_scope": "global",
                    "tool_tokens": 0,
                    "system_tokens": 0,
                    "requests": [turn | {"hash_ids": list(turn["hash_ids"])} for turn in turns],
                }
                (unfinished / f"{name}.json").write_text(tf.json_line(document)[:-1])
    except OSError as error:
        raise TraceError(
            f"{folder}: cannot be written ({error.strerror or error}): name a new folder."
        ) from None
    return len(written)


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
    if all(map(_fits, ids)):
        return ids
    starts = np.sort(np.concatenate([runs.starts for runs in ids]))
    ends = np.sort(np.concatenate([runs.starts + runs.counts for runs in ids]))
    edges = np.unique(np.concatenate([starts, ends]))
    in_runs = starts.searchsorted(edges, "right") - ends.searchsorted(edges, "right")
    sizes = np.where(in_runs[:-1] > 0, np.diff(edges), 0)
    number = np.concatenate([[0], sizes.cumsum()])
    return [IdRuns(number[edges.searchsorted(runs.starts)], runs.counts) for runs in ids]


WEKA = TraceFormat(
    _read_weka,
    frozenset({"hash_id_scope"}),
    'one conversation, {"block_size": tokens, "hash_id_scope": "local" or "global", '
    '"requests": [{"t": s, "type": …, "in": tokens, "out": tokens, "hash_ids": [...]}]}, or a '
    "folder of them",
)
