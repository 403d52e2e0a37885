"""What a prefix is made of: objects of a few families, each with its own rule of what is needed.

The parts of a cache that a request must find to go on after ``n`` tokens (arXiv:2606.19348,
3.5.2): compressed entries and indexer keys of every block, the window of sliding attention as it
was there, and the compressors' states as far as a group reaches across that point. Layers of one
kind have pieces of one size, and are kept together as one object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Literal, get_args

from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.schedule import LayerSpec
from dsv4kv.model.schema import LayerCacheSchema

Part = Literal["main", "indexer", "window", "state", "indexer_state"]
"""What of a layer a family holds, as its schema names it."""

_FLOAT_BYTES = 4


class Kept(StrEnum):
    """Which objects of a family a request needs to resume."""

    PAGES = "pages"
    """One for every block of the prefix that holds an entry of it."""
    WINDOW = "window"
    """The last window before the resume point, as it is there."""
    OPEN = "open"
    """The group of tokens that is open at the resume point; none where a group ends there."""


@dataclass(frozen=True)
class Family:
    """Layers whose pieces are one object."""

    name: str  # ``csa``, ``csa_indexer``, ``hca``, ``window``, ``csa_state``, …
    part: Part  # what of its layers it holds
    kept: Kept  # which objects of it a prefix needs
    layers: tuple[int, ...]  # model indices of its layers, in model order: the pieces of an object
    ratio: int  # tokens of one entry, or of one group; 1 for windows
    tokens: int  # tokens that a page covers, or positions in a ring
    piece_bytes: int  # bytes of one layer, page padding included
    layout: PageLayout | None = None  # where entries are in a piece; None for a state
    state_shape: tuple[int, ...] = ()  # float32 state of one layer; empty where there are entries

    @property
    def object_shape(self) -> tuple[int, int]:
        """Of one object: layers, bytes of a piece."""
        return len(self.layers), self.piece_bytes

    @property
    def object_bytes(self) -> int:
        """Bytes of one object: all layers."""
        return len(self.layers) * self.piece_bytes

    def objects(self, tokens: int) -> int:
        """Objects that a request needs to resume after ``tokens`` tokens."""
        if self.kept is Kept.PAGES:
            return -(-(tokens // self.ratio) * self.ratio // self.tokens)
        return int(tokens > 0 if self.kept is Kept.WINDOW else tokens % self.ratio > 0)

    def useful_bytes(self, tokens: int) -> int:
        """Bytes of those objects without padding, and without entries that are not there yet."""
        if self.layout is None:
            return self.objects(tokens) * self.object_bytes
        entries = tokens // self.ratio
        if self.kept is Kept.WINDOW:
            entries = min(entries, self.tokens)
        return len(self.layers) * entries * self.layout.format.entry_bytes


def families_of(plan: CachePlan) -> tuple[Family, ...]:
    """Families of a cache, as ``families_in`` has them."""
    return families_in(plan.schemas)


def families_in(layers: Sequence[LayerCacheSchema]) -> tuple[Family, ...]:
    """Families of layers: pages first, then the window, then states.

    Their names are the attention's, with the ratio where one attention has several (V4.1):
    ``csa-2``, ``csa-1``. Draft layers' windows are among the others: without them a draft after
    the prefix would read another request's.
    """
    return tuple(
        _family(name, part, [s for s in schemas if _held(s, part)])
        for part in get_args(Part)
        for name, schemas in _kinds(layers, part).items()
        if any(_held(s, part) for s in schemas)
    )


def _held(schema: LayerCacheSchema, part: Part) -> PageLayout | tuple[int, ...] | None:
    """A layer's page or state; nothing where it has none."""
    held: PageLayout | tuple[int, ...] | None = {
        "main": schema.main,
        "indexer": schema.indexer,
        "window": schema.window,
        "state": schema.state_shape,
        "indexer_state": schema.indexer_state_shape,
    }[part]
    return held


def _kinds(schemas: Sequence[LayerCacheSchema], part: Part) -> dict[str, list[LayerCacheSchema]]:
    """Layers by the family's name; all windows are one."""
    if part == "window":
        return {part: list(schemas)}
    owners = [schema for schema in schemas if schema.main]
    ratios = {(schema.layer.attn, schema.layer.ratio) for schema in owners}
    kinds: dict[str, list[LayerCacheSchema]] = {}
    for schema in owners:
        spec = schema.layer
        several = sum(attn is spec.attn for attn, _ in ratios) > 1
        name = f"{spec.attn}-{spec.ratio}" if several else spec.attn.value
        kinds.setdefault(name if part == "main" else f"{name}_{part}", []).append(schema)
    return kinds


def _family(name: str, part: Part, schemas: Sequence[LayerCacheSchema]) -> Family:
    spec, held = schemas[0].layer, _held(schemas[0], part)
    layers = tuple(schema.layer.layer_idx for schema in schemas)
    if part == "window":
        assert isinstance(held, PageLayout)
        return Family(
            name, part, Kept.WINDOW, layers, 1, held.entries, held.page_bytes, layout=held
        )
    if isinstance(held, PageLayout):
        size = schemas[0].block_tokens, held.page_bytes
        return Family(name, part, Kept.PAGES, layers, spec.ratio, *size, layout=held)
    assert held
    positions = held[1] if len(held) == 3 else 1  # a running softmax has no positions
    size = positions, prod(held) * _FLOAT_BYTES
    return Family(name, part, _state_kept(spec), layers, spec.ratio, *size, state_shape=held)


def _state_kept(spec: LayerSpec) -> Kept:
    """Overlapping groups also pool tokens before a resume point where one of them ends."""
    return Kept.WINDOW if spec.overlaps else Kept.OPEN
