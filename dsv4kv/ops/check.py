"""Checks an operation against the reference: one that comes from elsewhere before it is timed.

Choices are compared exactly, entries within their format's grid, sums within what an order of
summation and 16-bit factors can make of them.
"""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import PeerUnavailable, VerificationError
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops import reference
from dsv4kv.ops.reference import QUERY
from dsv4kv.ops.registry import ResolvedBackend, describe_raised
from dsv4kv.ops.scenes import Arguments, Call, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS, Argument
from dsv4kv.ops.storage import Entries, PageStore
from dsv4kv.ops.tolerance import Leeway, Rows, is_close

SCORE_ERROR = 2.0**-8
"""Of a score, against the token's largest: some engines have bf16 scores."""

OUTPUT_ERROR = 2.0**-6
"""Of an attention output, against its head's largest: weights and output are rounded to bf16."""

LSE_ERROR = 2.0**-10

_CPU = torch.device("cpu")
_AXES = {"B": "request", "T": "token", "H": "head", "D": "channel"}
_TURNED = 1024  # pages that are copied at a time, as their order is turned


@dataclass(frozen=True)
class Disagreement:
    """An operation that must not be timed."""

    backend: str  # its backend, as it was asked for
    operation: str  # its name
    subject: str  # pages or state it was called with
    problem: str  # what is wrong, a sentence that begins small

    def __str__(self) -> str:
        return f"{self.operation} of {self.backend} on {self.subject}: {self.problem}"


def foreign_scenes(resolved: ResolvedBackend, plan: CachePlan, seed: int = 0) -> list[Scene]:
    """Calls of a cache that a backend's own operations answer."""
    return [
        each for each in scenes_of(plan, seed) if resolved.serves(each.operation, each.format_name)
    ]


def check_backend(
    resolved: ResolvedBackend, plan: CachePlan, device: torch.device, seed: int = 0
) -> list[Disagreement]:
    """Call every foreign operation with what a cache may pass it, and compare with the reference.

    Returns the first disagreement of each operation on each kind of pages of the plan. Raises
    ``PeerUnavailable`` where no operation takes pages of its formats.
    """
    scenes = foreign_scenes(resolved, plan, seed)
    if resolved.foreign and not scenes:
        layouts = [page for s in plan.schemas for page in (s.main, s.window, s.indexer) if page]
        held = dict.fromkeys(layout.format.name for layout in layouts)
        takes = (
            f"takes {', '.join(resolved.formats)} pages only" if resolved.formats else "is left"
        )
        raise PeerUnavailable(
            f"backend {resolved.name} has nothing to do here: it brings "
            f"{', '.join(resolved.foreign)}, {takes}, and this cache holds {', '.join(held)}."
        )
    return check_scenes(resolved.name, resolved.backend, scenes, device, seed)


def check_scenes(
    name: str, backend: object, scenes: Sequence[Scene], device: torch.device, seed: int
) -> list[Disagreement]:
    """What a backend's operations get wrong in scenes that were drawn with ``seed``."""
    return [
        Disagreement(name, scene.operation, scene.subject, problem)
        for scene in scenes
        if (problem := check_scene(scene, getattr(backend, scene.operation), device, seed))
    ]


def check_scene(
    scene: Scene, function: Callable[..., None], device: torch.device, seed: int
) -> str | None:
    """Call an operation as a scene says: what differs from the reference, None if nothing."""
    found = make_call(scene.make, device, seed)
    places = _places(found.arguments)
    try:
        function(**found.arguments)
        if _places(found.arguments) != places:
            return "it exchanged the memory of an argument, and has to write into what is given."
        # waits: what went wrong on a GPU shows here; copies: a thread that writes later is late
        found = deepcopy(found.to(_CPU))
    except VerificationError as error:
        return str(error).partition("\n")[0]
    except Exception as error:
        return "it raised " + describe_raised(error).partition("\n")[0]
    return next(_differences(scene, found, *expect(scene, seed)), None)


def _places(arguments: Arguments) -> list[int]:
    return [each.data_ptr() for each in arguments.values() if isinstance(each, Tensor)]


def read_by(operation: str, arguments: Arguments) -> list[Tensor]:
    """Copies of the tensors that a call only reads, and the sums of its pages: pools are large."""
    read = _read(operation, arguments)
    sums = [each.pages.sum(dim=1) for each in read if isinstance(each, PageStore)]
    return [*sums, *(each.clone() for each in read if isinstance(each, Tensor))]


