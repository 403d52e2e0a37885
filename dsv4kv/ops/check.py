"""Checks an operation against the reference: one that comes from elsewhere before it is timed.

Choices are compared exactly, entries within their format's grid, sums within what an order of
summation and 16-bit factors can make of them.

How far a pooled entry may be off: one code here and there, and no more.

The fast backends pool in float32, the reference in float64, and an entry is rounded twice, to bf16
and to its format: a value on a boundary may fall on the other side. So a value is *one code apart*
where some number rounds to both, a tie counting for either side: the same code or its neighbour.

The largest value of a group decides its scale, and may fall on the other side of a boundary, too.
Then the whole group is on the grid of the next scale up or down, and "some number rounds to both"
means the same: to the reference's value by its scale, and to the value found by the other. As
numbers are bf16 before, and the grids' boundaries no longer the same, two neighbours in bf16 will
do. One group of an entry may be so.

Codes of bf16 near zero are finer than a float32 sum can resolve: where they are below 2^-16 of an
entry's largest value, that is allowed on top.

A flip before a Hadamard rotation moves all channels a little.
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
from dsv4kv.ops.scenes import Arguments, Call, Leeway, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS, Argument
from dsv4kv.ops.storage import Entries, PageStore

SCORE_ERROR = 2.0**-8
"""Of a score, against the token's largest: some engines have bf16 scores."""

OUTPUT_ERROR = 2.0**-6
"""Of an attention output, against its head's largest: weights and output are rounded to bf16."""

LSE_ERROR = 2.0**-10

_CPU = torch.device("cpu")
Rows = tuple[bytes, bytes]
"""Data row and scale row of an entry."""
_AXES = {"B": "request", "T": "token", "H": "head", "D": "channel"}
_TURNED = 1024  # pages that are copied at a time, as their order is turned


def foreign_scenes(resolved: ResolvedBackend, plan: CachePlan, seed: int = 0) -> list[Scene]:
    """Calls of a cache that a backend's own operations answer."""
    return [
        each for each in scenes_of(plan, seed) if resolved.serves(each.operation, each.format_name)
    ]


