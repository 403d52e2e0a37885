"""Two profiles, kernel by kernel: what one spends that the other does not."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dsv4kv.measure.statistics import divide, summarize
from dsv4kv.runs.profile import KernelRow, KernelTable
from dsv4kv.view.cells import format_estimate
from dsv4kv.view.profile import NS_TO_US, format_us, title_of
from dsv4kv.view.table import ABSENT, Finding, Part, Table, names, numbers

_Key = tuple[str, str]
"""Short name and class: what is left of a name when templates and versions change."""
_Found = tuple[float | None, float]
"""Time in ns and calls, in a step."""
_NOWHERE: _Found = (None, 0.0)


@dataclass(frozen=True)
class Change:
    """One kernel in both profiles, or in one of them.

    Attributes:
        name: Short name.
        category: What it does.
        before_ns: Time in a step of the first profile; None where it is not in it.
        after_ns: Time in a step of the second.
        before_calls: Calls in a step of the first.
        after_calls: Calls in a step of the second.
    """

    name: str
    category: str
    before_ns: float | None
    after_ns: float | None
    before_calls: float
    after_calls: float

    @property
    def difference_ns(self) -> float:
        """How much longer the second takes."""
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)


def compare_tables(before: KernelTable, after: KernelTable) -> list[Change]:
    """Changes by kernel, the largest first; per step, or in all where a profile has no steps."""
    steps = before.num_steps and after.num_steps
    old, new = (_by_key(t, t.num_steps if steps else 1) for t in (before, after))
    changes = [
        _change(key, old.get(key, _NOWHERE), new.get(key, _NOWHERE))
        for key in dict.fromkeys([*old, *new])
    ]
    return sorted(changes, key=lambda change: -abs(change.difference_ns))


def report_diff(
    before: KernelTable, after: KernelTable, sides: tuple[str, str], *, most: int | None
) -> Iterator[Part]:
    """The changes as a table, with what makes the two unlike."""
    yield from _unlike(before, after)
    yield from _report_steps(before, after)
    yield ""
    changes = compare_tables(before, after)
    yield _diff_table(changes[:most], sides, per_step=bool(before.num_steps and after.num_steps))
    left = len(changes) - len(changes[:most])
    if left:
        yield Finding("note", f"and {left:,} more: --full shows all")
    yield Finding("note", "one profile each: what differs may differ between two runs of one, too")


def _by_key(table: KernelTable, steps: int) -> dict[_Key, _Found]:
    times, calls = Counter[_Key](), Counter[_Key]()
    for row in table.kernels:
        times[_key(row)] += row.total_ns
        calls[_key(row)] += row.calls
    return {key: (times[key] / steps, calls[key] / steps) for key in times}


def _key(row: KernelRow) -> _Key:
    return title_of(row), row.category


def _change(key: _Key, old: _Found, new: _Found) -> Change:
    return Change(*key, before_ns=old[0], after_ns=new[0], before_calls=old[1], after_calls=new[1])


def _unlike(before: KernelTable, after: KernelTable) -> Iterator[Finding]:
    facts = {
        "profilers": (before.tool, after.tool),
        "GPUs": (", ".join(before.devices), ", ".join(after.devices)),
    }
    for what, (old, new) in facts.items():
        if old != new:
            yield Finding("warning", f"different {what}: {old or 'unknown'}, {new or 'unknown'}")
    if bool(before.num_steps) != bool(after.num_steps):
        yield Finding("warning", "only one of them has steps: whole profiles are compared")


def _report_steps(before: KernelTable, after: KernelTable) -> Iterator[Finding]:
    if before.steps is None or after.steps is None:
        return
    old, new = (summarize(steps.span_ns).estimate for steps in (before.steps, after.steps))
    ratio = divide(new, old)
    times = " → ".join(f"{format_estimate(one, NS_TO_US)} µs" for one in (old, new))
    yield Finding("note", f"a step: {times}, {format_estimate(ratio)} times as long")


def _diff_table(changes: list[Change], sides: tuple[str, str], *, per_step: bool) -> Table:
    unit = "µs a step" if per_step else "µs"
    return Table(
        "Kernels",
        [
            *names("kernel", "does"),
            *numbers(f"A {unit}", f"B {unit}", "B − A", "%", "calls A → B"),
        ],
        [
            (
                change.name,
                change.category,
                format_us(change.before_ns),
                format_us(change.after_ns),
                f"{change.difference_ns * NS_TO_US:+,.2f}",
                _percent(change),
                f"{change.before_calls:,.4g} → {change.after_calls:,.4g}",
            )
            for change in changes
        ],
        note=f"A: {sides[0]}, B: {sides[1]}",
    )


def _percent(change: Change) -> str:
    if change.before_ns is None:
        return "new"
    if change.after_ns is None:
        return "gone"
    return f"{change.difference_ns / change.before_ns * 100:+.1f}" if change.before_ns else ABSENT
