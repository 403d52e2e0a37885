"""Weka's agentic traces (callanjfox/kv-cache-tester): one JSON file per conversation.

``hash_ids`` stand for full blocks. Requests of type ``subagent`` nest requests of their own, whose
times count from the sub-agent's start. A folder is merged on one clock: conversation k, by file
name, starts k × stagger seconds after the first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.fields import read_time, read_tokens, required
from dsv4kv.workload.traces.jsonl import parse_object
from dsv4kv.workload.traces.lines import Defect, TraceLines, open_trace
from dsv4kv.workload.traces.options import ReadOptions
from dsv4kv.workload.traces.runs import IdRuns
from dsv4kv.workload.traces.weka_ids import ID_BOUND, lift_ids, lifted

_SUFFIXES = (".json", ".json.gz")
_MAX_NESTING = 64

Placed = tuple[str, Request]
"""A request, and where in its file it stands."""


def conversation_files(folder: Path) -> list[Path]:
    """The files of a folder that may be conversations, in order of their names."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES))


def read_weka_folder(folder: Path, options: ReadOptions) -> Iterator[Placed]:
    """Yield the requests of all conversations in order of arrival.

    All are held until then, their ids as runs.

    Raises:
        TraceError: A file that is no conversation, or two block sizes.
    """
    placed: list[Placed] = []
    sizes: dict[int, Path] = {}
    for number, path in enumerate(conversation_files(folder)):
        with open_trace(path) as lines:
            told = read_placed(lines, number, number * options.stagger_s)
        placed += [(f"{path}: {place}", request) for place, request in told]
        if told:
            sizes.setdefault(told[0][1].hash_block_tokens, path)
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise TraceError(
            f"{second}: block_size is {two}, {first} has {one}: a trace has one block size."
        )
    if not placed:
        raise TraceError(f"{folder}: no conversation of the folder has a request.")
    placed.sort(key=lambda item: item[1].arrival_s)  # stable
    yield from placed


def read_weka(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests of one conversation in order of arrival."""
    placed = read_placed(lines, 0, 0.0)
    yield from (request for _, request in sorted(placed, key=lambda item: item[1].arrival_s))


def read_placed(lines: TraceLines, number: int, start_s: float) -> list[Placed]:
    """Read a whole conversation, in file order; its local ids are made its own."""
    text = lines.rest()
    lines.number = 1  # one document: places inside it say more than its lines
    conversation, lists = _parse(text)
    size = read_tokens(conversation, "block_size", low=1)
    scope = required(conversation, "hash_id_scope")
    if scope not in ("local", "global"):
        raise Defect(f"hash_id_scope is {scope!r}, expected local or global")
    # local ids are moved to where they meet nobody else's
    offset = (number + 1) * ID_BOUND if scope == "local" else 0
    told: list[Placed] = []
    _read_level(conversation, "", start_s, _Blocks(size, offset, lists), told)
    return told


class _Blocks(NamedTuple):
    """Tokens of a block, what is added to its ids, and lists of ids that were read before."""

    size: int
    offset: int
    lists: list[IdRuns]


def _parse(text: str) -> tuple[dict[str, Any], list[IdRuns]]:
    rest, lists = lift_ids(text)
    try:
        return parse_object(rest), lists
    except Defect:
        return parse_object(text), []  # whose defect tells the right column


def _read_level(
    level: dict[str, Any], place: str, start_s: float, blocks: _Blocks, told: list[Placed]
) -> None:
    requests = required(level, "requests")
    if not isinstance(requests, list) or place.count(".") > _MAX_NESTING:
        raise Defect(f"{place}requests is no list, or nested more than {_MAX_NESTING} times")
    for index, record in enumerate(requests):
        here = f"{place}requests[{index}]"
        try:
            if not isinstance(record, dict):
                raise Defect("an object is expected")
            time_s = start_s + read_time(record, "t", "seconds")
            if record.get("type") != "subagent":
                told.append((here, _read_request(record, time_s, blocks)))
        except Defect as defect:
            raise Defect(f"{here}: {defect}") from None
        if record.get("type") == "subagent":
            _read_level(record, f"{here}.", time_s, blocks, told)


def _read_request(record: dict[str, Any], time_s: float, blocks: _Blocks) -> Request:
    input_tokens, size = read_tokens(record, "in", low=1), blocks.size
    ids = _read_ids(required(record, "hash_ids"), blocks)
    if len(ids) != input_tokens // size:
        raise Defect(
            f"hash_ids has {len(ids):,} ids, expected {input_tokens // size:,}: one per full "
            f"block of {size} of {input_tokens:,} tokens"
        )
    return Request(
        arrival_s=time_s,
        input_tokens=input_tokens,
        output_tokens=read_tokens(record, "out", low=0),
        prefix_hashes=ids.moved(blocks.offset),
        hash_block_tokens=size,
    )


def _read_ids(value: Any, blocks: _Blocks) -> IdRuns:
    """Ids of a request as the file has them, checked."""
    ids = lifted(value, blocks.lists)
    if ids is None:
        if type(value) is not list or not set(map(type, value)) <= {int}:
            raise Defect("hash_ids is no list of whole numbers")
        if value and not (min(value) >= 0 and max(value) < ID_BOUND):
            raise Defect(f"hash_ids go from {min(value)} to {max(value)}, expected 0 to 2^40")
        return IdRuns.of(value)
    return ids