def check_backend(
    resolved: ResolvedBackend, plan: CachePlan, device: torch.device, seed: int = 0
) -> list[str]:
    """Call every foreign operation with what a cache may pass it, and compare with the reference.

    Returns a sentence for the first disagreement of each operation on each kind of pages of the
    plan. Raises ``PeerUnavailable`` where no operation takes pages of its formats.
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
) -> list[str]:
    """What a backend's operations get wrong in scenes drawn with ``seed``, in sentences."""
    return [
        f"{scene.operation} of {name} on {scene.subject}: {problem}"
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
    sums = [_words(each.pages).sum(dim=1) for each in read if isinstance(each, PageStore)]
    return [*sums, *(each.clone() for each in read if isinstance(each, Tensor))]


def _words(pages: Tensor) -> Tensor:
    """Pages as int64, where their places allow: eight times as fast to add up."""
    places = *pages.shape[1:], *pages.stride()[:-1], pages.storage_offset()
    whole = pages.stride(-1) == 1 and not any(place % 8 for place in places)
    return pages.view(torch.int64) if whole else pages


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


# ---- how far an entry may be off ----------------------------------------------------------------

BF16_STEP = 2.0**-7
SUM_ERROR = 2.0**-16  # of a float32 sum, against the largest: bf16 has codes far finer near zero
MEAN_TOLERANCE = {"bf16": 2e-3, "e4m3": 5e-3, "e2m1": 2e-2}
_ANYWHERE = 3  # values one code apart, however small all others are


def is_close(entry: EntryFormat, found: Tensor, expected: Rows, *, rotated: bool = False) -> bool:
    """Every value of an entry [D] within one code of the reference's, and nearly all equal.

    ``rotated`` entries may also be off by a bf16 step of the largest value in every channel: as
    one is where a value that outweighs all others has flipped, and each channel is rounded again.
    """
    right = _decoded(entry, expected)
    scales = torch.tensor(reference.decode_scales(entry, expected[1]), dtype=torch.float64)
    sizes, one = [entry.value_dims, entry.tail_dims], torch.ones(1, dtype=torch.float64)
    a, b = (
        torch.split_with_sizes(each.double().clamp(-_INFINITE, _INFINITE), sizes)
        for each in (found, right)
    )
    return _near(Grid(entry.value, entry.scale), a[0], b[0], scales, rotated) and (
        not entry.tail_dims or _near(Grid("bf16", "none"), a[1], b[1], one, rotated)
    )


def _near(grid: "Grid", found: Tensor, expected: Tensor, scales: Tensor, rotated: bool) -> bool:
    a, b = (each.reshape(len(scales), -1) for each in (found, expected))
    moved = BF16_STEP if rotated else 0.0
    error = moved + (SUM_ERROR if grid.value == "bf16" else 0.0)
    stays, moves = grid.one_code_apart(a, b, scales, error * float(b.abs().amax()))
    if not bool((stays | moves).all()) or (not rotated and int((~stays).sum()) > 1):
        return False
    different = (a - b).abs()
    rest = (different if rotated else different[stays]).flatten().sort().values[:-_ANYWHERE]
    return float(rest.sum()) <= (MEAN_TOLERANCE[grid.value] + 2 * moved) * float(b.abs().sum())


@dataclass(frozen=True)
class Grid:
    """The numbers that groups of a format can hold."""

    value: str  # type of the values, see ``EntryFormat``
    scale: str  # type of a group's scale

    def one_code_apart(
        self, found: Tensor, expected: Tensor, scales: Tensor, leeway: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Which groups are at most one code apart: by the same scale, and by a neighbouring one.

        found, expected: float64[G, group]; scales: of what is expected, float64[G]; leeway: by how
        much more a value may be off. Returns bool[G] twice.
        """
        low, high = self._cells(expected, scales)
        stays = self._touch(found, scales, low - leeway, high + leeway)
        moves = torch.zeros_like(stays)
        for other in self._neighbours(scales):
            wider = leeway + BF16_STEP * found.abs()
            moves |= self._touch(found, other, low - wider, high + wider)
        return stays, moves

    def _touch(self, found: Tensor, scales: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Groups on the grid of these scales, no value apart from its interval: bool[G]."""
        below, above = self._cells(found, scales)
        return ((below <= high) & (low <= above)).all(dim=1)  # NaN compares as false

    def _cells(self, values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Between which numbers all round to a value; NaN where it is not on its scale's grid."""
        grid, bounds = _VALUES[self.value], _BOUNDS[self.value]
        factor, most = scales[:, None], self._most(scales)[:, None]
        code = torch.searchsorted(bounds[1:-1], values / factor)
        on_grid = torch.where(self._read(grid[code] * factor) == values, 0.0, torch.nan)
        low, high = (bounds[i] * factor + on_grid for i in (code, code + 1))
        return low.clamp(-most, most), high.clamp(-most, most)

    def _read(self, products: Tensor) -> Tensor:
        """What is read of codes times scales: bf16, which most products are already."""
        return products.bfloat16().double() if self.scale == "amax_fp32" else products

    def _most(self, scales: Tensor) -> Tensor:
        """The largest number for which a scale is chosen, float64[G]."""
        largest = _VALUES[self.value][-1]
        if self.scale == "none":
            return torch.full_like(scales, torch.inf)
        if (
            self.scale == "amax_fp32"
        ):  # the largest number, bf16, over the largest code, in float32
            return self._read(largest * scales)
        if self.scale == "e4m3":  # is rounded to the nearest
            boundary = (scales + self._neighbours(scales)[1]) / 2
            return largest * boundary.nan_to_num(nan=torch.inf)
        return largest * scales  # is rounded up

    def _neighbours(self, scales: Tensor) -> tuple[Tensor, ...]:
        """Scales one step down and one up, 0 or NaN where there is none: float64[G] each."""
        if self.scale == "none":
            return ()
        if self.scale == "amax_fp32":
            i = torch.searchsorted(_BF16_SIZES, self._most(scales))
            neighbours = (
                _BF16_SIZES[(i + step).clamp_(0, len(_BF16_SIZES) - 1)] for step in (-1, 1)
            )
            return tuple((most / _VALUES[self.value][-1]).float().double() for most in neighbours)
        if self.scale == "e4m3":
            i = torch.searchsorted(_E4M3_SCALES, scales)
            last = len(_E4M3_SCALES) - 1
            return _E4M3_SCALES[(i - 1).clamp_min(0)], _E4M3_SCALES[(i + 1).clamp_max(last)]
        return scales / 2, scales * 2


def _signed(sizes: list[float]) -> Tensor:
    return torch.tensor([-size for size in sizes[:0:-1]] + sizes, dtype=torch.float64)


_INFINITE = 2.0**128  # stands for infinity: the next after the largest bf16
_BF16 = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).double().tolist()
_BF16_SIZES = torch.tensor([*_BF16, math.nan], dtype=torch.float64)
_VALUES = {
    "bf16": _signed([*_BF16, _INFINITE]),
    "e4m3": _signed(list(reference.E4M3)),
    "e2m1": _signed(list(reference.E2M1)),
}
_END = torch.full((1,), torch.inf, dtype=torch.float64)
_BOUNDS = {
    name: torch.cat([-_END, (values[1:] + values[:-1]) / 2, _END])
    for name, values in _VALUES.items()
}
_E4M3_SCALES = torch.tensor([*reference.E4M3, math.nan], dtype=torch.float64)
