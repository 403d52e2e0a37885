"""Weka's agentic traces (callanjfox/kv-cache-tester): one JSON file per conversation.

``hash_ids`` stand for full blocks. Requests of type ``subagent`` nest requests of their own, whose
times count from the sub-agent's start. A folder is merged on one clock: conversation k, by file
name, starts k × stagger seconds after the first.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from dsv4kv.errors import TraceError
from dsv4kv.traces import files as tf
from dsv4kv.traces.formats import TraceFormat
from dsv4kv.traces.request import IdRuns, Request

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
    try:
        read = [0, *accumulate(path.stat().st_size for path in files)]
    except OSError as error:
        raise TraceError(f"{error.filename}: cannot be read ({error.strerror}).") from None
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
    ids, took_s = _read_ids(tf.required(record, "hash_ids")), record.get("api_time", -1)
    known = type(took_s) in (int, float) and 0 <= took_s <= tf.MOST_S
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
        answer_s=float(took_s) if known else None,
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


WEKA = TraceFormat(
    _read_weka,
    frozenset({"hash_id_scope"}),
    'one conversation, {"block_size": tokens, "hash_id_scope": "local" or "global", '
    '"requests": [{"t": s, "type": …, "in": tokens, "out": tokens, "hash_ids": [...]}]}, or a '
    "folder of them",
)
