"""The tables of a profile: where the time went, kernel by kernel and operation by operation.

Rates are decimal: 1 GB/s is 10^9 B/s, or one byte per nanosecond.
"""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dsv4kv.measure.profilers.classify import CATEGORIES
from dsv4kv.measure.profilers.names import shorten
from dsv4kv.report.cells import ABSENT, format_number, new_table
from dsv4kv.report.profile_record import KernelRow, KernelTable, OperationRow
from dsv4kv.report.yardstick import Yardstick
from dsv4kv.units import format_bytes

_NS_TO_US = 1e-3
_MOST_AMPLIFICATION = 1.10
"""Bytes moved over useful bytes that a gather or an insert may have."""


def kernels_table(table: KernelTable, most: int | None, yardstick: Yardstick | None) -> Table:
    """Kernels by their time, the longest ``most`` of them, all for None."""
    shown = table.kernels[:most]
    total = sum(row.total_ns for row in table.kernels) or 1
    known = [row for row in shown if row.useful_bytes is not None]
    gaps = any(row.gap_ns is not None for row in shown)
    view = new_table("Kernels", _title_note(table))
    view.add_column("kernel", overflow="fold")
    view.add_column("does", no_wrap=True)
    for header in ("calls", "total\nµs", "% of\nall", "median\nµs", "p95\nµs", "min\nµs"):
        view.add_column(header, justify="right", no_wrap=True)
    if gaps:
        view.add_column("idle\nbefore", justify="right", no_wrap=True)
    if known:
        view.add_column("GB/s", justify="right", no_wrap=True)
        view.add_column(f"% of\n{yardstick.name if yardstick else 'copy'}", justify="right")
    for title, row in zip(titles(shown), shown, strict=True):
        cells = [
            title,
            row.category,
            f"{row.calls:,}",
            _us(row.total_ns),
            f"{row.total_ns / total * 100:.1f}",
            _us(row.median_ns),
            _us(row.p95_ns),
            _us(row.min_ns),
        ]
        cells += [_us(row.gap_ns)] if gaps else []
        cells += _rate(row.useful_bytes, row.total_ns, yardstick) if known else []
        view.add_row(*cells)
    return view


def classes_table(table: KernelTable) -> Table:
    """Time by what kernels do to the cache."""
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for row in table.kernels:
        spent[row.category] += row.total_ns
        calls[row.category] += row.calls
    steps = table.num_steps
    view = new_table("What they do")
    view.add_column("does", no_wrap=True)
    for header in ("calls", "total µs", "µs a step" if steps else "", "% of all"):
        if header:
            view.add_column(header, justify="right", no_wrap=True)
    for category in CATEGORIES:
        if calls[category]:
            a_step = [_us(spent[category] / steps)] if steps else []
            share = f"{spent[category] / (spent.total() or 1) * 100:.1f}"
            view.add_row(category, f"{calls[category]:,}", _us(spent[category]), *a_step, share)
    return view


def operations_table(operations: Sequence[OperationRow], yardstick: Yardstick | None) -> Table:
    """The toolkit's operations: useful bytes, rate, and bytes in DRAM where they were counted."""
    counted = any(row.dram_bytes is not None for row in operations)
    view = new_table("Operations", "useful bytes are those of the byte model, all calls")
    view.add_column("operation", no_wrap=True)
    view.add_column("does", no_wrap=True)
    for header in ("calls", "total µs", "useful", "GB/s"):
        view.add_column(header, justify="right", no_wrap=True)
    view.add_column(f"% of {yardstick.name if yardstick else 'copy'}", justify="right")
    if counted:
        view.add_column("in DRAM", justify="right", no_wrap=True)
        view.add_column("moved /\nuseful", justify="right", no_wrap=True)
    for row in operations:
        useful = ABSENT if row.useful_bytes is None else format_bytes(row.useful_bytes)
        cells: list[str | Text] = [row.name, row.category, f"{row.calls:,}", _us(row.total_ns)]
        cells += [useful, *_rate(row.useful_bytes, row.total_ns, yardstick)]
        if counted:
            cells += [ABSENT if row.dram_bytes is None else format_bytes(row.dram_bytes)]
            cells += [_amplification(row)]
        view.add_row(*cells)
    return view


def launches_table(kernels: Sequence[KernelRow]) -> Table | None:
    """How kernels were launched; None where the profile does not say."""
    known = [row for row in kernels if row.grid or row.registers is not None]
    if not known:
        return None
    view = new_table("Launches", "the most frequent of each kernel")
    view.add_column("kernel", overflow="fold")
    view.add_column("phase", no_wrap=True)
    for header in ("place in\ngraph", "grid", "block", "registers", "shared", "different"):
        view.add_column(header, justify="right", no_wrap=True)
    for title, row in zip(titles(known), known, strict=True):
        view.add_row(
            title,
            row.phase or ABSENT,
            ABSENT if row.node is None else str(row.node),
            _product(row.grid),
            _product(row.block),
            ABSENT if row.registers is None else str(row.registers),
            ABSENT if row.shared_bytes is None else format_bytes(row.shared_bytes),
            f"{row.shapes:,}",
        )
    return view


def amplification(row: OperationRow) -> float | None:
    """Bytes in DRAM over useful bytes; None where one of them is not known."""
    if row.dram_bytes is None or not row.useful_bytes:
        return None
    return row.dram_bytes / row.useful_bytes


def is_amplified(row: OperationRow) -> bool:
    """Whether a gather or an insert moves clearly more than it must."""
    ratio = amplification(row)
    return row.category in ("gather", "insert") and (ratio or 0.0) > _MOST_AMPLIFICATION


def titles(rows: Sequence[KernelRow]) -> list[str]:
    """Short names; equal ones of one class are numbered."""
    short = [(title_of(row), row.category) for row in rows]
    count, seen = Counter(short), Counter[tuple[str, str]]()
    found = []
    for name in short:
        seen[name] += 1
        found.append(f"{name[0]} ·{seen[name]}" if count[name] > 1 else name[0])
    return found


def title_of(row: KernelRow) -> str:
    """Short name of a kernel; operations and copies keep theirs."""
    return shorten(row.name) if row.kind == "kernel" else row.name


def engines(table: KernelTable) -> str:
    """Whose kernels were known; empty where none was."""
    return ", ".join(dict.fromkeys(row.engine for row in table.kernels if row.engine))


def _title_note(table: KernelTable) -> str:
    if any(row.kind == "op" for row in table.kernels):
        return "time that nothing inside accounts for"
    return ""


def _us(nanoseconds: float | None) -> str:
    return ABSENT if nanoseconds is None else format_number(nanoseconds * _NS_TO_US)


def _rate(size: int | None, time_ns: int, yardstick: Yardstick | None) -> list[str]:
    """GB/s, and what share of the yardstick's that is."""
    if size is None or not time_ns:
        return [ABSENT, ABSENT]
    best = yardstick.rate if yardstick else None
    share = f"{size / time_ns / best.value * 100:.1f}" if best else ABSENT
    return [format_number(size / time_ns), share]


def _amplification(row: OperationRow) -> Text:
    ratio = amplification(row)
    if ratio is None:
        return Text(ABSENT)
    return Text(f"{ratio:.2f}", "red" if is_amplified(row) else "green")


def _product(sizes: Sequence[int] | None) -> str:
    """``128×4``: trailing ones are left out."""
    if sizes is None:
        return ABSENT
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "×".join(f"{size:,}" for size in kept)
