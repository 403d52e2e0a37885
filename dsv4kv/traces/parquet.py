"""Traces as Parquet files: a row for every request, read and written a row group at a time.

| column | type | meaning |
|---|---|---|
| arrival_s | double | seconds from the start of the trace |
| input_tokens, output_tokens | int64 | lengths |
| hash_block_tokens | int32 | tokens an id stands for; 0 or missing without ids |
| run_starts, run_counts | list of int64 | first id and length of every run of consecutive ids |
| prefix_hashes | list of int64 | read instead of runs: all ids |
| session | int64 | number of the conversation it is a turn of; empty where that is not known |
| answer_s | double | seconds that its answer took; empty where not known |

A file without these has the names, unit and tokens per id that options give, as a ``timed`` trace.
Ids of unsigned 64 bits are kept as the signed numbers of the same bits.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.processes import ChildEnded, Confined, bounded_memory, without_stderr
from dsv4kv.traces import files as tf
from dsv4kv.traces.paths import Ints, join_runs
from dsv4kv.traces.request import Batch, IdRuns, Request, as_runs
from dsv4kv.units import UNITS_PER_SECOND

MAGIC = b"PAR1"
_GROUP_ROWS = 2**13
_MOST_BYTES = 2**31  # of memory that reading may take, and as much as the file
_SPARED_ROWS, _SPARED_VALUES = 2**18, 2**22  # that a small file may have in any case
_VALUES = 64  # of a byte, more: ids of long equal prompts; a row has a byte at least
_NATIVE = tf.TimedFields("arrival_s", "input_tokens", "output_tokens", "prefix_hashes")
_RUNS, _TURN = ("run_starts", "run_counts"), ("session", "answer_s")


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do; raises ``TraceError`` if it cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}).") from None


def read_rows(path: Path, options: tf.ReadOptions) -> Iterator[tuple[str, Request]]:
    """Yield the requests with their places, ``file:row``, from 1; raises as ``read_columns``."""
    number = 0
    for batch, sizes, turns in _read_apart(path, options):
        edges = np.searchsorted(batch.request, np.arange(len(sizes) + 1)).tolist()
        columns = (batch.arrival_s, batch.input_tokens, batch.output_tokens, sizes)
        rows = zip(*(column.tolist() for column in columns), edges, edges[1:], strict=False)
        for row, session, answer_s in zip(rows, *turns, strict=True):
            arrival_s, tokens_in, tokens_out, size, low, high = row
            number += 1
            ids: Sequence[int] = IdRuns(batch.start[low:high], batch.count[low:high])
            if high - low == len(ids):
                ids = tuple(ids)
            known = type(answer_s) is float and 0 <= answer_s < inf
            turn = session if type(session) is int else None, answer_s if known else None
            yield f"{path}:{number}", Request(arrival_s, tokens_in, tokens_out, ids, size, *turn)


def read_columns(path: Path, options: tf.ReadOptions) -> Iterator[Batch]:
    """Yield the requests as columns, a row group's at a time; ``TraceError``, ``ConfigError``."""
    return (batch for batch, *_ in _read_apart(path, options))


Group = tuple[Batch, Ints, list[list[Any]]]
"""Requests, the tokens of an id of each, their sessions and the seconds of their answers."""


