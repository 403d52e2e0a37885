"""Makes the one kernel table of a profile, whichever profiler it is from.

What a kernel does to a KV cache is said by rules in ``configs/profile/``.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError
from dsv4kv.files import load_yaml, read_document, shipped
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.profile import trace as tr
from dsv4kv.profile.trace import (
    KINDS,
    NONE,
    OP,
    RANGE,
    Column,
    Trace,
    Work,
    split_rows,
)
from dsv4kv.runs.parts import (
    CATEGORIES,
    OTHER,
    Category,
    KernelRow,
    KernelTable,
    OperationRow,
    StepTimes,
)
from dsv4kv.units import counted, cut

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_DECLARATION = re.compile(r"<|\w\(")
_OPEN, _CLOSE = "<(", ">)"
_WRAPPER = re.compile(r"(?:device_kernel|Kernel2?|enable_sm\w+|kentry)")
_FIRST_ARGUMENT = (
    r"\b{}<(?:[\s\d,]|[\w:]*\bgfx\w+,)*+([A-Za-z_][\w:]*)"  # after sizes, and AMD's GPU
)
_MANGLED = re.compile(r"_Z(?:NK?)?(?=\d)")
_MANGLED_ARGUMENT = re.compile(r"I(?:L[ij]\d+E)*N?(?:S\w?_|St)?(?=\d)")  # S1_: named before
_LENGTH = re.compile(r"\d{1,9}")
_LONGEST_NAME = 2**11  # looked at, by dozens of rules; kernels within kernels take its square


def shorten(name: str) -> str:
    """``void at::native::(anonymous namespace)::fill<int>(int*)`` is ``fill``.

    CUTLASS and AMD's ck_tile launch everything through a few functions: of those it is what they
    were made for, ``device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<…>>>`` is
    ``FlashAttnFwdSm90``. A name that is no C++ name (of a copy, of a marked range) stays as it is.
    """
    name = name[:_LONGEST_NAME]
    if begin := _MANGLED.match(name):
        return _last_of_mangled(name, begin.end())
    plain = _ANONYMOUS.sub("", name)
    if not _DECLARATION.search(plain):
        return plain if " " in plain else plain.rsplit("::", 1)[-1]
    depth, kept = 0, ""  # what is outside of brackets
    for letter in plain:
        depth += letter in _OPEN
        kept += "" if depth else letter
        depth -= letter in _CLOSE and depth > 0
    words = kept.split()
    short = words[-1].rsplit("::", 1)[-1] if words else name
    while words and _WRAPPER.fullmatch(short):
        found = re.search(_FIRST_ARGUMENT.format(short), plain)
        if found is None:
            break
        plain, short = plain[found.start(1) :], found[1].rsplit("::", 1)[-1]
    return short


def _last_of_mangled(name: str, at: int) -> str:
    """``_ZN4vllm4copyIiEEvPT_`` is ``copy``: profilers fail to demangle the longest names."""
    last = name
    while True:
        while found := _LENGTH.match(name, at):
            at = found.end() + int(found[0])
            last = name[found.end() : at]
        inner = _MANGLED_ARGUMENT.match(name, at)
        if inner is None or not _WRAPPER.fullmatch(last):
            return last
        at = inner.end()


@dataclass(frozen=True)
class Rule:
    """Kernels of one kind."""

    engine: str  # whose they are
    pattern: re.Pattern[str]  # is searched in the short name
    category: Category  # what they do
    operation: str | None = None  # of the toolkit; None for kernels of others


_MOST_RULES_BYTES = 2**18
_LONGEST_RULE = 1_000


def read_rules(path: Path) -> list[Rule]:
    """Read ``engine: NAME`` and ``rules: {CLASS: [PATTERN, …]}``; raises ``ConfigError``."""
    try:
        (document,) = load_yaml(read_document(path, _MOST_RULES_BYTES).decode())
        rules, engine = [], document["engine"]
        for category, listed in document["rules"].items():
            if category not in CATEGORIES:
                raise ConfigError(f"{path}: no class {category!r}: use {', '.join(CATEGORIES)}.")
            operations = listed if isinstance(listed, dict) else dict.fromkeys(listed)
            texts = {engine, *operations, *operations.values()} - {None}
            if not all(isinstance(each, str) and len(each) <= _LONGEST_RULE for each in texts):
                raise TypeError
            rules += [
                Rule(engine, re.compile(pattern), category, operation)
                for pattern, operation in operations.items()
            ]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file.") from None
    except re.error as error:
        raise ConfigError(f"{path}: {error.pattern!r} is no pattern ({error}).") from None
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError, OverflowError):
        raise ConfigError(
            f"{path}: no rules: write 'engine: NAME' and 'rules: {{gather: [PATTERN]}}' in YAML."
        ) from None
    return rules


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of all engines, after the toolkit and its operations."""
    folder = shipped("configs") / "profile"
    paths = sorted(folder.glob("*.yaml"), key=lambda path: (path.stem != "dsv4kv", path.stem))
    rules = [rule for path in paths for rule in read_rules(path)]
    own = [
        Rule("dsv4kv", re.compile(f"^{operation}$"), OTHER, operation)
        for operation in OPERATIONS
        if find_rule(operation, rules) is None
    ]
    return (*own, *rules)


