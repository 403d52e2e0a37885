"""Gathers on the CPU twin: bit for bit the CPU backend's, and never a byte out of place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.kernels.gather import (
    plan_gather_all,
    plan_gather_entries,
    plan_gather_topk,
    plan_gather_window,
)
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import VARIANTS
from tests.examples import examples
from tests.kernels.launches import (
    TINY,
    GuardedOutput,
    decoded,
    each_order,
    filled_store,
    mixed,
    on_blocks,
    rows_or_zeros,
)
from tests.kernels.shim.twin import run
from tests.ops.samples import each_entry, generator, nan_output, same_bits

MAIN = FORMATS["main"]["fp8_ds_mla"]
KEYS = FORMATS["indexer"]["mxfp4"]
FAR = 2**31 - 1

SLOTS = torch.tensor([1, -1, 0, 3, 2])  # 3 is one too many
LENGTHS = torch.tensor([40, 64, 10**9, 64, 64])  # more than slot 0 has blocks for
TABLE = torch.tensor([[2, 1], [3, 0], [-1, FAR]], dtype=torch.int32)

each_unroll = pytest.mark.parametrize("unroll", [1, 2, 4])


def places(indices: Tensor, per_page: int = 32, pages: int = 4) -> Tensor:
    """Physical entry of each logical index of the requests above, −1 where there is none."""
    physical = torch.full(indices.shape, -1, dtype=torch.int64)
    for b, slot in enumerate(SLOTS.tolist()):
        for k, index in enumerate(indices[b].tolist()):
            column, row = divmod(index, per_page)
            known = 0 <= slot < len(TABLE) and 0 <= index < LENGTHS[b] and column < TABLE.shape[1]
            page = int(TABLE[slot, column]) if known else -1
            if 0 <= page < pages:
                physical[b, k] = page * per_page + row
    return physical


@each_order
@each_entry
def test_topk_gives_the_chosen_entries_and_zeros(entry: EntryFormat, reverse: bool) -> None:
    store = filled_store(entry)
    pages = store.pages.clone()
    bad = [-1, -FAR - 1, 64, 65, FAR]
    indices = mixed(5 * 24, range(64), bad, seed=3).view(5, 24).int()
    indices[:, 5] = indices[:, 6]
    guarded = GuardedOutput.of(5, 24, entry.dims)
    launch = plan_gather_topk(store, TABLE, SLOTS, indices, LENGTHS, guarded.out)
    run(on_blocks(launch, 3), reverse=reverse)
    assert same_bits(guarded.content(), rows_or_zeros(decoded(store), places(indices)))
    assert torch.equal(store.pages, pages)


@each_order
@each_entry
def test_all_gives_every_entry_in_order_and_zeros_after(entry: EntryFormat, reverse: bool) -> None:
    # More room than the table has places is still to be filled with zeros.
    store = filled_store(entry)
    guarded = GuardedOutput.of(5, 67, entry.dims)
    launch = plan_gather_all(store, TABLE, SLOTS, LENGTHS, guarded.out)
    run(on_blocks(launch, 5), reverse=reverse)
    expected = places(torch.arange(67).expand(5, 67))
    assert same_bits(guarded.content(), rows_or_zeros(decoded(store), expected))


@each_order
def test_all_leaves_what_lies_behind_the_largest_length_alone(reverse: bool) -> None:
    # Captured for more than a step needs: the lengths of a replay decide what is written.
    store, room, longest = filled_store(MAIN), 90, 33
    lengths = torch.tensor([12, longest, 0, -5, 20])
    indices = torch.arange(longest).expand(5, -1)
    visible = places(indices).masked_fill(indices >= lengths[:, None], -1)
    guarded = GuardedOutput.of(5, room, MAIN.dims)
    launch = plan_gather_all(store, TABLE, SLOTS, lengths, guarded.out)
    run(on_blocks(launch, 3), reverse=reverse)
    found = guarded.content()
    assert same_bits(found[:, :longest], rows_or_zeros(decoded(store), visible))
    assert bool(found[:, longest:].isnan().all())


@each_order
@pytest.mark.parametrize("requests", [1, 31, 33, 80])
def test_all_finds_the_largest_length_among_any_number_of_requests(
    requests: int, reverse: bool
) -> None:
    store = filled_store(TINY)
    for longest_at in {0, requests // 2, requests - 1}:
        lengths = torch.full((requests,), 2)
        lengths[longest_at] = 40
        slots = torch.zeros(requests, dtype=torch.int64)
        guarded = GuardedOutput.of(requests, 44, 16)
        run(plan_gather_all(store, TABLE, slots, lengths, guarded.out), reverse=reverse)
        written = ~guarded.content().isnan()
        assert bool(written[:, :40].all())
        assert not bool(written[:, 40:].any())


@each_order
@pytest.mark.parametrize(
    ("name", "ring_length"),
    [("fp8_ds_mla", 128), *((name, 131) for name in FORMATS["window"])],  # 3 draft tokens
)
def test_window_gives_the_last_entries_oldest_first(
    name: str, ring_length: int, reverse: bool
) -> None:
    tokens = [0, 1, 127, 128, 129, 300, 1_048_575, -1, 2**40, 5, 5]
    slots = [0, 1, 2, 0, 1, 2, 1, 0, 2, -1, 3]
    ring, window = filled_store(FORMATS["window"][name], ring_length, pages=3), 128
    expected = torch.full((len(slots), window), -1)
    for b, (slot, count) in enumerate(zip(slots, tokens, strict=True)):
        first = max(0, count - window)
        for position in range(first, count if 0 <= slot < 3 else 0):
            expected[b, position - first] = slot * ring_length + position % ring_length
    guarded = GuardedOutput.of(len(slots), window, 512)
    arguments = torch.tensor(slots), torch.tensor(tokens), guarded.out
    run(on_blocks(plan_gather_window(ring, *arguments), 6), reverse=reverse)
    assert same_bits(guarded.content(), rows_or_zeros(decoded(ring), expected))


@each_unroll
@pytest.mark.parametrize("variant", VARIANTS["gather_topk"])
@pytest.mark.parametrize("entry", [MAIN, KEYS], ids=["a warp an entry", "half a warp"])
@pytest.mark.parametrize("blocks", [1, 7])
def test_entries_in_flight_do_not_change_the_output(
    entry: EntryFormat, variant: str, unroll: int, blocks: int
) -> None:
    store = filled_store(entry)
    entries = mixed(203, range(128), [-1, 128, FAR], seed=5)
    guarded = GuardedOutput.of(203, entry.dims)
    launch = plan_gather_entries(store, entries.int(), guarded.out, variant=variant, unroll=unroll)
    run(on_blocks(launch, blocks))
    expected = entries.masked_fill(entries >= 128, -1)
    assert same_bits(guarded.content(), rows_or_zeros(decoded(store), expected))


@pytest.mark.parametrize(
    ("name", "per_page"),
    [*(("fp8_ds_mla", n) for n in (1, 2, 32, 64)), ("fp4", 2), ("fp4", 64)],
)
def test_pages_of_any_number_of_entries_are_read(name: str, per_page: int) -> None:
    entry = FORMATS["main"][name]
    store = filled_store(entry, per_page, pages=5)
    entries = torch.randperm(store.num_entries, generator=generator(1))
    guarded = GuardedOutput.of(len(entries), entry.dims)
    run(plan_gather_entries(store, entries.int(), guarded.out))
    assert same_bits(guarded.content(), decoded(store)[entries])


def test_a_hundred_thousand_random_entries_are_those_of_the_cpu_backend() -> None:
    per_page, pages, count = 64, 400, 100_003
    store = PageStore.allocate(PageLayout(MAIN, per_page), pages, torch.device("cpu"))
    random = generator(9)
    store.pages.random_(0, 256, generator=random)
    everything = torch.arange(store.num_entries)
    scales = torch.randint(105, 248, (store.num_entries, 8), generator=random, dtype=torch.uint8)
    store.write(everything, store.read(everything)[0], scales)
    width = pages // 2
    table = torch.randperm(pages, generator=random).int().view(2, width)
    slots, lengths = torch.tensor([1]), torch.tensor([width * per_page - 1000])
    indices = torch.randint(-500, width * per_page, (1, count), generator=random).int()
    expected, guarded = nan_output(1, count, 512), GuardedOutput.of(1, count, 512)
    cpu.gather_topk(store, table, slots, indices, lengths, expected)
    run(plan_gather_topk(store, table, slots, indices, lengths, guarded.out))
    assert same_bits(guarded.content(), expected)


@st.composite
def hostile_requests(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A table, slots, lengths and indices of any value at all: 3 requests, 7 choices."""
    wild = st.one_of(st.integers(-3, 20), st.integers(-(2**31), FAR))
    long = st.one_of(wild, st.integers(-(2**63), 2**63 - 1))
    table = torch.tensor(draw(st.lists(wild, min_size=8, max_size=8)), dtype=torch.int32)
    slots, lengths = (draw(st.lists(long, min_size=3, max_size=3)) for _ in range(2))
    indices = torch.tensor(draw(st.lists(wild, min_size=21, max_size=21)), dtype=torch.int32)
    return table.view(2, 4), torch.tensor(slots), torch.tensor(lengths), indices.view(3, 7)


