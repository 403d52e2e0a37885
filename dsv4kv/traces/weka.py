"""Weka's agentic traces (callanjfox/kv-cache-tester): one JSON file per conversation.

``hash_ids`` stand for full blocks. Requests of type ``subagent`` nest requests of their own, whose
times count from the sub-agent's start. A folder is merged on one clock: conversation k, by file
name, starts k × stagger seconds after the first.

Lists of block ids in a conversation's text, read before the rest of it. A turn repeats the ids of
the turn before it: where the text of a list begins as that of the list before, its ids do, too,
and only what follows is parsed.

Writes a folder of Weka conversations: one file per session, all on the clock of the trace.
Sessions are found by what prompts begin with. Ids are those of the whole folder (``global``): kept
where the format can hold them, numbered anew in their order where it cannot.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.files import replacing_folder
from dsv4kv.prefix.paths import Ints
from dsv4kv.traces.files import (
    Defect,
    ReadOptions,
    TraceLines,
    open_trace,
    parse_object,
    read_time,
    read_tokens,
    required,
)
from dsv4kv.traces.formats import TraceFormat
from dsv4kv.traces.request import GrowingRuns, IdRuns, Request, Sessions, as_runs, full_blocks

_LIST = re.compile(r'(?<!\\)"hash_ids"\s*:\s*\[')
ID_BOUND = 2**40
"""Ids are below; so those of many conversations can be kept apart in 64 bits."""
_MARK = "\\u0000"  # no trace has it; a text that does is left alone


def lift_ids(text: str) -> tuple[str, list[IdRuns]]:
    """Take the lists of ids out of a JSON text.

    Returns:
        The text with a name in the place of every list that was taken, and those lists. Lists of
        anything but whole numbers from 0 to 2^40 stay where they are.
    """
    if _MARK in text:
        return text, []
    kept: list[str] = []
    lists: list[IdRuns] = []
    at = 0
    before, growing = "", GrowingRuns()
    while match := _LIST.search(text, at):
        end = text.find("]", match.end())
        if end < 0:
            break
        body = text[match.end() : end]
        if not _read_list(body, before, growing):
            kept.append(text[at:end])
            at = end
            continue
        before = body
        kept += text[at : match.end() - 1], f'"{_MARK}{len(lists)}"'
        lists.append(growing.runs())
        at = end + 1
    return "".join([*kept, text[at:]]), lists


def lifted(value: Any, lists: list[IdRuns]) -> IdRuns | None:
    """The list that a name stands for; None where the value is no name."""
    if lists and type(value) is str and value.startswith("\0"):
        return lists[int(value[1:])]
    return None


def _read_list(body: str, before: str, growing: GrowingRuns) -> bool:
    same = body.rfind(",", 0, _common_length(body, before)) + 1
    try:
        rest = json.loads(f"[{body[same:]}]")
    except (ValueError, RecursionError):
        return False
    if not set(map(type, rest)) <= {int} or (same and not rest):
        return False
    if rest and not 0 <= min(rest) <= max(rest) < ID_BOUND:
        return False
    growing.cut(body.count(",", 0, same))
    growing.extend(rest)
    return True


def _common_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


_SUFFIXES = (".json", ".json.gz")
_MAX_NESTING = 64

Placed = tuple[str, Request]
"""A request, and where in its file it is."""


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
    files = conversation_files(folder)
    read, total = 0, sum(path.stat().st_size for path in files)
    for number, path in enumerate(files):
        with open_trace(path) as lines:
            found = read_placed(lines, number, number * options.stagger_s)
        placed += [(f"{path}: {place}", request) for place, request in found]
        if found:
            sizes.setdefault(found[0][1].hash_block_tokens, path)
        read += path.stat().st_size
        if options.watch:
            options.watch(read, total)
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise TraceError(
            f"{second}: block_size is {two}, {first} has {one}: a trace has one block size."
        )
    if not placed:
        raise TraceError(f"{folder}: no conversation of the folder has a request.")
    placed.sort(key=lambda item: item[1].arrival_s)  # stable
    yield from placed


def _read_weka(lines: TraceLines, _: ReadOptions) -> Iterator[Request]:
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
    found: list[Placed] = []
    _read_level(conversation, "", start_s, _Blocks(size, offset, lists, number), found)
    return found


class _Blocks(NamedTuple):
    """Tokens of a block, what is added to its ids, lists of ids read before, the conversation."""

    size: int
    offset: int
    lists: list[IdRuns]
    session: int


def _parse(text: str) -> tuple[dict[str, Any], list[IdRuns]]:
    rest, lists = lift_ids(text)
    try:
        return parse_object(rest), lists
    except Defect:
        return parse_object(text), []  # whose defect names the right column


def _read_level(
    level: dict[str, Any], place: str, start_s: float, blocks: _Blocks, found: list[Placed]
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
                found.append((here, _read_request(record, time_s, blocks)))
        except Defect as defect:
            raise Defect(f"{here}: {defect}") from None
        if record.get("type") == "subagent":
            _read_level(record, f"{here}.", time_s, blocks, found)


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
        session=blocks.session,
        answer_s=_answer_s(record.get("api_time")),
    )


def _answer_s(value: Any) -> float | None:
    is_time = type(value) in (int, float) and 0 <= value < float("inf")
    return float(value) if is_time else None


def _read_ids(value: Any, blocks: _Blocks) -> IdRuns:
    ids = lifted(value, blocks.lists)
    if ids is None:
        if type(value) is not list or not set(map(type, value)) <= {int}:
            raise Defect("hash_ids is no list of whole numbers")
        if value and not (min(value) >= 0 and max(value) < ID_BOUND):
            raise Defect(f"hash_ids go from {min(value)} to {max(value)}, expected 0 to 2^40")
        return IdRuns.of(value)
    return ids


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
                document = {
                    "id": name,
                    "block_size": size,
                    "hash_id_scope": "global",
                    "tool_tokens": 0,
                    "system_tokens": 0,
                    "requests": [_record(request, runs) for request, runs in turns],
                }
                text = json.dumps(document, separators=(",", ":"), allow_nan=False)
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
    covered = depth.cumsum() > 0  # whether ids are between an edge and the next one
    sizes = np.where(covered[:-1], np.diff(edges), 0)
    return edges, np.concatenate([[0], sizes.cumsum()])


WEKA = TraceFormat(
    _read_weka,
    frozenset({"hash_id_scope"}),
    'one conversation, {"block_size": tokens, "hash_id_scope": "local" or "global", '
    '"requests": [{"t": s, "type": …, "in": tokens, "out": tokens, "hash_ids": [...]}]}, or a '
    "folder of them",
)
