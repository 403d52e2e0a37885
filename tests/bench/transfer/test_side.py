"""Decoding on after a transfer: bit for bit what a request reads that never left."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dsv4kv.bench.transfer import Manifest, Side, make_manifest, receive
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import VerificationError

LENGTHS = (1, 3, 4, 127, 128, 129, 255, 256, 257)
STEPS = 2
FLASH = {"preset": "v4-flash", "layers": (0, 2, 3), "draft_layers": False}


def side(model: dict[str, Any] = FLASH, *, drafts: int = 0, **cache: Any) -> Side:
    settings = {"max_context_tokens": 600, "num_slots": 3, "block_tokens": 128}
    return Side(
        BenchConfig.model_validate(
            {
                "device": "cpu",
                "model": model,
                "cache": settings | cache,
                "workload": {
                    "concurrency": 3,
                    "step_tokens": 512,
                    "step": "gather",
                    "speculative": {"draft_tokens": drafts},
                },
            }
        )
    )


def move(source: Side, slot: int, target: Side, tokens: int) -> int:
    manifest = make_manifest(source.memory, slot, tokens)
    return receive(target.memory, manifest, source.memory.regions)[0]


@pytest.mark.parametrize(
    ("model", "drafts", "cache"),
    [
        (FLASH, 0, {}),
        (FLASH | {"formats": {"main": "bf16", "window": "bf16"}}, 4, {"block_tokens": 512}),
        ({"preset": "v4.1-flash", "layers": (0, 2, 20)}, 0, {"block_tokens": 256}),
    ],
)
def test_decode_steps_after_a_transfer_read_what_they_would_have_read(
    model: dict[str, Any], drafts: int, cache: dict[str, Any]
) -> None:
    """In other blocks and slots, and back again; 0 tokens are a transfer, too."""
    source, target = side(model), side(model, drafts=drafts, **cache)
    other = source.prefill(7, 200)
    target.prefill(8, 130)
    for n, tokens in enumerate(LENGTHS):
        slot = source.prefill(n, tokens)
        there = move(source, slot, target, tokens)
        stayed = source.go_on(slot, n, STEPS)
        assert target.go_on(there, n, STEPS) == stayed, tokens
        source.release(slot)
        target.release(there)
    slot = target.prefill(9, 129)
    back = move(target, slot, source, 129)
    assert source.go_on(back, 9, STEPS) == target.go_on(slot, 9, STEPS)
    source.release(other)
    empty = move(source, source.prefill(10, 0), target, 0)
    assert target.memory.manager.tokens[empty] == 0


# ---- planted faults -----------------------------------------------------------------------------


def changed(manifest: Manifest, name: str, **fields: Any) -> Manifest:
    family = replace(manifest.families[name], **fields)
    return replace(manifest, families=manifest.families | {name: family})


def other_pages(source: Side, manifest: Manifest) -> Manifest:
    """Legacy page numbers, of another table, applied to every buffer (tokenspeed#660)."""
    return changed(manifest, "csa_indexer", ids=manifest.families["csa"].ids + 1)


def coarse_states(source: Side, manifest: Manifest) -> Manifest:
    """States are numbered as pages are (tokenspeed#1048)."""
    return changed(manifest, "hca_state", ids=manifest.families["hca_state"].ids + 1)


def truncated_state(source: Side, manifest: Manifest) -> Manifest:
    """19,008 of 32,768 B are sent: a region of another size at the same base (vllm#57661)."""
    name = "hca_state"
    number = source.memory.numbers[name]
    region = bytearray(source.memory.regions[number])
    family = manifest.families[name]
    page, slot = family.geometry.page_bytes, int(family.ids[0, 0])
    cut = page * 19_008 // 32_768
    region[slot * page + cut : (slot + 1) * page] = bytes(page - cut)
    source.memory.regions[number] = memoryview(region)
    return manifest


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
    ("fault", "where"),
    [
        (other_pages, "csa_indexer"),
        (coarse_states, "hca_state"),
        (truncated_state, "hca_state"),
        (a_page_too_late, "csa"),
    ],
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
