"""Exports of nsys, made up: the tables that a test asks for, with the columns it asks for."""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PID = 4321
GLOBAL_PID = (1 << 56) | (PID << 24)
THREAD = GLOBAL_PID | 77
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_PLACE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
COLUMNS: Mapping[str, Sequence[str]] = {
    "StringIds": ("id", "value"),
    f"{_PREFIX}KERNEL": (*_PLACE, "demangledName", "shortName"),
    f"{_PREFIX}RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    f"{_PREFIX}MEMCPY": (*_PLACE, "bytes", "copyKind"),
    f"{_PREFIX}MEMSET": (*_PLACE, "bytes"),
    f"{_PREFIX}GRAPH_TRACE": (*_PLACE, "graphId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid"),
    "DIAGNOSTIC_EVENT": ("timestamp", "severity", "text"),
    "TARGET_INFO_GPU": ("id", "name", "cuDevice"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "META_DATA_EXPORT": ("name", "value"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
}
"""Columns as nsys 2025 writes them; those that nobody reads are left out."""

PUSH_POP, START_END, MARK = 59, 60, 34


class Export:
    """Rows of an export, written with ``save``.

    Attributes:
        columns: Columns of every table: a test leaves some out, or adds some.
    """

    def __init__(self) -> None:
        self.columns = {table: list(names) for table, names in COLUMNS.items()}
        self.rows: dict[str, list[Row]] = {}
        self._strings: dict[str, int] = {}

    def add(self, table: str, **values: Any) -> None:
        name = table if table in COLUMNS else f"{_PREFIX}{table}"
        self.rows.setdefault(name, []).append(values)

    def string(self, text: str) -> int:
        """Its number among the registered strings."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def range(
        self, name: str, start: int, end: int | None, *, registered: bool = False,
        thread: int = THREAD, kind: int = PUSH_POP,
    ) -> None:  # fmt: skip
        title: Row = {"textId": self.string(name)} if registered else {"text": name}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=thread, **title)

    def call(self, correlation: int, start: int, end: int, thread: int = THREAD) -> None:
        """A call of the host that launches."""
        name = self.string("cudaGraphLaunch_v10000")
        times = {"start": start, "end": end}
        self.add("RUNTIME", **times, globalTid=thread, correlationId=correlation, nameId=name)

    def kernel(
        self, name: str, correlation: int | None, start: int, end: int | None, **more: Any
    ) -> None:
        place = {"deviceId": 0, "streamId": 7, "globalPid": GLOBAL_PID}
        full = {"demangledName": self.string(f"void dsv::{name}<int>(int*)")}
        facts = {"start": start, "end": end, "correlationId": correlation, **place, **full}
        self.add("KERNEL", shortName=self.string(name), **facts | more)

    def save(self, path: Path) -> Path:
        with sqlite3.connect(path) as database:
            for table, rows in self.rows.items():
                columns = self.columns[table]
                names = ", ".join(f'"{name}"' for name in columns)
                database.execute(f'CREATE TABLE "{table}" ({names})')
                values = [[row.get(name) for name in columns] for row in rows]
                marks = ", ".join("?" * len(columns))
                database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        database.close()
        return path


KERNELS = ("window_insert", "flush", "gather_topk")
STEP_NS, KERNEL_NS, GAP_NS = 100_000, 10_000, 2_000


def two_replays() -> Export:
    """Two steps, each one launch of a graph of three kernels; in each a copy and a fill besides.

    A kernel takes 10 µs, and is idle 2 µs before the next.
    """
    export = Export()
    for step in range(2):
        begin, correlation = step * STEP_NS, 100 + step
        export.range("step", begin, begin + 20_000)
        export.range("inputs", begin + 1_000, begin + 3_000, registered=True)
        export.call(10 + step, begin + 1_500, begin + 2_500)
        export.range("replay", begin + 4_000, begin + 19_000, registered=True)
        export.call(correlation, begin + 5_000, begin + 8_000)
        for place, name in enumerate(KERNELS):
            start = begin + 30_000 + place * (KERNEL_NS + GAP_NS)
            export.kernel(name, correlation, start, start + KERNEL_NS, graphNodeId=900 + place)
        where = {"deviceId": 0, "streamId": 7, "globalPid": GLOBAL_PID}
        copied = where | {"correlationId": 10 + step, "bytes": 4096, "copyKind": 1}
        export.add("MEMCPY", start=begin + 21_000, end=begin + 22_000, **copied)
        filled = where | {"correlationId": correlation, "bytes": 512}
        export.add("MEMSET", start=begin + 23_000, end=begin + 24_000, **filled)
    return export
