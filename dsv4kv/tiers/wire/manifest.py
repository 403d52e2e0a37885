"""What a sender says of a request: where its rows are, and what they must be."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from dsv4kv.cache.blocks import Ids
from dsv4kv.errors import ConfigError, StoreUnavailable
from dsv4kv.tiers.wire.memory import Memory
from dsv4kv.tiers.wire.rows import Geometry, NonNegative, Sealed

_ROWS = Field(max_length=2**22)


class FamilyRows(Sealed):
    """A family of the request.

    Attributes:
        format: Of its entries; ``float32`` for states.
        ratio: Tokens of an entry or a group.
        layers: Model indices of its layers.
        regions: Number of the first layer's pool in the sender's memory.
        geometry: Where rows are in a layer.
        first: First row that is there; those to the end of ``tokens`` follow.
        end: Where they end.
        ids: Pages, or the slot: every layer's, or one list for all layers.
        digests: Of the rows of every page, in their order.
    """

    format: str
    ratio: NonNegative
    layers: list[NonNegative]
    regions: NonNegative
    geometry: Geometry
    first: NonNegative
    end: NonNegative
    ids: list[Annotated[list[NonNegative], _ROWS]]
    digests: Annotated[list[str], _ROWS]

    def blocks(self) -> Ids:
        """int64[layers, n]: pages of every layer."""
        ids = np.array(self.ids, dtype=np.int64)
        return np.broadcast_to(ids, (len(self.layers), ids.shape[1]))


class Manifest(Sealed):
    """A request.

    Attributes:
        model: Its model's name.
        hadamard: Whether indexer keys were rotated.
        tokens: Tokens it has.
        prefix: Tokens whose pages are not offered.
        families: By name.
        complete: Whether the prompt is computed: before, pages are named, and have no digests.
        segment: Name of the shared memory that the sender's pools are in, if they are.
        regions: Where every region is in it.
    """

    model: str
    hadamard: bool
    tokens: NonNegative
    prefix: NonNegative
    families: dict[str, FamilyRows]
    complete: bool
    segment: Annotated[str, Field(max_length=255)] = ""
    regions: list[Annotated[int, Field(ge=0, le=2**48)]] = Field(default_factory=list)


def make_manifest(
    memory: Memory, slot: int, tokens: int, *, prefix: int = 0, complete: bool = True
) -> Manifest:
    """Describe a request that has ``tokens`` tokens in a slot, and hash what it has.

    prefix: tokens of which the other side has the pages; they are left out.
    complete: without, its pages are known, and not yet what they hold.
    """
    families = {}
    for name, family in memory.families.items():
        rows = memory.rows(family, tokens, prefix)
        ids, geometry = memory.ids(family, slot, tokens), memory.geometries[name]
        alike = bool((ids == ids[:1]).all())
        families[name] = FamilyRows(
            format=family.layout.format.name if family.layout else "float32",
            ratio=family.ratio,
            layers=list(family.layers),
            regions=memory.numbers[name],
            geometry=geometry,
            first=rows.start,
            end=rows.stop,
            ids=ids[:1].tolist() if alike else ids.tolist(),
            digests=memory.digests(family, ids, rows, geometry.rows) if complete else [],
        )
    plan = memory.manager.plan
    return Manifest(
        model=plan.config.name,
        hadamard=plan.hadamard,
        tokens=tokens,
        prefix=prefix,
        families=families,
        complete=complete,
        segment=memory.segment.name if memory.segment else "",
        regions=memory.offsets,
    )


def read_manifest(text: bytes) -> Manifest:
    """Raises ``StoreUnavailable`` for what is none."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise StoreUnavailable(f"the manifest is none: {where}: {first['msg']}.") from None


def check_manifest(manifest: Manifest, memory: Memory) -> None:
    """Refuse a request that this cache cannot hold, bit for bit.

    Raises:
        ConfigError: Another model, other layers or formats.
    """
    plan = memory.manager.plan
    for what, theirs, ours in (
        ("model", manifest.model, plan.config.name),
        ("rotation of indexer keys", manifest.hadamard, plan.hadamard),
        ("families", _listed(manifest.families), _listed(memory.families)),
    ):
        if theirs != ours:
            raise _refusal(what, theirs, ours)
    for name, family in memory.families.items():
        offered, held = manifest.families[name], memory.geometries[name]
        kind = family.layout.format.name if family.layout else "float32"
        for what, left, right in (
            ("layers", offered.layers, list(family.layers)),
            ("format", offered.format, kind),
            ("tokens of an entry", offered.ratio, family.ratio),
            ("bytes of a row", offered.geometry.row_bytes, held.row_bytes),
            ("kind of pages (ring)", offered.geometry.ring, held.ring),
        ):
            if left != right:
                raise _refusal(f"{name}: {what}", left, right)
        _check_rows(name, offered, memory.rows(family, manifest.tokens, manifest.prefix))


def _check_rows(name: str, offered: FamilyRows, needed: range) -> None:
    pages = 1 if offered.geometry.ring else -(-needed.stop // offered.geometry.rows)
    lists = {len(ids) for ids in offered.ids}
    counts = " or ".join(map(str, sorted(lists)))
    if (
        range(offered.first, offered.end) != needed
        or len(offered.ids) not in (1, len(offered.layers))
        or (needed and lists != {pages})
    ):
        raise StoreUnavailable(
            f"the sender has rows {offered.first:,} to {offered.end:,} of {name} in {counts} "
            f"pages, and a request of its length needs {needed.start:,} to {needed.stop:,} in "
            f"{pages:,}: its manifest is wrong."
        )


def _listed(families: Mapping[str, object]) -> str:
    return ", ".join(sorted(families))


def _refusal(what: str, theirs: object, ours: object) -> ConfigError:
    return ConfigError(
        f"the two caches differ: {what}: {theirs} there and {ours} here. Rows are moved bit for "
        "bit, so build both alike."
    )
