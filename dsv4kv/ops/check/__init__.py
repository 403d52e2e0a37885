"""Checks operations that come from elsewhere against the reference, before they are timed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.check.calls import Scene, scenes_of
from dsv4kv.ops.check.maker import Call, make_call
from dsv4kv.ops.check.reads import COMPARE
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Entries, PartWrite
from dsv4kv.ops.peers.foreign import PARAMETERS
from dsv4kv.ops.registry import ResolvedBackend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import OPERATIONS
from dsv4kv.ops.tolerance import Leeway, Rows, is_close


def find_difference(
    operation: str, found: Call, expected: Call, before: Call, *, leeway: Leeway
) -> str | None:
    """Compare a call's arguments, on the CPU, with what the reference made of the same ones.

    Args:
        operation: Name in the contract.
        found: After the operation that is checked.
        expected: After the reference.
        before: As they were.
        leeway: How far written entries may be from the reference's.

    Returns:
        None where all is equal; else what differs first, as the end of a sentence.
    """
    inside = _arguments(operation, found, expected, before, leeway)
    return next(chain(_outside(found, before), inside), None)


def _outside(found: Call, before: Call) -> Iterator[str]:
    for buffer, old in zip(found.guarded, before.guarded, strict=True):
        for row, where in ((0, "before"), (-1, "after")):
            if not torch.equal(buffer[row], old[row]):
                yield f"it wrote memory {where} what it was given."


def _arguments(
    operation: str, found: Call, expected: Call, before: Call, leeway: Leeway
) -> Iterator[str]:
    names, compare = PARAMETERS[operation], COMPARE.get(operation)
    mine, right, old = (
        dict(zip(names, call.arguments, strict=True)) for call in (found, expected, before)
    )
    for name in names:
        if name == "out" and not compare:
            spare = max(mine["lengths"].tolist()) if operation == "gather_all" else None
            yield from _output(mine[name], right[name], spare)
        elif not (compare and name in OPERATIONS[operation].writes):
            yield from _argument(operation, name, (mine[name], right[name], old[name]), leeway)
    if compare:
        yield from compare(mine, right)


def _argument(
    operation: str, name: str, three: tuple[Any, Any, Any], leeway: Leeway
) -> Iterator[str]:
    mine, right, old = three
    if isinstance(mine, Entries):
        yield from _pages(mine.store, right.store, old.store, Leeway.NONE)
    elif isinstance(mine, PageStore):
        yield from _pages(mine, right, old, Leeway.NONE if name == "ring" else leeway)
    elif isinstance(mine, tuple):
        for one, other, was in zip(mine, right, old, strict=True):
            rotated = one.compressor.turns_rounded
            yield from _state(one.state, other.state, operation)
            yield from _pages(
                one.store, other.store, was.store, Leeway.ROTATED_SUM if rotated else leeway
            )
    elif name == "state":
        yield from _state(mine, right, operation)
    elif isinstance(mine, Tensor) and not _same_bits(mine, right):
        yield f"it changed its argument {name!r}."


def _output(found: Tensor, expected: Tensor, longest: int | None) -> Iterator[str]:
    """Rows after the longest request may be left as they were, which is NaN."""
    if found.numel() and bool(found.isnan().all()):
        yield "it left its output as it was: an operation writes into 'out' and returns nothing."
    if longest is not None:
        found = found.clone()
        found[:, longest:].nan_to_num_(nan=0.0)
    if not _same_bits(found, expected):
        different = found.contiguous().view(torch.int16) != expected.view(torch.int16)
        b, row, channel = (int(i) for i in different.nonzero()[0])
        value, right = float(found[b, row, channel]), float(expected[b, row, channel])
        empty = not expected[b, row].count_nonzero()
        wanted = "the row must be zeros" if empty else f"the reference has {right:g}"
        yield f"request {b}, row {row}, channel {channel} is {value:g}, and {wanted}."


def _state(found: Tensor, expected: Tensor, operation: str) -> Iterator[str]:
    online = expected.dim() == 3 and operation != "flush"
    equal = torch.isclose(found, expected) if online else found == expected
    if not bool(equal.all()):
        where = (~equal).nonzero()[0]
        value, right = float(found[tuple(where)]), float(expected[tuple(where)])
        yield f"state {where.tolist()} is {value:g}, and the reference has {right:g}."


def _pages(found: PageStore, expected: PageStore, old: PageStore, leeway: Leeway) -> Iterator[str]:
    layout = found.layout
    wrong = found.pages != expected.pages
    for page in wrong.any(dim=1).nonzero().flatten().tolist():
        for row in range(layout.entries):
            entry = page * layout.entries + row
            mine, right, was = (
                reference.read_bytes(each, entry) for each in (found, expected, old)
            )
            if difference := _entry(layout.format, mine, right, was, leeway):
                yield f"entry {entry} (page {page}, row {row}) {difference}"
        used = layout.entries * layout.format.entry_bytes
        if bool(wrong[page, used:].any()):
            yield f"it wrote bytes of page {page} that are no entry's."


def _entry(
    entry: EntryFormat, found: Rows, expected: Rows, before: Rows, leeway: Leeway
) -> str | None:
    """What is wrong with the bytes of an entry."""
    if found == expected:
        return None
    if expected == before:
        return "was written, and should not be."
    if found == before:
        return "was not written."
    values, right = (
        torch.tensor(reference_codec.decode(entry, *rows), dtype=torch.float64)
        for rows in (found, expected)
    )
    exact, rotated = leeway is Leeway.NONE, leeway is Leeway.ROTATED_SUM
    if not exact and is_close(entry, values, expected, rotated=rotated):
        return None
    error = (values - right).abs().nan_to_num(nan=torch.inf)
    if not error.any():
        return f"has other bytes than the reference: {_first_byte(found, expected)}."
    channel = int(error.nonzero()[0] if exact else error.argmax())
    return f"has {values[channel]:g} in channel {channel}, and the reference {right[channel]:g}."


def _first_byte(found: Rows, expected: Rows) -> str:
    for name, mine, right in zip(("data", "scale"), found, expected, strict=True):
        for i, (a, b) in enumerate(zip(mine, right, strict=True)):
            if a != b:
                return f"{name} byte {i} is {a:#04x} instead of {b:#04x}"
    raise AssertionError("the rows are equal")


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bytes: −0 differs from 0, and takes NaN as equal to itself."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Disagreement:
    """An operation that must not be timed.

    Attributes:
        backend: Its backend, as it was asked for.
        operation: Its name in the contract.
        subject: Pages or state it was called with.
        problem: What is wrong, a sentence that begins small.
    """

    backend: str
    operation: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.backend} on {self.subject}: {self.problem}"


def check_backend(
    resolved: ResolvedBackend, plan: CachePlan, device: torch.device, seed: int = 0
) -> list[Disagreement]:
    """Call every foreign operation with what a cache may pass it, and compare with the reference.

    Args:
        resolved: The backend.
        plan: The cache: its page layouts and compressors are the ones that are checked.
        device: Where the operations run.
        seed: Of the random arguments.

    Returns:
        The first disagreement of each operation on each kind of pages; empty where all agree.

    Raises:
        PeerUnavailable: No operation takes pages of this cache's formats.
    """
    scenes = [
        scene
        for scene in scenes_of(plan, seed)
        if resolved.serves(scene.operation, scene.format_name)
    ]
    if resolved.foreign and not scenes:
        raise PeerUnavailable(_nothing_served(resolved, plan))
    problems = [(scene, _run(resolved, scene, device, seed)) for scene in scenes]
    return [
        Disagreement(resolved.name, scene.operation, scene.subject, problem)
        for scene, problem in problems
        if problem
    ]


def _run(resolved: ResolvedBackend, scene: Scene, device: torch.device, seed: int) -> str | None:
    found = make_call(scene.make, device, seed)
    try:
        getattr(resolved.backend, scene.operation)(*found.arguments)
        found = _to_cpu(found)  # waits: what went wrong on a GPU shows here
    except Exception as error:
        first_line = str(error).partition("\n")[0] or "no message"
        return f"it raised {type(error).__name__}: {first_line}"
    expected, before = (make_call(scene.make, _CPU, seed) for _ in range(2))
    getattr(reference, scene.operation)(*expected.arguments)
    return find_difference(scene.operation, found, expected, before, leeway=scene.leeway)


def _to_cpu(call: Call) -> Call:
    return Call([_moved(each) for each in call.arguments], [each.cpu() for each in call.guarded])


def _moved(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(PartWrite(*map(_moved, part.fields())) for part in argument)
    if isinstance(argument, PageStore):
        return PageStore(argument.layout, argument.pages.cpu())
    if isinstance(argument, Entries):
        return Entries(*map(_moved, argument.fields()))
    return argument.to(_CPU) if isinstance(argument, Tensor | Compressor) else argument


def _nothing_served(resolved: ResolvedBackend, plan: CachePlan) -> str:
    layouts = [page for s in plan.schemas for page in (s.main, s.window, s.indexer) if page]
    held = dict.fromkeys(layout.format.name for layout in layouts)
    takes = f"takes {', '.join(resolved.formats)} pages only" if resolved.formats else "is left"
    return (
        f"backend {resolved.name} has nothing to do here: it brings {', '.join(resolved.foreign)}"
        f", {takes}, and this cache holds {', '.join(held)}."
    )
