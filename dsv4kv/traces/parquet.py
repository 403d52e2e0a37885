"""Traces as Parquet files: a row for every request, read and written a row group at a time.

| column | type | what it is |
|---|---|---|
| arrival_s | double | seconds from the start of the trace |
| input_tokens, output_tokens | int64 | lengths |
| hash_block_tokens | int32 | tokens an id stands for; 0 or left out where there are none |
| run_starts, run_counts | list of int64 | first id and length of every run of consecutive ids |
| prefix_hashes | list of int64 | read instead of runs: all ids |
| session | int64 | number of the conversation it is a turn of; empty where that is not known |
| answer_s | double | seconds that its answer took; likewise |

A file without these has the names, unit and tokens per id that options give, as a ``timed`` trace.
Ids of unsigned 64 bits are kept as the signed numbers of the same bits.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.prefix.paths import Ints
from dsv4kv.traces.files import (
    MAX_TOKENS,
    MOST_S,
    ODD_ID,
    Defect,
    ReadOptions,
    TimedFields,
    TraceLines,
    writing,
)
from dsv4kv.traces.formats import TraceFormat
from dsv4kv.traces.request import Batch, IdRuns, Request, RunBuffer, as_runs
from dsv4kv.units import UNITS_PER_SECOND

MAGIC = b"PAR1"
_GROUP_ROWS, _GROUP_RUNS = 2**16, 2**20
_BATCH_ROWS = 2**13
_NATIVE = TimedFields("arrival_s", "input_tokens", "output_tokens", "prefix_hashes")

_RUNS = ("run_starts", "run_counts")
_TURNS = ("session", "answer_s")
Turns = tuple[list[int | None], list[float | None]]


class Rows:
    """Some rows of a file, as columns.

    Attributes:
        batch: All but what rows say of themselves.
        hash_block_tokens: int64[requests]: tokens that an id of the request stands for.
        turns: Session and seconds of the answer of every request, None where it is not known.
    """

    def __init__(self, batch: Batch, hash_block_tokens: Ints, turns: Turns) -> None:
        """Take over the columns."""
        self.batch, self.hash_block_tokens, self.turns = batch, hash_block_tokens, turns

    def requests(self) -> Iterator[Request]:
        """The same, one by one."""
        batch = self.batch
        edges = np.searchsorted(batch.request, np.arange(len(batch.arrival_s) + 1)).tolist()
        rows = zip(
            batch.arrival_s.tolist(),
            batch.input_tokens.tolist(),
            batch.output_tokens.tolist(),
            self.hash_block_tokens.tolist(),
            edges[:-1],
            edges[1:],
            *self.turns,
            strict=True,
        )
        for arrival_s, tokens_in, tokens_out, size, low, high, session, answer_s in rows:
            starts, counts = batch.start[low:high], batch.count[low:high]
            ids: Sequence[int] = IdRuns(starts, counts)
            if high - low == len(ids):
                ids = tuple(starts.tolist())
            yield Request(arrival_s, tokens_in, tokens_out, ids, size, session, answer_s)


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do; raises ``TraceError`` if it cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}).") from None


def read_rows(path: Path, options: ReadOptions) -> Iterator[Rows]:
    """Read a file; memory is that of a row group.

    Raises:
        TraceError: It is no Parquet file, lacks columns, or a row is defective.
        ConfigError: pyarrow is not installed.
    """
    arrow, parquet = _import(path)
    size, block_tokens, done = path.stat().st_size, 0, 0
    try:
        # buffered ahead, every row group that was read would stay in memory
        file = parquet.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        reader = _Reader(file.schema_arrow.names, options, path)
        total = file.metadata.num_rows
        for group in file.iter_batches(_BATCH_ROWS, columns=reader.columns):
            rows = reader.read(group, done)
            sizes = set(rows.hash_block_tokens.tolist()) - {0}
            if len(sizes | ({block_tokens} - {0})) > 1:
                raise TraceError(f"{path}: rows have several block sizes: a trace has one.")
            block_tokens = block_tokens or rows.batch.hash_block_tokens
            done += len(rows.hash_block_tokens)
            if options.watch:
                options.watch(size * done // total, size)
            yield rows
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TraceError(f"{path}: cannot be read as Parquet ({reason}).") from None
    if not done:
        raise TraceError(f"{path}: the trace has no requests.")


def place_of_row(path: Path, number: int) -> str:
    """Where a request is, for sentences about it: rows count from 1."""
    return f"{path}:{number + 1}"


class _Reader:
    def __init__(self, names: Sequence[str], options: ReadOptions, path: Path) -> None:
        native = _NATIVE.time in names
        self._path, self._names = path, _NATIVE if native else options.fields
        self._per_second = 1.0 if native else UNITS_PER_SECOND[options.time_unit]
        self._id_tokens = None if native else options.id_tokens
        needed = (self._names.time, self._names.input, self._names.output)
        if missing := [name for name in needed if name not in names]:
            raise TraceError(
                f"{path}: it has no column {missing[0]}, only {', '.join(names)}: name the "
                "columns of time, prompt and output length: --fields T,IN,OUT[,IDS]."
            )
        self._runs = list(_RUNS) if native and set(_RUNS) <= set(names) else []
        ids = [] if self._runs or self._names.ids not in names else [self._names.ids]
        if ids and not native and self._id_tokens is None:
            raise TraceError(f"{path}: {ids[0]} is given, but not the tokens per id: --id-tokens.")
        self._ids = bool(ids)
        self._sized = native and "hash_block_tokens" in names
        self._turns = [name if native and name in names else None for name in _TURNS]
        turns = [name for name in self._turns if name]
        self.columns = [*needed, *self._runs, *ids, *["hash_block_tokens"] * self._sized, *turns]

    def read(self, group: Any, before: int) -> Rows:
        """Rows, after so many of the file.

        Raises:
            TraceError: One is defective.
        """
        names, rows = self._names, group.num_rows
        arrival = self._numbers(group.column(names.time), names.time, "iuf").astype(np.float64)
        tokens_in, tokens_out = (
            self._whole(group.column(name), name) for name in (names.input, names.output)
        )
        sizes = np.full(rows, self._id_tokens or 0, np.int64)
        if self._sized:
            sizes = self._whole(group.column("hash_block_tokens"), "hash_block_tokens")
        owner, start, count = self._read_ids(group)
        blocks = np.zeros(rows, np.int64)
        np.add.at(blocks, owner, count)
        full, part = np.divmod(tokens_in, np.maximum(sizes, 1))
        most = np.where(sizes > 0, full + (part > 0), 0)
        wrong = {
            f"{names.time} is not within {MOST_S:,} s of 0": ~(
                np.abs(arrival) <= MOST_S * self._per_second
            ),
            f"{names.input} is not from 1 to {MAX_TOKENS:,}": (tokens_in < 1)
            | (tokens_in > MAX_TOKENS),
            f"{names.output} is not from 0 to {MAX_TOKENS:,}": (tokens_out < 0)
            | (tokens_out > MAX_TOKENS),
            "hash_block_tokens is negative": sizes < 0,
            "it has more or fewer ids than blocks": (sizes > 0)
            & (blocks != most)
            & (blocks != full)
            | (sizes <= 0) & (blocks > 0),
            "a run of ids has no length, or reaches 2^63 - 1": np.bincount(
                owner,
                (count < 1) | (count > MAX_TOKENS) | (start > ODD_ID - count.clip(1)),
                rows,
            )
            > 0,
        }
        for what, where in wrong.items():
            if where.any():
                place = place_of_row(self._path, before + int(where.argmax()))
                raise TraceError(f"{place}: {what}.")
        runs = RunBuffer()
        runs.extend(owner, start, count)
        size = int(sizes.max(initial=0))
        seconds = arrival / self._per_second
        batch = Batch(seconds, tokens_in, tokens_out, size, *runs.pop())
        return Rows(batch, sizes, self._read_turns(group))

    def _read_turns(self, group: Any) -> Turns:
        session, answer = (
            group.column(name).to_pylist() if name else [None] * group.num_rows
            for name in self._turns
        )
        return (
            [value if type(value) is int else None for value in session],
            [value if type(value) is float and 0 <= value < inf else None for value in answer],
        )

    def _read_ids(self, group: Any) -> tuple[Ints, Ints, Ints]:
        """Request, first id and length of every run as the file has them."""
        if self._runs:
            (owner, start), (_, count) = (self._lists(group, name) for name in self._runs)
            if len(start) != len(count):
                raise TraceError(f"{self._path}: run_starts and run_counts are not as many.")
            return owner, start, count
        if self._ids:
            owner, start = self._lists(group, self._names.ids)
            return owner, start, np.ones(len(start), np.int64)
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing

    def _lists(self, group: Any, name: str) -> tuple[Ints, Ints]:
        """Request and value of everything in a column of lists."""
        column = group.column(name)
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            raise TraceError(f"{self._path}: column {name} is {column.type}, not a list.")
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(len(lengths)), lengths.astype(np.int64))
        return owner, self._whole(column.flatten(), name)

    def _numbers(self, column: Any, name: str, kinds: str) -> NDArray[Any]:
        if column.null_count:
            raise TraceError(f"{self._path}: column {name} has rows without a value.")
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "whole numbers"
            raise TraceError(f"{self._path}: column {name} is {column.type}, not {what}.")
        return values

    def _whole(self, column: Any, name: str) -> Ints:
        values = self._numbers(column, name, "iu")
        # unsigned ones wrap around, which keeps ids apart
        return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def write_parquet(requests: Iterable[Request], path: Path) -> int:
    """Write the requests; return how many there were. Memory is that of a row group.

    The file appears under its name when it is complete.

    Raises:
        TraceError: It cannot be written, or there are no requests.
        ConfigError: pyarrow is not installed.
    """
    arrow, parquet = _import(path)
    if path.suffix == ".gz":
        raise TraceError(f"{path}: Parquet is compressed already: leave .gz out.")
    names = {"arrival_s": arrow.float64(), "input_tokens": arrow.int64()}
    names |= {"output_tokens": arrow.int64(), "hash_block_tokens": arrow.int32()}
    names |= {name: arrow.list_(arrow.int64()) for name in _RUNS}
    names |= dict(zip(_TURNS, (arrow.int64(), arrow.float64()), strict=True))
    schema, total, left = arrow.schema(list(names.items())), 0, iter(requests)
    first = next(left, None)
    if first is None:
        raise TraceError(f"{path}: not written, there are no requests.")
    left = chain([first], left)
    options = {"compression": "zstd", "write_page_checksum": True}
    with writing(path) as raw, parquet.ParquetWriter(raw, schema, **options) as file:
        while columns := _take_group(arrow, left):
            group = arrow.record_batch(columns, schema=schema)
            file.write_batch(group)
            total += group.num_rows
    return total


def _take_group(arrow: Any, left: Iterator[Request]) -> list[Any]:
    arrival, whole = array("d"), [array("q") for _ in range(3)]
    runs, edges, turns = [array("q"), array("q")], array("i", [0]), list[Any]()
    for request in left:
        turns.append((request.session, request.answer_s))
        arrival.append(request.arrival_s)
        values = (request.input_tokens, request.output_tokens, request.hash_block_tokens)
        for column, value in zip(whole, values, strict=True):
            column.append(value)
        ids = as_runs(request.prefix_hashes)
        runs[0].frombytes(ids.starts.tobytes())
        runs[1].frombytes(ids.counts.tobytes())
        edges.append(len(runs[0]))
        if len(arrival) == _GROUP_ROWS or len(runs[0]) >= _GROUP_RUNS:
            break
    if not arrival:
        return []
    plain_columns = [arrow.array(np.frombuffer(arrival)), *map(_as_arrow(arrow), whole)]
    plain_columns[3] = plain_columns[3].cast(arrow.int32())
    offsets = arrow.array(np.frombuffer(edges, np.int32))
    lists = [arrow.ListArray.from_arrays(offsets, _as_arrow(arrow)(each)) for each in runs]
    session, answer_s = zip(*turns, strict=True)
    known = arrow.array(session, arrow.int64()), arrow.array(answer_s, arrow.float64())
    return [*plain_columns, *lists, *known]


def _as_arrow(arrow: Any) -> Any:
    return lambda column: arrow.array(np.frombuffer(column, np.int64))


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


def _refuse_lines(lines: TraceLines, _: ReadOptions) -> Iterator[Request]:
    raise Defect(f"this is no Parquet file: it does not begin with {MAGIC.decode()}")


PARQUET = TraceFormat(
    _refuse_lines,
    frozenset(),
    "a Parquet file with columns arrival_s, input_tokens, output_tokens, or as --fields names",
)
