"""Bytes that are another request's, or old ones, are found where they come in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dsv4kv.bench.transfer import Manifest, Side, make_manifest, receive
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import VerificationError

FLASH = {"preset": "v4-flash", "layers": (0, 2, 3), "draft_layers": False}


def side(**cache: Any) -> Side:
    settings = {"max_context_tokens": 600, "num_slots": 3, "block_tokens": 128}
    served = {"concurrency": 3, "step_tokens": 512, "step": "gather"}
    config = {"device": "cpu", "model": FLASH, "cache": settings | cache, "workload": served}
    return Side(BenchConfig.model_validate(config))


def changed(manifest: Manifest, name: str, **fields: Any) -> Manifest:
    family = replace(manifest.families[name], **fields)
    return replace(manifest, families=manifest.families | {name: family})


def other_pages(source: Side, manifest: Manifest) -> Manifest:
    """Legacy page numbers, of another table, applied to every buffer (tokenspeed#660)."""
    return changed(manifest, "csa_indexer", ids=manifest.families["csa"].ids + 1)


def a_page_too_late(source: Side, manifest: Manifest) -> Manifest:
    """A page is sent before its last rows are written."""
    number = source.memory.numbers["csa"]
    family = manifest.families["csa"]
    region, page = bytearray(source.memory.regions[number]), family.geometry.page_bytes
    start = int(family.ids[0, -1]) * page
    region[start + 576 : start + 1152] = bytes(576)
    source.memory.regions[number] = memoryview(region)
    return manifest


@pytest.mark.parametrize(
    ("fault", "where"), [(other_pages, "csa_indexer"), (a_page_too_late, "csa")]
)
def test_bytes_of_others_are_found_by_their_digests(
    fault: Callable[[Side, Manifest], Manifest], where: str
) -> None:
    source, target = side(), side(block_tokens=256)
    slot = source.prefill(0, 200)
    manifest = fault(source, make_manifest(source.memory, slot, 200))
    with pytest.raises(VerificationError, match=rf"digests: {where}: 1 of \d pages\.$|{where}: 2"):
        receive(target.memory, manifest, source.memory.regions)
    manager = target.memory.manager
    assert (manager.num_free_slots, manager.num_held_blocks) == (3, 0)
