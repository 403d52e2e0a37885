"""Gathering the sliding window out of rings."""

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.storage import PageStore
from tests.examples import examples
from tests.ops.samples import (
    NOT_A_NUMBER,
    SMALL,
    each_backend,
    nan_output,
    poisoned_store,
    random_values,
)

WINDOW = 8
LONG = 1_048_576

rings = st.integers(WINDOW, WINDOW + 3)
token_counts = st.one_of(st.integers(0, 40), st.sampled_from([LONG - 1, LONG]))


def _value(position: int) -> float:
    return float(position % 255 + 1)


def _ring_of(counts: list[int], length: int) -> PageStore:
    """Rings after so many tokens each; rows never written are NaN."""
    ring = poisoned_store(SMALL, length, len(counts), NOT_A_NUMBER)
    for slot, count in enumerate(counts):
        rows = ring.pages[slot].view(torch.bfloat16).view(length, 8)
        for position in range(max(0, count - length), count):
            rows[position % length] = _value(position)
    return ring


@each_backend
@examples(250)
@given(st.lists(token_counts, min_size=1, max_size=4), rings)
def test_window_is_the_newest_entries_oldest_first_and_zeros_after(
    backend: ModuleType, counts: list[int], length: int
) -> None:
    ring = _ring_of(counts, length)
    slots = list(reversed(range(len(counts))))
    tokens, out = torch.tensor([counts[slot] for slot in slots]), nan_output(len(slots), WINDOW, 8)
    before = tokens.clone()
    backend.gather_window(ring, torch.tensor(slots), tokens, out)
    newest = [[_value(p) for p in range(max(0, n - WINDOW), n)] for n in before.tolist()]
    padded = [values + [0.0] * (WINDOW - len(values)) for values in newest]
    assert torch.equal(out, torch.tensor(padded)[:, :, None].expand(-1, -1, 8).bfloat16())
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("length", [128, 128 + 3])
@pytest.mark.parametrize("name", FORMATS["window"])
def test_window_gather_equals_the_reference(name: str, length: int) -> None:
    entry = FORMATS["window"][name]
    ring = poisoned_store(entry, length, 3, NOT_A_NUMBER)
    counts = [130, 5, 128]  # more than a window, less than one, exactly one
    slots = torch.tensor([slot for slot, n in enumerate(counts) for _ in range(n)])
    positions = torch.cat([torch.arange(n) for n in counts])
    cpu.window_insert(ring, random_values(entry, len(slots), seed=2), slots, positions)
    outs = [nan_output(2, 128, entry.dims) for _ in range(2)]
    for backend, out in zip((cpu, reference), outs, strict=True):
        backend.gather_window(ring, torch.tensor([0, 1]), torch.tensor(counts[:2]), out)
    assert torch.equal(*outs)
    full = [nan_output(1, 128, entry.dims) for _ in range(2)]
    for backend, out in zip((cpu, reference), full, strict=True):
        backend.gather_window(ring, torch.tensor([2]), torch.tensor(counts[2:]), out)
    assert torch.equal(*full)
