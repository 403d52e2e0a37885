"""Every kernel of entries and pages, asked for what there is and for what there is not."""

from collections.abc import Iterator

import torch

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops.launches.copies import (
    THREADS,
    plan_copy_peak,
    plan_nothing,
    plan_objects,
    plan_read_peak,
    plan_write_peak,
    pool_table,
)
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.pages import (
    plan_entry_insert,
    plan_gather_all,
    plan_gather_entries,
    plan_gather_topk,
    plan_gather_window,
    plan_indexer_insert,
    plan_page_copy,
    plan_window_insert,
)
from dsv4kv.ops.spec import VARIANTS
from tests.examples import FULL
from tests.kernels.launches import filled_store, mixed, of_one_module_a_kernel, on_blocks
from tests.kernels.shim.twin import SANITIZED, run
from tests.ops.samples import nan_output, random_values

# One format for each kind of values; in a full run for each kind of scales, too.
KINDS = [FORMATS["main"]["fp8_ds_mla"], FORMATS["indexer"]["mxfp4"]]
if FULL:
    KINDS += [FORMATS["main"]["fp4"], FORMATS["indexer"]["fp8"]]
BEYOND = [-1, 64, 65, 2**31 - 1, -(2**31)]
FAR_BEYOND = [*BEYOND, 2**63 - 1, -(2**63)]


def run_all_sanitized() -> None:
    """Run every launch in both orders, each on few blocks and on as many as it asks for."""
    for launch in of_one_module_a_kernel(launches()):
        run(launch, flags=SANITIZED)
        run(on_blocks(launch, 2), reverse=True, flags=SANITIZED)


def launches() -> Iterator[Launch]:
    for entry in KINDS:
        yield from _gathers(entry)
        yield from _inserts(entry)
    store, count = filled_store(KINDS[0], pages=64), 9
    yield plan_page_copy(store, mixed(count, range(32), FAR_BEYOND, 1), 32 + torch.arange(count))
    yield plan_page_copy(store, torch.arange(count), mixed(count, range(63, 64), FAR_BEYOND, 2))
    yield from object_moves(mixed(count, range(32), FAR_BEYOND, 3))
    for chunks in (1, 4001):
        source, target = (torch.zeros(16 * chunks, dtype=torch.uint8) for _ in range(2))
        yield plan_copy_peak(source, target)
        yield plan_write_peak(target)
        yield plan_nothing(target)
        yield plan_read_peak(source, torch.zeros(2 * THREADS, dtype=torch.int32))


def object_moves(ids: torch.Tensor) -> Iterator[Launch]:
    """Objects of two layers, of pages that are there and that are not."""
    pools = [filled_store(KINDS[0], pages=64).pages for _ in range(2)]
    piece = pools[0].shape[1]
    objects = torch.zeros(len(ids) * (2 * piece + 16), dtype=torch.uint8)
    for way in ("take", "put"):
        both = torch.stack([ids, ids.flip(0)])
        yield plan_objects(way, pool_table(pools), both, objects, piece, 2 * piece + 16)


def _gathers(entry: EntryFormat) -> Iterator[Launch]:
    store, dims = filled_store(entry, pages=2), entry.dims
    out = nan_output(7, 5, dims)
    table = mixed(3 * 2, range(2), BEYOND, seed=3).int().view(3, 2)
    slots = mixed(7, range(3), FAR_BEYOND, seed=4)
    lengths = mixed(7, range(70), FAR_BEYOND, seed=5).roll(1)
    indices = mixed(35, range(64), BEYOND, seed=6).int()
    for variant in VARIANTS["gather_topk"]:
        indexed = indices.view(7, 5)
        yield plan_gather_topk(store, table, slots, indexed, lengths, out, variant=variant)
        yield plan_gather_all(store, table, slots, lengths, out, variant=variant)
        yield plan_gather_window(store, slots, lengths, out, variant=variant)
        yield plan_gather_entries(store, indices, out[0].repeat(7, 1), variant=variant)


def _inserts(entry: EntryFormat) -> Iterator[Launch]:
    store, values = filled_store(entry, pages=2), random_values(entry, 9, seed=7)
    entries = mixed(9, range(60, 64), FAR_BEYOND, seed=8)
    entries[::2] = torch.arange(5)
    slots, positions = (
        mixed(9, range(2), FAR_BEYOND, 9),
        mixed(9, range(99), FAR_BEYOND, 10).roll(1),
    )
    for variant in VARIANTS["entry_insert"]:
        yield plan_entry_insert(store, values, entries, variant=variant)
        yield plan_window_insert(store, values, slots, positions, variant=variant)
    if entry.dims == 128 and entry.value == "e2m1":
        yield plan_indexer_insert(store, values, entries, True)
