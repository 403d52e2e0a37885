"""Blocks of all groups, told as what each pool costs a request.

A block costs the same whichever group it belongs to; what it is larger than its group's pages is
shared among them.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.engines.contract import PoolCost
from dsv4kv.sizing.engines.held import DRAFT
from dsv4kv.sizing.engines.vllm_pages import Group, Page

_Kind = tuple[str, str]  # pool and layer type


def costs_of(
    groups: Sequence[Group], unit_bytes: int, deployment: Deployment
) -> tuple[PoolCost, ...]:
    """Costs by pool; they add up to the bytes of all blocks of a request of whole blocks."""
    full, *others = groups
    return (*_context_costs(full, unit_bytes), *_window_costs(others, unit_bytes, deployment))


def _context_costs(full: Group, unit_bytes: int) -> list[PoolCost]:
    pages = _by_kind(full.pages)
    if not pages:  # a pipeline stage without compressed layers holds the blocks all the same
        return [PoolCost("main", "all", 0, padding_bytes=Fraction(unit_bytes, full.block_tokens))]
    costs = []
    for (pool, layer_type), held in pages.items():
        whole = Fraction(unit_bytes * sum(page.page_bytes for page in held), full.page_bytes)
        used = Fraction(sum(page.used_bytes for page in held), full.block_tokens)
        costs.append(
            PoolCost(
                pool,
                layer_type,
                len({page.layer for page in held}),
                marginal_bytes=used,
                padding_bytes=whole / full.block_tokens - used,
            )
        )
    return costs


def _window_costs(
    groups: Sequence[Group], unit_bytes: int, deployment: Deployment
) -> list[PoolCost]:
    """Windows and states: the blocks of steady decode, and what tokens in flight add."""
    context, steady = deployment.max_context_tokens, 1 + deployment.draft_tokens
    fixed: Counter[_Kind] = Counter()
    flight: Counter[_Kind] = Counter()
    layers: dict[_Kind, set[int]] = {}
    for group in groups:
        least = group.blocks(context, steady)
        more = max(0, group.blocks(context, deployment.in_flight_tokens) - least)
        fixed.update(_share(unit_bytes * least, group))
        flight.update(_share(unit_bytes * more, group))
        for kind, pages in _by_kind(group.pages).items():
            layers.setdefault(kind, set()).update(page.layer.index for page in pages)
    return [
        PoolCost(
            pool,
            layer_type,
            len(layers.get((pool, layer_type), ())),
            fixed_bytes=count,
            in_flight_bytes=flight[pool, layer_type],
        )
        for (pool, layer_type), count in fixed.items()
    ]


def _share(total_bytes: int, group: Group) -> dict[_Kind, int]:
    """Bytes by kind, in proportion to the pages, adding up exactly."""
    pages = _by_kind(group.pages)
    if not pages:
        return {("window", "all"): total_bytes}
    shares: dict[_Kind, int] = {}
    seen = given = 0
    for kind, held in pages.items():
        seen += sum(page.page_bytes for page in held)
        upto = total_bytes * seen // group.page_bytes
        shares[kind], given = upto - given, upto
    return shares


def _by_kind(pages: Sequence[Page]) -> dict[_Kind, list[Page]]:
    """Window pages of all layers but drafts are one kind; the others tell their layer type."""
    kinds: dict[_Kind, list[Page]] = {}
    for page in pages:
        kind = page.layer.kind
        layer_type = kind if page.pool != "window" or kind == DRAFT else "all"
        kinds.setdefault((page.pool, layer_type), []).append(page)
    return kinds