@examples(200)
@given(hostile_requests())
def test_whatever_is_asked_for_only_entries_that_exist_are_read(
    case: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    table, slots, lengths, indices = case
    store = filled_store(TINY, entries=4, pages=3)
    values, expected = decoded(store), torch.zeros(3, 7, 16, dtype=torch.bfloat16)
    for b, slot in enumerate(slots.tolist()):
        for k, index in enumerate(indices[b].tolist()):
            if 0 <= slot < 2 and 0 <= index < min(int(lengths[b]), 16):
                page = int(table[slot, index // 4])
                if 0 <= page < 3:
                    expected[b, k] = values[page * 4 + index % 4]
    guarded = GuardedOutput.of(3, 7, 16)
    run(plan_gather_topk(store, table, slots, indices, lengths, guarded.out))
    assert same_bits(guarded.content(), expected)


def test_gather_of_no_request_writes_nothing() -> None:
    store, none = filled_store(TINY), torch.empty(0, dtype=torch.int64)
    guarded = GuardedOutput.of(0, 4, 16)
    run(plan_gather_topk(store, TABLE, none, torch.empty(0, 4).int(), none, guarded.out))
    run(plan_gather_all(store, TABLE, none, none, guarded.out))
    run(plan_gather_window(store, none, none, guarded.out))
    guarded.content()