def turn_pages(operation: str, arguments: Arguments) -> None:
    """Turn the order of the pages that a call only reads: what it kept of them is wrong then."""
    for pages in (each.pages for each in _read(operation, arguments) if type(each) is PageStore):
        for first in range(0, len(pages) // 2, _TURNED):
            last = min(first + _TURNED, len(pages) // 2)
            end = pages[len(pages) - last : len(pages) - first]
            kept = pages[first:last].flip(0)
            pages[first:last] = end.flip(0)
            end.copy_(kept)


def _read(operation: str, arguments: Arguments) -> list[Any]:
    row = OPERATIONS[operation]
    read = [arguments[name] for name in row.names if name not in row.writes]
    return [e for each in read for e in (vars(each).values() if type(each) is Entries else [each])]


def check_again(
    operation: str, again: Callable[[], None], own: Callable[..., None], arguments: Arguments
) -> str | None:
    """Do a call again: what differs from ``own`` on the same arguments, None if nothing.

    Pages that are written are copied twice, outputs are overwritten before.
    """
    writes = {name: arguments[name] for name in OPERATIONS[operation].writes}
    outputs = {k: e for k, e in writes.items() if isinstance(e, Tensor) and k != "state"}
    for each in outputs.values():
        each.fill_(torch.nan if each.is_floating_point() else 0xA5)
    old, right = (arguments | deepcopy(writes) for _ in range(2))
    again()
    found = arguments | {name: each.clone() for name, each in outputs.items()}
    own(**right)
    compressor, leeway = arguments.get("compressor"), Leeway.NONE
    if compressor or "parts" in arguments or arguments.get("hadamard"):
        rotated = compressor is not None and compressor.turns_rounded
        leeway = Leeway.ROTATED_SUM if rotated else Leeway.SUM
    scene = Scene(operation, "what is timed", None, lambda _: arguments, leeway)
    return next(_differences(scene, *(Call(each, []) for each in (found, right, old))), None)


def expect(scene: Scene, seed: int) -> tuple[Call, Call]:
    """The call after the reference has answered it, and before."""
    expected, before = (make_call(scene.make, _CPU, seed) for _ in range(2))
    getattr(reference, scene.operation)(**expected.arguments)
    return expected, before


def _differences(scene: Scene, found: Call, expected: Call, before: Call) -> Iterator[str]:
    """What is not as the reference made it of the same arguments: ends of sentences."""
    for buffer, old in zip(found.guarded, before.guarded, strict=True):
        for row, where in ((0, "before"), (-1, "after")):
            if not torch.equal(buffer[row], old[row]):
                yield f"it wrote memory {where} its arguments."
    operation = OPERATIONS[scene.operation]
    for argument in operation.arguments:
        name = argument.name
        mine, right, old = (each.arguments[name] for each in (found, expected, before))
        if not isinstance(mine, Tensor):
            yield from _stored(scene, name, (mine, right, old))
        elif name not in (*operation.writes, "state"):
            if not _same_bits(mine, right):
                yield f"it changed its argument {name!r}."
        elif scene.operation != "indexer_query":
            yield from _elements(scene, argument, mine, right, found.arguments.get("lengths"))
    if scene.operation == "indexer_query":
        yield from _queries(found.arguments, expected.arguments)


def _stored(scene: Scene, name: str, three: tuple[Any, Any, Any]) -> Iterator[str]:
    """What is wrong with pages: found, expected, before."""
    mine, right, old = three
    if isinstance(mine, Entries):
        yield from _pages(mine.store, right.store, old.store, Leeway.NONE)
    elif isinstance(mine, PageStore):
        yield from _pages(mine, right, old, Leeway.NONE if name == "ring" else scene.leeway)
    elif isinstance(mine, tuple):
        state = Argument("state", "float32", (), optional=False)
        for one, other, was in zip(mine, right, old, strict=True):
            yield from _elements(scene, state, one.state, other.state)
            rotated = one.compressor.turns_rounded
            leeway = Leeway.ROTATED_SUM if rotated else scene.leeway
            yield from _pages(one.store, other.store, was.store, leeway)


def _reshaped(what: str, found: Tensor, expected: Tensor) -> Iterator[str]:
    """A sentence if a tensor is no longer of the shape and type that it was passed with."""
    now, was = (f"{list(t.shape)} of {str(t.dtype)[6:]}" for t in (found, expected))
    if now != was:
        yield f"it made {what} {now}, and {was} was passed: write into what is passed."


def _elements(
    scene: Scene,
    argument: Argument,
    found: Tensor,
    expected: Tensor,
    lengths: Tensor | None = None,
) -> Iterator[str]:
    """A sentence for each element of a tensor that is not close to the reference's."""
    yield from _reshaped(repr(argument.name), found, expected)
    if found.is_floating_point() and found.numel() and bool(found.isnan().all()):
        yield "it left its output as it was: an operation writes into 'out' and returns nothing."
    if lengths is not None and scene.operation in ("gather_all", "index_scores"):
        spare = found.isnan()  # what comes after the longest may be left as it was
        spare[:, : int(lengths.max())] = False
        found = expected.where(spare, found)
    if argument.name == "state":
        online = expected.dim() == 3 and scene.operation != "flush"
        close = torch.isclose(found, expected) if online else found == expected
    elif argument.name == "lse":
        close = torch.isclose(found, expected, rtol=LSE_ERROR, atol=LSE_ERROR)
    elif scene.operation == "attend":
        largest = expected.double().abs().amax(dim=2, keepdim=True)
        close = (found.double() - expected.double()).abs() <= OUTPUT_ERROR * largest
    elif scene.operation == "index_scores":
        largest = expected.where(expected.isfinite(), 0).abs().amax(dim=1, keepdim=True)
        close = (found == expected) | ((found - expected).abs() <= SCORE_ERROR * largest)
    elif found.dtype == torch.bfloat16:  # −0 is not 0
        close = found.contiguous().view(torch.int16) == expected.view(torch.int16)
    else:
        close = found == expected
    other = "row" if "D" in argument.shape else "column"
    for place in (~close).nonzero().tolist():
        places = zip(argument.shape, place, strict=False)
        where = ", ".join(f"{_AXES.get(size, other)} {i}" for size, i in places) or f"{place}"
        of = {"out": "", "state": "state "}.get(argument.name, f"{argument.name!r} of ")
        value, right = float(found[tuple(place)]), float(expected[tuple(place)])
        yield f"{of}{where} is {value:g}, and the reference has {right:g}."


def _queries(found: Arguments, expected: Arguments) -> Iterator[str]:
    """Codes and weights together, as a scale may be the next one."""
    for name in ("out", "out_weights"):
        yield from _reshaped(repr(name), found[name], expected[name])
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
        values = _decoded(QUERY, (codes, struct.pack("<f", float(scales[t, h]))))
        if not is_close(QUERY, values, (rows, scale), rotated=found["hadamard"]):
            wanted = _decoded(QUERY, (rows, scale))
            channel = int((values - wanted).abs().nan_to_num(nan=math.inf).argmax())
            yield (
                f"token {t}, head {h}, channel {channel} is {values[channel]:g}, and the "
                f"reference has {wanted[channel]:g}."
            )


def _pages(found: PageStore, expected: PageStore, old: PageStore, leeway: Leeway) -> Iterator[str]:
    if found is expected:
        return
    layout = found.layout
    yield from _reshaped("pages", found.pages, expected.pages)
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
    values, right = _decoded(entry, found), _decoded(entry, expected)
    exact, rotated = leeway is Leeway.NONE, leeway is Leeway.ROTATED_SUM
    if not exact and is_close(entry, values, expected, rotated=rotated):
        return None
    error = (values - right).abs().nan_to_num(nan=torch.inf)
    if error.any():
        channel = int(error.nonzero()[0] if exact else error.argmax())
        return (
            f"has {values[channel]:g} in channel {channel}, and the reference {right[channel]:g}."
        )
    kind = "data" if found[0] != expected[0] else "scale"
    rows = zip(
        *((each[0] if kind == "data" else each[1]) for each in (found, expected)), strict=True
    )
    i, (a, b) = next((i, pair) for i, pair in enumerate(rows) if pair[0] != pair[1])
    return f"has other bytes than the reference: {kind} byte {i} is {a:#04x} instead of {b:#04x}."


def _decoded(entry: EntryFormat, rows: Rows) -> Tensor:
    return torch.tensor(reference.decode(entry, *rows), dtype=torch.float64)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bytes: −0 differs from 0, and takes NaN as equal to itself."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
