"""States into entries on the CPU twin, against float64."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import Precision
from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import reference
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.kernels.state import plan_flush, split_of
from dsv4kv.ops.storage import PageStore
from tests.kernels import state_twin
from tests.kernels.launches import each_order
from tests.kernels.state_twin import dirty_scratch, run_all
from tests.ops.samples import (
    POISON,
    angles,
    bf16_entry,
    full_size_compressor,
    generator,
    poisoned_store,
    read_entries,
    twin,
    within_one_step,
)

HCA, CSA = full_size_compressor("hca"), full_size_compressor("csa")
SPLITS = (1, 2, 4, 8)
FAR = 2**40

CASES: dict[str, tuple[str, str, EntryFormat]] = {
    **{f"csa ring {name}": ("csa", "ring", entry) for name, entry in FORMATS["main"].items()},
    "hca ring": ("hca", "ring", FORMATS["main"]["fp8_ds_mla"]),
    "hca online": ("hca", "online", FORMATS["main"]["fp8_ds_mla"]),
    **{
        f"indexer {name}": ("indexer", "ring", entry) for name, entry in FORMATS["indexer"].items()
    },
}
each_state = pytest.mark.parametrize(
    ("kind", "state"), [("csa", "ring"), ("hca", "ring"), ("hca", "online")]
)


def _random_state(compressor: Compressor, state: str, slots: int, drafts: int = 0) -> Tensor:
    """States in the middle of things: every row taken, weights uneven."""
    random = generator(5)
    if state == "online":
        tensor = torch.randn(slots, 3, compressor.dim, generator=random)
        tensor[:, 1] = 1 + 10 * tensor[:, 1].abs()  # the denominator
        return tensor
    rows = compressor.rows + drafts
    tensor = torch.randn(slots, 2, rows, compressor.channels, generator=random)
    tensor[:, 1] *= 3
    return tensor


def _ends(compressor: Compressor) -> Tensor:
    """Ends of the second group, of some others, and of the last at 1,048,576 tokens."""
    groups = torch.tensor([2, 3, 1000, (1 << 20) // compressor.ratio])
    return groups * compressor.ratio - 1


def _exact_entry(compressor: Compressor, state: Tensor, end: int) -> Tensor:
    """A slot's entry in float64, before the rounding to bf16 (and any Hadamard)."""
    if state.dim() == 3:
        rows = torch.arange(end + 1 - compressor.rows, end + 1) % state.shape[1]
        kv, score = reference.group_of_tokens(compressor, state[0, rows], state[1, rows])
        pooled = reference.pool(kv, score)
    else:
        pooled = state[2].double() / state[1].double()
    normed = pooled * torch.rsqrt(pooled.square().mean() + compressor.norm_eps)
    normed *= compressor.norm_weight.double()
    tail = compressor.dim - 2 * compressor.rotated_pairs
    angle = angles(compressor, end + 1 - compressor.ratio)
    pairs = torch.view_as_complex(normed[tail:].view(-1, 2))
    normed[tail:] = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).view(-1)
    return normed


@each_order
@each_state
@pytest.mark.parametrize("rope", get_args(Precision))
def test_entries_are_exact_but_for_the_rounding_to_bf16(
    kind: str, state: str, reverse: bool, rope: Precision
) -> None:
    compressor = full_size_compressor(kind, rope)
    ends, tensor = _ends(compressor), _random_state(compressor, state, 4)
    store, slots = poisoned_store(bf16_entry(compressor)), torch.tensor([3, 1, 2, 0])
    split, scratch = split_of(compressor), dirty_scratch(compressor, 4)
    entries = torch.tensor([95, 33, 0, 32])
    run_all(
        plan_flush(compressor, tensor, slots, ends, store, entries, split=split, scratch=scratch),
        reverse=reverse,
    )
    for slot, end, entry in zip(slots.tolist(), ends.tolist(), entries.tolist(), strict=True):
        exact = _exact_entry(compressor, tensor[slot], end)
        # Rounding keeps order: whatever lies within float32 error of the exact value rounds to
        # something between these two.
        error = 1e-5 * exact.abs() + 1e-6
        found = read_entries(store, [entry])[0]
        assert bool(((exact - error).bfloat16() <= found).all())
        assert bool((found <= (exact + error).bfloat16()).all())


@pytest.mark.parametrize(("kind", "state", "entry"), CASES.values(), ids=CASES)
def test_stored_codes_are_at_most_one_apart_from_the_reference(
    kind: str, state: str, entry: EntryFormat
) -> None:
    compressor = full_size_compressor(kind)
    ends, tensor = _ends(compressor), _random_state(compressor, state, 4)
    stores, entries = [poisoned_store(entry)], torch.tensor([95, 33, 0, 32])
    stores.append(twin(stores[0]))
    before = tensor.clone()
    for backend, store in zip((state_twin, reference), stores, strict=True):
        backend.flush(compressor, tensor, torch.arange(4), ends, store, entries)
    found, expected = (read_entries(store, entries.tolist()) for store in stores)
    assert within_one_step(entry, found, expected, rotated=compressor.hadamard)
    assert torch.equal(tensor, before)
    written = torch.zeros(96, dtype=torch.bool).index_fill(0, entries, True)
    if not entry.scale_row_bytes and not stores[0].layout.padding_bytes:
        rest = stores[0].pages.view(96, -1)[~written]
        assert bool((rest == POISON).all())