def _read_apart(path: Path, options: tf.ReadOptions) -> Iterator[Group]:
    """Read in a child process, which pyarrow ends over damaged files."""
    groups = Confined(_Groups, path, replace(options, watch=None))
    size, done = path.stat().st_size, 0
    try:
        while found := groups.ask("next"):
            group, rows = found
            done += len(group[1])
            if options.watch:
                options.watch(size * done // max(rows, 1), size)
            yield group
    except ChildEnded as ended:
        raise TraceError(
            f"{path}: it is damaged: pyarrow ended over it (code {ended.code})."
        ) from None


class _Groups:
    """The row groups of a file, one by one."""

    def __init__(self, path: Path, options: tf.ReadOptions) -> None:
        os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others take more than is asked for
        self._groups = read_groups(path, options)
        self._most_bytes = _MOST_BYTES + path.stat().st_size

    def next(self) -> tuple[Group, int] | None:
        """The next, and the rows of the file; None at its end."""
        with bounded_memory(self._most_bytes), without_stderr():
            return next(self._groups, None)


def read_groups(path: Path, options: tf.ReadOptions) -> Iterator[tuple[Group, int]]:
    """The row groups, and the rows of the file; raises as ``read_columns``."""
    arrow, parquet = _import(path)
    size, block_tokens, done, before_s = path.stat().st_size, 0, 0, -inf
    try:
        # buffered ahead, every row group that was read would stay in memory
        file = parquet.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        names = file.schema_arrow.names
        if _NATIVE.time in names:
            options = replace(options, fields=_NATIVE, time_unit="s", id_tokens=None)
        names = _find_columns(names, options, path)
        if twice := [name for name in names if file.schema_arrow.names.count(name) > 1]:
            raise TraceError(f"{path}: it has several columns {twice[0]}: keep one.")
        types = {name: file.schema_arrow.field(name).type for name in {*_TURN} & {*names}}
        names = [n for n in names if n not in types or arrow.types.is_primitive(types[n])]
        _check_size(file, names, size, path)
        rows = file.metadata.num_rows
        for group in file.iter_batches(_GROUP_ROWS, columns=names, use_threads=False):
            batch, sizes = _check(group, options, path, done)
            if len({*sizes.tolist(), block_tokens} - {0}) > 1:
                raise TraceError(f"{path}: rows have several block sizes: a trace has one.")
            early = np.flatnonzero(np.diff(batch.arrival_s, prepend=before_s) < 0)
            if len(early) and not options.any_order:
                at = int(early[0])
                before_s = batch.arrival_s[at - 1] if at else before_s
                raise tf.backwards(f"{path}:{done + at + 1}", batch.arrival_s[at], before_s)
            before_s = float(batch.arrival_s[-1])
            block_tokens = block_tokens or batch.hash_block_tokens
            done += len(sizes)
            turns = [
                group.column(name).to_pylist() if name in names else [None] * len(sizes)
                for name in _TURN
            ]
            yield (batch, sizes, turns), rows
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TraceError(f"{path}: cannot be read as Parquet ({reason}).") from None
    if not done:
        raise TraceError(f"{path}: the trace has no requests.")
    if done != rows:
        raise TraceError(f"{path}: it has {done:,} of {rows:,} rows: it is damaged.")


def _check_size(file: Any, names: Sequence[str], size: int, path: Path) -> None:
    """Refuse before they are read: columns of texts, more values than such a file has."""
    table, values = file.metadata, 0
    for number in range(table.num_columns):
        column = file.schema.column(number)
        for name in names:
            if not f"{column.path}.".startswith(f"{name}."):
                continue
            if column.physical_type.endswith("BYTE_ARRAY"):
                kind = file.schema_arrow.field(name).type
                raise TraceError(f"{path}: column {name} is {kind}, not numbers.")
            groups = map(table.row_group, range(table.num_row_groups))
            values += sum(group.column(number).num_values for group in groups)
    if table.num_rows > _SPARED_ROWS + size or values > _SPARED_VALUES + _VALUES * size:
        raise TraceError(
            f"{path}: {table.num_rows:,} rows with {values:,} values in {size:,} B are more than "
            "a trace has: write it as JSON lines."
        )


def _find_columns(names: Sequence[str], options: tf.ReadOptions, path: Path) -> list[str]:
    wanted = options.fields
    needed = [wanted.time, wanted.input, wanted.output]
    if missing := [name for name in needed if name not in names]:
        raise TraceError(
            f"{path}: it has no column {missing[0]}, only {', '.join(names)}: name the "
            "columns of time, prompt and output length: --fields T,IN,OUT[,IDS]."
        )
    if wanted is _NATIVE:
        ids = _RUNS if set(_RUNS) <= set(names) else (wanted.ids,)
        more = (*ids, "hash_block_tokens", *_TURN)
        return needed + [name for name in more if name in names]
    if wanted.ids in names and options.id_tokens is None:
        raise TraceError(f"{path}: {wanted.ids} is given, but not the tokens per id: --id-tokens.")
    return needed + [wanted.ids] * (wanted.ids in names)


def _check(group: Any, options: tf.ReadOptions, path: Path, before: int) -> tuple[Batch, Ints]:
    rows, wanted, per_second = group.num_rows, options.fields, UNITS_PER_SECOND[options.time_unit]
    sizes = np.full(rows, options.id_tokens or 0)
    if wanted is _NATIVE and "hash_block_tokens" in group.schema.names:
        sizes = _whole(group.column("hash_block_tokens"), "hash_block_tokens", path)
    arrival = _numbers(group.column(wanted.time), wanted.time, path, "iuf") / per_second
    tokens_in = _whole(group.column(wanted.input), wanted.input, path)
    tokens_out = _whole(group.column(wanted.output), wanted.output, path)
    owner, start, count = _read_ids(group, wanted.ids, path)
    blocks = np.zeros(rows, np.int64)
    np.add.at(blocks, owner, count)
    full, part = np.divmod(tokens_in, np.maximum(sizes, 1))
    is_counted = np.where(sizes > 0, (blocks == full) | (blocks == full + (part > 0)), blocks == 0)
    odd = (count < 1) | (count > tf.MAX_TOKENS) | (start > tf.ODD_ID - count.clip(1))
    good = {
        f"{wanted.time} is not within {tf.MOST_S:,} s of 0": np.abs(arrival) <= tf.MOST_S,
        f"{wanted.input} is not from 1 to {tf.MAX_TOKENS:,}": (tokens_in >= 1)
        & (tokens_in <= tf.MAX_TOKENS),
        f"{wanted.output} is not from 0 to {tf.MAX_TOKENS:,}": (tokens_out >= 0)
        & (tokens_out <= tf.MAX_TOKENS),
        "hash_block_tokens is negative": sizes >= 0,
        "it has more or fewer ids than blocks": is_counted,
        "a run of ids has no length, or reaches 2^63 - 1": np.bincount(owner, odd, rows) == 0,
    }
    for what, where in good.items():
        if not where.all():
            raise TraceError(f"{path}:{before + int(where.argmin()) + 1}: {what}.")
    size = int(sizes.max(initial=0))
    return Batch(arrival, tokens_in, tokens_out, size, *join_runs(owner, start, count)), sizes


def _read_ids(group: Any, name: str, path: Path) -> tuple[Ints, Ints, Ints]:
    if set(_RUNS) <= set(group.schema.names):
        (owner, start), (_, count) = (_lists(group.column(each), each, path) for each in _RUNS)
        if len(start) != len(count):
            raise TraceError(f"{path}: run_starts and run_counts are not as many.")
        return owner, start, count
    if name in group.schema.names:
        owner, start = _lists(group.column(name), name, path)
        return owner, start, np.ones(len(start), np.int64)
    nothing = np.zeros(0, np.int64)
    return nothing, nothing, nothing


def _lists(column: Any, name: str, path: Path) -> tuple[Ints, Ints]:
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        raise TraceError(f"{path}: column {name} is {column.type}, not a list.")
    lengths = np.from_dlpack(column.value_lengths().fill_null(0))
    owner = np.repeat(np.arange(len(lengths)), lengths.astype(np.int64))
    return owner, _whole(column.flatten(), name, path)


def _whole(column: Any, name: str, path: Path) -> Ints:
    # unsigned ones wrap around, which keeps ids apart
    return _numbers(column, name, path, "iu").astype(np.int64)


def _numbers(column: Any, name: str, path: Path, kinds: str) -> NDArray[Any]:
    if column.null_count:
        raise TraceError(f"{path}: column {name} has rows without a value.")
    try:
        # to_numpy imports pandas, and drops an interrupt that comes meanwhile
        values: NDArray[Any] = np.from_dlpack(column)
    except TypeError:  # of times, of true and false
        values = np.zeros(0, bool)
    if values.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "whole numbers"
        raise TraceError(f"{path}: column {name} is {column.type}, not {what}.")
    return values


def write_parquet(requests: Iterable[Request], path: Path) -> int:
    """Write the requests, whole or not at all, in the memory of a row group; return their number.

    Raises ``TraceError``, ``ConfigError``.
    """
    arrow, parquet = _import(path)
    if path.suffix == ".gz":
        raise TraceError(f"{path}: Parquet is compressed already: leave .gz out.")
    ids = arrow.list_(arrow.int64())
    lengths = dict.fromkeys(("input_tokens", "output_tokens"), arrow.int64())
    types = {"arrival_s": arrow.float64(), **lengths, "hash_block_tokens": arrow.int32()}
    types |= {**dict.fromkeys(_RUNS, ids), "session": arrow.int64(), "answer_s": arrow.float64()}
    schema, total, left = arrow.schema(list(types.items())), 0, iter(requests)
    rows = list(islice(left, _GROUP_ROWS))
    if not rows:
        raise TraceError(f"{path}: not written, there are no requests.")
    options = {"compression": "zstd", "write_page_checksum": True}
    with tf.writing(path) as raw, parquet.ParquetWriter(raw, schema, **options) as file:
        while rows:
            runs = [as_runs(each.prefix_hashes) for each in rows]
            columns = {n: [getattr(row, n) for row in rows] for n in types.keys() - {*_RUNS}}
            columns |= {"run_starts": [r.starts for r in runs]}
            columns |= {"run_counts": [r.counts for r in runs]}
            try:
                file.write_batch(arrow.record_batch(columns, schema=schema))
            except OverflowError:  # of ids and lengths it is known that they fit
                raise TraceError(f"{path}: not written, a session has over 64 bits.") from None
            total += len(rows)
            rows = list(islice(left, _GROUP_ROWS))
    return total


def _import(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow, which is not installed: pip install "
            "'dsv4kv[parquet]'."
        ) from None
    return pyarrow, parquet
