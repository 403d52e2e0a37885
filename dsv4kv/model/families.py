"""Objects of a prefix, in a few families: each has its own rule for the ones that a hit needs.

The parts of a cache that a request must find to go on after ``n`` tokens (arXiv:2606.19348,
3.5.2): compressed entries and indexer keys of every block, the window of sliding attention as it
was there, and the compressors' states as far as a group reaches across that point. Layers of one
kind have pieces of one size, and are kept together as one object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Literal

from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.schema import LayerCacheSchema

Part = Literal["main", "indexer", "window", "state", "indexer_state"]
"""The part of a layer that a family holds, as its schema names it."""

_PARTS: dict[Part, str] = {
    "main": "main",
    "indexer": "indexer",
    "window": "window",
    "state": "state_shape",
    "indexer_state": "indexer_state_shape",
}
"""The attribute of a layer's schema that says how large a part is."""

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
    owners = [schema for schema in layers if schema.main]
    ratios = {(schema.layer.attn, schema.layer.ratio) for schema in owners}
    families: list[Family] = []
    for part, attribute in _PARTS.items():
        kinds: dict[str, list[LayerCacheSchema]] = {}
        for schema in layers if part == "window" else owners:
            spec = schema.layer
            several = sum(attn is spec.attn for attn, _ in ratios) > 1
            kind = f"{spec.attn}-{spec.ratio}" if several else spec.attn.value
            name = {"main": kind, "window": "window"}.get(part, f"{kind}_{part}")
            if getattr(schema, attribute):
                kinds.setdefault(name, []).append(schema)
        families += [
            _family(name, part, getattr(schemas[0], attribute), schemas)
            for name, schemas in kinds.items()
        ]
    return tuple(families)


def _family(
    name: str, part: Part, held: PageLayout | tuple[int, ...], schemas: Sequence[LayerCacheSchema]
) -> Family:
    spec = schemas[0].layer
    layers = tuple(schema.layer.layer_idx for schema in schemas)
    if isinstance(held, PageLayout):
        kept, ratio, tokens = Kept.PAGES, spec.ratio, schemas[0].block_tokens
        if part == "window":
            kept, ratio, tokens = Kept.WINDOW, 1, held.entries
        return Family(name, part, kept, layers, ratio, tokens, held.page_bytes, layout=held)
    positions = held[1] if len(held) == 3 else 1  # a running softmax has no positions
    size = positions, prod(held) * _FLOAT_BYTES
    # overlapping groups also pool tokens before a resume point where one of them ends
    kept = Kept.WINDOW if spec.overlaps else Kept.OPEN
    return Family(name, part, kept, layers, spec.ratio, *size, state_shape=held)
