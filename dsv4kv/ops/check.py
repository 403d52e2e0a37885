"""Checks an operation against the reference: one that comes from elsewhere before it is timed.

Choices are compared exactly, entries within their format's grid, sums within what an order of
summation and 16-bit factors can make of them.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.reference import QUERY
from dsv4kv.ops.registry import ResolvedBackend
from dsv4kv.ops.scenes import Arguments, Call, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.ops.storage import Entries, PageStore
from dsv4kv.ops.tolerance import Leeway, Rows, is_close

SCORE_ERROR = 2.0**-8
"""Of a score, against the token's largest: some engines have bf16 scores."""

OUTPUT_ERROR = 2.0**-6
"""Of an attention output, against its head's largest: weights and output are rounded to bf16."""

LSE_ERROR = 2.0**-10


def find_difference(
    operation: str, found: Call, expected: Call, before: Call, *, leeway: Leeway
) -> str | None:
    """Compare a call's arguments, on the CPU, with what the reference made of the same ones.

    Args:
        operation: Its name.
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
    mine, right, old = found.arguments, expected.arguments, before.arguments
    row, compare = OPERATIONS[operation], COMPARE.get(operation)
    for name in row.names:
        if name == "out" and not compare:
            spare = max(mine["lengths"].tolist()) if operation == "gather_all" else None
            yield from _output(mine[name], right[name], spare)
        elif not (compare and name in row.writes):
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
    """An operation that must not be timed."""

    backend: str  # its backend, as it was asked for
    operation: str  # its name
    subject: str  # pages or state it was called with
    problem: str  # what is wrong, a sentence that begins small

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
    function = getattr(resolved.backend, scene.operation)
    return check_scene(scene, function, device, seed)


def check_scene(
    scene: Scene, function: Callable[..., None], device: torch.device, seed: int
) -> str | None:
    """Call an operation as a scene says: what differs from the reference, None if nothing."""
    found = make_call(scene.make, device, seed)
    try:
        function(**found.arguments)
        found = found.to(_CPU)  # waits: what went wrong on a GPU shows here
    except Exception as error:
        first_line = str(error).partition("\n")[0] or "no message"
        return f"it raised {type(error).__name__}: {first_line}"
    expected, before = (make_call(scene.make, _CPU, seed) for _ in range(2))
    getattr(reference, scene.operation)(**expected.arguments)
    return find_difference(scene.operation, found, expected, before, leeway=scene.leeway)


def _nothing_served(resolved: ResolvedBackend, plan: CachePlan) -> str:
    layouts = [page for s in plan.schemas for page in (s.main, s.window, s.indexer) if page]
    held = dict.fromkeys(layout.format.name for layout in layouts)
    takes = f"takes {', '.join(resolved.formats)} pages only" if resolved.formats else "is left"
    return (
        f"backend {resolved.name} has nothing to do here: it brings {', '.join(resolved.foreign)}"
        f", {takes}, and this cache holds {', '.join(held)}."
    )


def _queries(found: Arguments, expected: Arguments) -> Iterator[str]:
    heads, dims = expected["out"].shape[1:]
    constant = expected["weights"].double() * (heads * dims) ** -0.5
    ratios, right = (each["out_weights"].double() / constant for each in (found, expected))
    scales = ratios.log2().round().exp2()
    for t, h in torch.cartesian_prod(torch.arange(len(ratios)), torch.arange(heads)).tolist():
        if not abs(float(ratios[t, h] / scales[t, h]) - 1) < 1e-5:
            yield (
                f"token {t}, head {h}: its weight is {found['out_weights'][t, h]:g}, which is not "
                f"{expected['weights'][t, h]:g} times a power of two times {heads * dims}^-0.5."
            )
        codes, rows = bytes(found["out"][t, h].tolist()), bytes(expected["out"][t, h].tolist())
        scale = struct.pack("<f", float(right[t, h].log2().round().exp2()))
        mine = reference_codec.decode(QUERY, codes, struct.pack("<f", float(scales[t, h])))
        values = torch.tensor(mine, dtype=torch.float64)
        if not is_close(QUERY, values, (rows, scale), rotated=found["hadamard"]):
            wanted = torch.tensor(reference_codec.decode(QUERY, rows, scale), dtype=torch.float64)
            channel = int((values - wanted).abs().nan_to_num(nan=math.inf).argmax())
            yield (
                f"token {t}, head {h} has {values[channel]:g} in channel {channel}, and the "
                f"reference {wanted[channel]:g}."
            )


def _scores(found: Arguments, expected: Arguments) -> Iterator[str]:
    mine, right = found["out"].clone(), expected["out"]
    if found["blocks"] is None:  # what comes after the longest may be left as it was
        spare = mine[:, int(found["lengths"].max()) :]
        spare.masked_fill_(spare.isnan(), -math.inf)
    largest = right.where(right.isfinite(), 0).abs().amax(dim=1, keepdim=True)
    close = (mine - right).abs() <= SCORE_ERROR * largest
    for t, column in ((mine != right) & ~close).nonzero().tolist():
        value, wanted = float(mine[t, column]), float(right[t, column])
        yield f"token {t}, column {column} is {value:g}, and the reference has {wanted:g}."


def _choices(found: Arguments, expected: Arguments) -> Iterator[str]:
    for name in ("out", "entries"):
        if name in found:
            for t, place in (found[name] != expected[name]).nonzero().tolist():
                value, wanted = int(found[name][t, place]), int(expected[name][t, place])
                yield (
                    f"token {t} has {value} as number {place} of {name!r}, and the reference "
                    f"{wanted}."
                )


def _attention(found: Arguments, expected: Arguments) -> Iterator[str]:
    mine, right = found["out"].double(), expected["out"].double()
    largest = right.abs().amax(dim=2, keepdim=True)
    for t, h, channel in ((mine - right).abs() <= OUTPUT_ERROR * largest).logical_not().nonzero():
        value, wanted = float(mine[t, h, channel]), float(right[t, h, channel])
        yield (
            f"token {int(t)}, head {int(h)}, channel {int(channel)} is {value:g}, and the "
            f"reference has {wanted:g}."
        )
    close = torch.isclose(found["lse"], expected["lse"], rtol=LSE_ERROR, atol=LSE_ERROR)
    for t, h in close.logical_not().nonzero().tolist():
        value, wanted = float(found["lse"][t, h]), float(expected["lse"][t, h])
        yield f"token {t}, head {h}: lse is {value:g}, and the reference has {wanted:g}."


COMPARE: Mapping[str, Callable[[Arguments, Arguments], Iterator[str]]] = {
    "indexer_query": _queries,
    "index_scores": _scores,
    "select_blocks": _choices,
    "select_topk": _choices,
    "attend": _attention,
}
"""What is wrong with what an operation wrote, by names of its arguments."""