def find_rule(name: str, rules: Sequence[Rule]) -> Rule | None:
    """The first rule that a kernel's name fits, None where none does."""
    short = shorten(name)
    return next((rule for rule in rules if rule.pattern.search(short)), None)


_MATCHED_S = 10.0  # of the processor, for patterns of a file; all shipped ones take 1 s


@contextmanager
def bounded_matching() -> Iterator[None]:
    """Raise ``ConfigError`` where patterns take for ever, as ``(a+)+$`` does of many names."""

    def give_up(*_: object) -> None:
        raise ConfigError(
            f"--rules: to match its patterns takes more than {_MATCHED_S:g} s: write them without "
            "repeats of repeats, such as (a+)+."
        )

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MATCHED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


MOST_KERNELS = 4_096
"""Rows of a table, those with the most time: engines launch hundreds of kernels."""
_ITSELF = "itself"
_MOST_DEVICES = 1_024
_MOST_SAID = 500  # characters of a diagnostic, of a GPU's name


def build_table(
    trace: Trace, rules: Sequence[Rule], useful_bytes: Mapping[str, int] | None = None
) -> KernelTable:
    """Add up a profile by kernels, operations and steps.

    ``useful_bytes``: of all steps, by operation. Where the profile has steps, work
    outside of them is only counted.
    """
    work, gaps, foreign = trace.work, _find_gaps(trace), useful_bytes is None
    known = [find_rule(name, rules) for name in trace.names]
    inside = work.step >= 0 if len(trace.steps_ns) else np.ones(len(work), dtype=np.bool_)
    chosen, outside = np.flatnonzero(inside), np.flatnonzero(~inside)
    steps = len(np.unique(work.step[work.step >= 0]))  # one that launched nothing is none
    idle = len(trace.steps_ns) - steps
    left_out = [f"omitted: {counted(idle, 'step')} without work"] if idle else []
    used = [] if _on_cpu(work) else np.unique(work.device)[:_MOST_DEVICES].tolist()
    # a number for each kernel; one of torch's operations is several, by what is done around it
    kinds = [CATEGORIES.index(rule.category if rule else OTHER) for rule in [*known, None]]
    category = np.array(kinds, dtype=np.int64)[np.where(work.kind == OP, work.phase, work.name)]
    keys = (work.name * len(KINDS) + work.kind) * len(CATEGORIES) + category
    by_kernel = split_rows(chosen[np.argsort(keys[chosen], kind="stable")], keys)
    by_kernel.sort(key=lambda rows: -work.self_ns[rows].sum())
    if left := by_kernel[MOST_KERNELS:]:
        share = work.self_ns[np.concatenate(left)].sum() / max(1, work.self_ns[chosen].sum())
        note = f"omitted: {len(left):,} kernels of the least time, {share * 100:.1f} % of all"
        left_out.append(note)
    kernels = [_row(trace, rows, gaps, known) for rows in by_kernel[:MOST_KERNELS]]
    operations = _operations(trace, chosen, kernels, useful_bytes or {})
    # kernels that are an operation on their own have its bytes
    alone = Counter(row.operation for row in kernels if row.kind == "kernel")
    sizes = {row.name: row.useful_bytes for row in operations if alone[row.name] == 1}
    return KernelTable(
        tool=trace.tool,
        tool_version=trace.version and _brief(trace.version),
        devices=[_brief(name) for number in used if (name := trace.devices.get(number))],
        kernels=[
            row.model_copy(update={"useful_bytes": sizes.get(row.operation or "")})
            for row in kernels
        ],
        operations=operations,
        num_steps=steps,
        steps=_time_steps(trace, gaps),
        outside_calls=len(outside),
        outside_ns=int(work.self_ns[outside].sum()),
        warnings=[*map(_brief, trace.warnings), *(_between_steps(trace, gaps) if foreign else ())],
        notes=[*map(_brief, trace.notes), *left_out],
    )


