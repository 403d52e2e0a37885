"""The numbers of every format on the CPU twin, exhaustively where that is possible."""

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.launches.pages import plan_entry_insert, plan_gather_entries
from dsv4kv.ops.storage import PageStore
from tests.kernels.launches import decoded
from tests.kernels.shim.twin import run
from tests.ops.samples import ENTRIES, each_entry, generator, nan_output, same_bits

SCALED = {name: entry for name, entry in ENTRIES.items() if entry.groups}


FP4 = FORMATS["main"]["fp4"]


each_scaled = pytest.mark.parametrize("entry", SCALED.values(), ids=SCALED)


def store_for(entry: EntryFormat, count: int) -> PageStore:
    pages = -(-count // 32)
    return PageStore.allocate(PageLayout(entry, 32), pages, torch.device("cpu"))


def every_scale(entry: EntryFormat) -> Tensor:
    """All scales that are numbers, as uint8[n, bytes of one]: more than encoding ever gives."""
    if entry.scale.endswith("fp32"):
        mantissas = [0, 1, 0x2B5A17, 0x7FFFFF] if entry.scale == "amax_fp32" else [0]
        bits = (torch.arange(1, 255)[:, None] << 23) + torch.tensor(mantissas)
        return bits.int().view(-1, 1).view(torch.uint8)
    return torch.arange(127 if entry.scale == "e4m3" else 255, dtype=torch.uint8)[:, None]


def assert_encodes_as_cpu(entry: EntryFormat, values: Tensor) -> None:
    store, expected = store_for(entry, len(values)), store_for(entry, len(values))
    entries = torch.arange(len(values))
    cpu.entry_insert(expected, values, entries)
    run(plan_entry_insert(store, values, entries))
    assert torch.equal(store.pages, expected.pages)


@each_scaled
def test_all_codes_under_all_scales_decode_as_on_the_cpu_backend(entry: EntryFormat) -> None:
    scales = every_scale(entry)
    codes = torch.arange(256, dtype=torch.uint8).repeat(-(-512 // entry.value_bytes))
    codes = codes[: codes.numel() // entry.value_bytes * entry.value_bytes]
    per_scale = codes.view(-1, entry.value_bytes)
    count = len(scales) * len(per_scale)
    store, entries = store_for(entry, count), torch.arange(count)
    data, _ = store.read(entries)
    data[:, : entry.value_bytes] = per_scale.repeat(len(scales), 1)
    rows = scales.repeat_interleave(len(per_scale), 0).repeat(1, entry.groups)
    rows = torch.nn.functional.pad(rows, (0, entry.scale_padding))
    store.write(entries, data, rows)
    out = nan_output(count, entry.dims)
    run(plan_gather_entries(store, entries.int(), out))
    assert same_bits(out, decoded(store)[:count])


@each_entry
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_every_finite_bf16_encodes_as_on_the_cpu_backend(entry: EntryFormat, order: str) -> None:
    # Sorted, a group spans few exponents; shuffled, its maximum dwarfs most of it.
    bits = torch.arange(2**16, dtype=torch.int32)
    bits = bits[bits & 0x7F80 != 0x7F80]
    if order == "shuffled":
        bits = bits[torch.randperm(len(bits), generator=generator(1))]
    values = bits.to(torch.int16).view(torch.bfloat16)
    values = torch.nn.functional.pad(values, (0, -len(values) % entry.dims))
    assert_encodes_as_cpu(entry, values.view(-1, entry.dims))


def test_fp4_ties_and_their_neighbours_round_alike_under_every_scale() -> None:
    # The kernel multiplies by a rounded inverse where the CPU backend divides.
    scales = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    exact = (scales[:, None] * ties).bfloat16()
    assert torch.equal(exact.float(), scales[:, None] * ties)
    steps = [(exact.view(torch.int16) + step).view(torch.bfloat16) for step in (-1, 0, 1)]
    largest = (6 * scales)[:, None].bfloat16()  # makes the scale of its group
    others = torch.cat([*steps, largest.expand(-1, 9)], 1).view(-1, 2, 15)
    others[:, 1] *= -1
    groups = torch.cat([largest[:, None].expand(-1, 2, -1), others], 2).flatten()
    values = torch.nn.functional.pad(groups, (0, -len(groups) % FP4.dims))
    assert_encodes_as_cpu(FP4, values.view(-1, FP4.dims))
