"""Ways to break a cache while it serves: each must be found out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsv4kv.cache.manager import KVCacheManager, StateCachePool
from dsv4kv.cache.step import Step
from dsv4kv.model.config import AttentionType
from dsv4kv.ops import cpu
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.ops.storage import PageStore
from tests.bench.serve.serving import Meddle

Break = Callable[[pytest.MonkeyPatch], Meddle | None]
"""Breaks the operations, or returns what breaks the cache between two steps."""


def at_step(step: int, harm: Callable[[KVCacheManager], None]) -> Break:
    """Harm the cache once, after so many steps."""

    def meddle(manager: KVCacheManager, done: int) -> None:
        if done == step:
            harm(manager)

    return lambda _patch: meddle


def flip_page_byte(layer: int, part: str, offset: int) -> Break:
    """Flip one byte in the page of the first block that a request holds."""

    def harm(manager: KVCacheManager) -> None:
        table = manager.tables[0]
        slot = int(np.argmax(table.held))
        store = getattr(manager.pools[layer], part)
        store.pages[table.blocks[0, slot, 0], offset] ^= 0xFF

    return at_step(2, harm)


def flip_window_byte(kind: AttentionType) -> Break:
    def harm(manager: KVCacheManager) -> None:
        manager.states[kind].windows[0].pages[0, 100] ^= 0xFF

    return at_step(1, harm)


def swap_blocks(rows: tuple[int, int], columns: tuple[int, int], step: int) -> Break:
    """Swap two entries of the block table."""

    def harm(manager: KVCacheManager) -> None:
        blocks = manager.tables[0].blocks[0]
        assert (blocks[rows, columns] >= 0).all()
        blocks[rows, columns] = blocks[rows[::-1], columns[::-1]]

    return at_step(step, harm)


def replace_op(name: str, wrong: Callable[..., Any], module: Any = cpu) -> Break:
    """Put ``wrong(right, *arguments)`` in the place of an operation."""

    def install(patch: pytest.MonkeyPatch) -> None:
        right = getattr(module, name)

        def called(*arguments: Any, **tensors: Any) -> Any:
            if tensors:
                arguments = tuple(tensors[each] for each in OPERATIONS[name].names)
            return wrong(right, *arguments)

        patch.setattr(module, name, called)

    return install


def skip_call(number: int) -> Callable[..., None]:
    calls = iter(range(10**6))

    def wrong(right: Callable[..., None], *arguments: Any) -> None:
        if next(calls) != number:
            right(*arguments)

    return wrong


def shift_positions(argument: int, by: int) -> Callable[..., None]:
    """Hand the operation positions that are off."""

    def wrong(right: Callable[..., None], *arguments: Any) -> None:
        changed = list(arguments)
        changed[argument] = changed[argument] + by
        right(*changed)

    return wrong


def forget_reset(patch: pytest.MonkeyPatch) -> Meddle:
    """Slots are reset when the cache is built and never again."""

    def meddle(manager: KVCacheManager, _done: int) -> None:
        patch.setattr(StateCachePool, "reset_slot", lambda _pool, _slot: None)

    return meddle


def lengths_off_by(by: int) -> Break:
    def install(patch: pytest.MonkeyPatch) -> None:
        right = Step.of

        def of(*arguments: Any) -> Step:
            step = right(*arguments)
            lengths = {ratio: (each + by).clamp_min(0) for ratio, each in step.lengths.items()}
            return replace(step, lengths=lengths)

        patch.setattr(Step, "of", of)

    return install


def change(operation: str, argument: str, how: Callable[..., Any]) -> Break:
    """Hand an operation another argument: ``how`` makes it of all of them, by name."""

    def wrong(right: Callable[..., None], *arguments: Any) -> None:
        given = dict(zip(OPERATIONS[operation].names, arguments, strict=True))
        right(*(given | {argument: how(**given)}).values())

    return replace_op(operation, wrong)


wrong_ring = change(
    "window_insert",
    "positions",
    lambda ring, positions, **_: positions % (ring.layout.entries - 1),
)
unbiased_state = change(
    "state_append",
    "compressor",
    lambda compressor, **_: replace(compressor, ape=torch.zeros_like(compressor.ape)),
)


def once_per_position(argument: int) -> Callable[..., None]:
    """Skip positions of the only request seen before: those of rejected drafts."""
    seen: set[tuple[int, int]] = set()

    def wrong(right: Callable[..., None], *arguments: Any) -> None:
        memory = next(a for a in arguments if isinstance(a, Tensor | PageStore))
        where = memory if isinstance(memory, Tensor) else memory.pages
        keys = [(where.data_ptr(), position) for position in arguments[argument].tolist()]
        new = torch.tensor([key not in seen for key in keys])
        seen.update(keys)
        right(*(a[new] if isinstance(a, Tensor) and a is not memory else a for a in arguments))

    return wrong