def _brief(text: str) -> str:
    return cut(text, _MOST_SAID)


def _on_cpu(work: Work) -> bool:
    """Whether the work is of a CPU: a profile has one or the other."""
    return bool(len(work)) and bool(np.all(work.kind >= OP))


def _find_gaps(trace: Trace) -> Column:
    """Idle time on its GPU before each piece of work in its step; ``NONE`` for the first."""
    work = trace.work
    gaps = tr.constant(len(work), NONE)
    if trace.tool != "ncu" and not _on_cpu(work):
        for rows in _groups(work, np.ones(len(work), dtype=np.bool_)):
            latest = np.maximum.accumulate(work.end_ns[rows])
            gaps[rows[1:]] = np.maximum(0, work.start_ns[rows[1:]] - latest[:-1])
    return gaps


_NOTABLE = 0.05  # of the time


def _between_steps(trace: Trace, gaps: Column) -> Iterator[str]:
    """What its GPUs idle from a step's end to the next one's begin, where it is much."""
    work, steps = trace.work, len(trace.steps_ns)
    if steps < 2 or trace.tool == "ncu" or _on_cpu(work):
        return
    whole = idle = 0
    for group in split_rows(np.lexsort((work.start_ns, work.device)), work.device):
        stepped = np.flatnonzero(work.step[group] >= 0)
        rows = group[stepped[0] : stepped[-1] + 1] if len(stepped) else stepped
        latest = np.maximum.accumulate(work.end_ns[rows])
        whole += int((latest[-1:] - work.start_ns[rows[:1]]).sum())
        apart = int(np.maximum(0, work.start_ns[rows[1:]] - latest[:-1]).sum())
        idle += max(0, apart - int(np.maximum(gaps[rows[work.step[rows] >= 0]], 0).sum()))
    if idle > _NOTABLE * whole:
        yield (
            f"between steps the GPU idles {idle / whole:.0%} of the time: look at the host and "
            "the scheduler first"
        )


def _groups(work: Work, chosen: NDArray[np.bool_]) -> list[Column]:
    """Rows of each step on each GPU, in order of their begins."""
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((work.start_ns[rows], work.device[rows], work.step[rows]))]
    return split_rows(order, work.step, work.device)


def _row(trace: Trace, rows: Column, gaps: Column, rules: Sequence[Rule | None]) -> KernelRow:
    work = trace.work
    name, kind = int(work.name[rows[0]]), int(work.kind[rows[0]])
    phases, counts = np.unique(work.phase[rows], return_counts=True)
    phase = int(phases[counts.argmax()])
    number = phase if kind == OP else name
    rule = None if number == NONE else rules[number]
    operation = rule.operation if rule and kind != OP else None
    times, gap, sizes = np.sort(work.self_ns[rows]), gaps[rows], work.bytes[rows]
    gap = gap[gap != NONE]
    return KernelRow(
        name=trace.names[name],
        kind=KINDS[kind],
        category=rule.category if rule else OTHER,
        engine=rule.engine if rule else None,
        operation=trace.names[name] if operation == _ITSELF else operation,
        phase=trace.names[phase] if phase != NONE else None,
        calls=len(rows),
        total_ns=int(times.sum()),
        median_ns=round(float(np.median(times))),
        min_ns=int(times[0]),
        gap_ns=round(float(np.median(gap))) if len(gap) else None,
        useful_bytes=None,
        counted_bytes=int(sizes.sum()) if np.all(sizes != NONE) else None,
    )


