"""Copying whole pages."""

from types import ModuleType

import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import entry_format
from tests.examples import examples
from tests.ops.samples import each_backend, generator, poisoned_store

PAGES = 6


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sources, some twice, and distinct targets; no page is both."""
    order = draw(st.permutations(range(PAGES)))
    cut = draw(st.integers(1, PAGES))
    targets = list(order[cut:])
    chosen = st.lists(st.sampled_from(order[:cut]), min_size=len(targets), max_size=len(targets))
    return draw(chosen), targets


@each_backend
@examples(100)
@given(copies())
def test_targets_become_their_sources_and_nothing_else_changes(
    backend: ModuleType, case: tuple[list[int], list[int]]
) -> None:
    sources, targets = case
    store = poisoned_store(entry_format("main", "fp8_ds_mla"), 2, PAGES)
    store.pages.copy_(torch.randint(256, store.pages.shape, generator=generator(1)))
    expected = store.pages.clone()
    for source, target in zip(sources, targets, strict=True):
        expected[target] = expected[source]
    backend.page_copy(store, torch.tensor(sources).long(), torch.tensor(targets).long())
    assert torch.equal(store.pages, expected)