def _hca_pages(split: int, *, reverse: bool = False) -> Tensor:
    store, state = poisoned_store(bf16_entry(HCA)), _random_state(HCA, "ring", 4)
    scratch = dirty_scratch(HCA, 4)
    launches = plan_flush(
        HCA,
        state,
        torch.arange(4),
        _ends(HCA),
        store,
        torch.arange(4),
        split=split,
        scratch=scratch,
    )
    assert len(launches) == (1 if split == 1 else 2)
    run_all(launches, reverse=reverse)
    return store.pages


def test_every_split_gives_the_same_bytes_in_both_orders() -> None:
    expected = _hca_pages(1)
    for split in SPLITS:
        assert torch.equal(_hca_pages(split), expected)
        assert torch.equal(_hca_pages(split, reverse=True), expected)


@pytest.mark.parametrize("kind", ["csa", "hca"])
def test_a_ring_with_drafts_gives_the_same_bytes(kind: str) -> None:
    compressor = full_size_compressor(kind)
    plain = _random_state(compressor, "ring", 4)
    longer = torch.full((4, 2, compressor.rows + 3, compressor.channels), torch.nan)
    stores = [poisoned_store(bf16_entry(compressor)) for _ in range(2)]
    for slot, end in enumerate(_ends(compressor).tolist()):
        tokens = torch.arange(end + 1 - compressor.rows, end + 1)
        longer[slot][:, tokens % longer.shape[2]] = plain[slot][:, tokens % plain.shape[2]]
    for state, store in zip((plain, longer), stores, strict=True):
        state_twin.flush(
            compressor, state, torch.arange(4), _ends(compressor), store, torch.arange(4)
        )
    assert torch.equal(stores[0].pages, stores[1].pages)


def test_first_csa_entry_pools_nothing_that_a_slots_last_owner_left() -> None:
    fresh, reused = (_random_state(CSA, "ring", 1) for _ in range(2))
    fresh[0, 0, 4:], fresh[0, 1, 4:] = 0.0, -torch.inf
    reused[0, :, 4:] = torch.nan
    stores = [poisoned_store(bf16_entry(CSA)) for _ in range(2)]
    slots, positions = torch.tensor([0]), torch.tensor([3])
    reference.flush(CSA, fresh, slots, positions, stores[0], torch.tensor([0]))
    state_twin.flush(CSA, reused, slots, positions, stores[1], torch.tensor([0]))
    assert within_one_step(
        bf16_entry(CSA), read_entries(stores[1], [0]), read_entries(stores[0], [0])
    )


@each_state
@pytest.mark.parametrize(
    ("slot", "position", "entry"),
    [
        (0, 0, -1),
        (0, 0, -FAR),
        (0, 0, 96),
        (0, 0, FAR),
        (-1, 0, 0),
        (-FAR, 0, 0),
        (4, 0, 0),
        (FAR, 0, 0),
        (0, -1, 0),  # one group before the first
        (0, 0.5, 0),  # inside a group
        (0, 2**20, 0),  # beyond the table
        (0, FAR, 0),
    ],
)
def test_a_row_that_cannot_be_writes_nothing(
    kind: str, state: str, slot: int, position: float, entry: int
) -> None:
    """Positions in groups: 0 ends the first."""
    compressor = full_size_compressor(kind)
    store = poisoned_store(bf16_entry(compressor))
    end = int((position + 1) * compressor.ratio) - 1
    state_twin.flush(
        compressor,
        _random_state(compressor, state, 4),
        torch.tensor([slot]),
        torch.tensor([end]),
        store,
        torch.tensor([entry]),
    )
    assert bool((store.pages == POISON).all())


@each_state
def test_all_tokens_of_a_batch_may_be_passed(kind: str, state: str) -> None:
    """As a captured graph does: −1 for those that complete nothing."""
    compressor = full_size_compressor(kind)
    tensor, ends = _random_state(compressor, state, 4), _ends(compressor)
    stores = [poisoned_store(bf16_entry(compressor)) for _ in range(2)]
    slots, entries = torch.arange(4), torch.tensor([5, 40, 2, 95])
    state_twin.flush(compressor, tensor, slots, ends, stores[0], entries)
    batch = torch.full((12,), -1), torch.full((12,), -1), torch.full((12,), -1)
    where = torch.tensor([1, 4, 5, 11])
    batch[0][:], batch[1][:] = 2, 7 * compressor.ratio  # running, but inside a group
    batch[0][where], batch[1][where], batch[2][where] = slots, ends, entries
    state_twin.flush(compressor, tensor, batch[0], batch[1], stores[1], batch[2])
    assert torch.equal(stores[0].pages, stores[1].pages)


def _plan(split: int, scratch: Tensor | None, entries: int = 1) -> int:
    numbers = torch.zeros(entries, dtype=torch.int64)
    store: PageStore = poisoned_store(bf16_entry(CSA))
    state = _random_state(CSA, "ring", 1)
    return len(
        plan_flush(CSA, state, numbers, numbers, store, numbers, split=split, scratch=scratch)
    )


def test_nothing_to_flush_is_no_launch() -> None:
    assert _plan(1, None, entries=0) == 0


@pytest.mark.parametrize("split", [0, 3, 8])
def test_a_split_that_does_not_divide_the_channels_is_refused(split: int) -> None:
    with pytest.raises(ConfigError, match="split is 1, 2, 4 or 8"):
        _plan(split, dirty_scratch(CSA, 1))


def test_blocks_that_share_an_entry_meet_in_scratch_of_their_own_where_none_is_given() -> None:
    assert _plan(2, None) == 2