def _operations(
    trace: Trace, chosen: Column, kernels: Sequence[KernelRow], useful: Mapping[str, int]
) -> list[OperationRow]:
    """Operations: all their kernels together; on a CPU their ranges, with what runs inside."""
    work = trace.work
    ranges = chosen[work.kind[chosen] == RANGE]
    lasted = (work.end_ns - work.start_ns)[ranges]
    spent = np.bincount(work.name[ranges], lasted, len(trace.names))
    whole = {trace.names[i]: round(spent[i]) for i in np.unique(work.name[ranges]).tolist()}
    found: dict[str, list[KernelRow]] = {}
    for row in kernels:
        if row.operation is not None:
            found.setdefault(row.operation, []).append(row)
    rows = []
    for name, parts in found.items():
        sizes = [part.counted_bytes for part in parts if part.counted_bytes is not None]
        known = trace.tool == "ncu" and len(sizes) == len(parts)
        rows.append(
            OperationRow(
                name=name,
                category=parts[0].category,
                calls=max(part.calls for part in parts),
                total_ns=whole.get(name, sum(part.total_ns for part in parts)),
                useful_bytes=useful.get(name),
                dram_bytes=sum(sizes) if known else None,
            )
        )
    return sorted(rows, key=lambda row: -row.total_ns)


def _time_steps(trace: Trace, gaps: Column) -> StepTimes | None:
    """A row for each step on each GPU; None where the profile has no steps or no clock."""
    if not len(trace.steps_ns) or trace.tool == "ncu":
        return None
    rows = _cpu_steps(trace) if _on_cpu(trace.work) else _gpu_steps(trace, gaps)
    columns = zip(StepTimes.model_fields, zip(*rows, strict=True), strict=True)
    return StepTimes(**{name: list(column) for name, column in columns}) if rows else None


def _gpu_steps(trace: Trace, gaps: Column) -> list[tuple[int, ...]]:
    work, calls, steps = trace.work, trace.calls, len(trace.steps_ns)
    known = calls.step >= 0
    spent = np.bincount(calls.step[known], (calls.end_ns - calls.start_ns)[known], steps)
    rows: list[tuple[int, ...]] = []
    for group in _groups(work, work.step >= 0):
        step = int(work.step[group[0]])
        begin, end = trace.steps_ns[step].tolist()
        span = int(work.end_ns[group].max() - work.start_ns[group[0]])
        gap = int(np.maximum(gaps[group], 0).sum())
        device, launch = int(work.device[group[0]]), round(spent[step])
        rows.append((device, end - begin, span, span - gap, gap, launch, 0))
    return rows


def _cpu_steps(trace: Trace) -> list[tuple[int, ...]]:
    """Time in torch operations, around them in marked operations, and outside of both."""
    work, steps = trace.work, len(trace.steps_ns)
    number = trace.names.index(tr.INPUTS) if tr.INPUTS in trace.names else NONE
    is_input = (work.phase == number) & (work.phase != NONE)
    inside = (work.step >= 0) & ~is_input

    def total(rows: NDArray[np.bool_]) -> Column:
        return np.bincount(work.step[rows], work.self_ns[rows], steps).astype(np.int64)

    host = trace.steps_ns[:, 1] - trace.steps_ns[:, 0]
    torch_ns, around_ns = total(inside & (work.kind == OP)), total(inside & (work.kind == RANGE))
    inputs_ns = total((work.step >= 0) & is_input)
    outside = host - torch_ns - around_ns - inputs_ns
    columns = (tr.constant(steps, 0), host, host, torch_ns, outside, around_ns, inputs_ns)
    some = np.unique(work.step[work.step >= 0])
    return list(zip(*(column[some].tolist() for column in columns), strict=True))
