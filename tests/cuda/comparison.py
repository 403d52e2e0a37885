"""One operation on two backends: what may differ, and by how much."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.check.reads import COMPARE
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Entries, Parts, PartWrite
from dsv4kv.ops.peers.foreign import PARAMETERS
from dsv4kv.ops.storage import PageStore
from tests.cuda.online_tolerance import assert_within, is_online, online_tolerance
from tests.cuda.scenes import Arguments, Scene
from tests.ops.samples import read_entries, same_bits, within_one_step

POOLING = {"flush", "compress_chunk", "norm_rope_insert"}
"""Operations whose sums may be taken in another order; all others are exact."""


def assert_equals_cpu_backend(
    scene: Scene, run: Callable[..., None], device: torch.device | None = None
) -> None:
    """Run a scene with ``run`` on a device, and with the cpu backend; compare all arguments."""
    mine, expected = to_device(scene.arguments(), device), scene.arguments()
    run(*mine)
    getattr(cpu, scene.operation)(*expected)
    found = to_device(mine, torch.device("cpu"))
    if scene.operation in COMPARE:
        _assert_close_reads(scene.operation, found, expected)
        return
    for before, after in zip(expected, found, strict=True):
        if isinstance(before, PageStore) and scene.operation in POOLING:
            _assert_close_pages(after, before, expected[-1], rotated=expected[0].turns_rounded)
        elif isinstance(before, PageStore):
            assert same_bits(after.pages, before.pages)
        elif isinstance(before, tuple):
            _assert_close_parts(after, before)
        elif is_online(before):
            torch.testing.assert_close(after, before)  # online states are sums
        elif isinstance(before, Tensor):
            assert same_bits(after, before)


def assert_equals_twin(scene: Scene, found: Arguments, expected: Arguments) -> None:
    """What a GPU wrote against what the kernels' CPU twin wrote: the same bits.

    An online state has been multiplied by an exponential, and may differ by as much as that does;
    tensor cores sum in an order of their own.
    """
    if scene.operation in COMPARE:
        _assert_close_reads(scene.operation, found, expected)
        return
    for mine, other in zip(found, expected, strict=True):
        if isinstance(other, PageStore):
            assert same_bits(mine.pages, other.pages)
        elif isinstance(other, tuple):
            _assert_close_parts(mine, other)
        elif is_online(other):
            assert_within(mine, other, online_tolerance(scene.arguments(), other))
        elif isinstance(other, Tensor):
            assert same_bits(mine, other)


def _assert_close_reads(operation: str, found: Arguments, expected: Arguments) -> None:
    """Choices are equal, sums close."""
    names = PARAMETERS[operation]
    mine, right = (dict(zip(names, each, strict=True)) for each in (found, expected))
    assert list(COMPARE[operation](mine, right)) == []


def _assert_close_parts(found: Parts, expected: Parts) -> None:
    for part, right in zip(found, expected, strict=True):
        if is_online(right.state):
            torch.testing.assert_close(part.state, right.state)  # online states are sums
        else:
            assert same_bits(part.state, right.state)
        rotated = right.compressor.turns_rounded
        _assert_close_pages(part.store, right.store, right.entries, rotated=rotated)


def to_device(arguments: Arguments, device: torch.device | None) -> Arguments:
    """The arguments with their tensors on a device; None leaves them where they are."""
    return arguments if device is None else tuple(_moved(a, device) for a in arguments)


def _moved(argument: Any, device: torch.device) -> Any:
    if isinstance(argument, tuple):
        return tuple(PartWrite(*(_moved(x, device) for x in part.fields())) for part in argument)
    if isinstance(argument, Entries):
        return Entries(*(_moved(each, device) for each in argument.fields()))
    if isinstance(argument, PageStore):
        return PageStore(argument.layout, argument.pages.to(device))
    return argument.to(device) if isinstance(argument, Tensor | Compressor) else argument


def _assert_close_pages(
    found: PageStore, expected: PageStore, entries: Tensor, *, rotated: bool
) -> None:
    """Written entries within one step of their format, every other byte equal."""
    written = [entry for entry in entries.tolist() if entry >= 0]
    values = [read_entries(store, written) for store in (found, expected)]
    assert within_one_step(found.layout.format, *values, rotated=rotated)
    blank = torch.zeros(len(entries), found.layout.format.dims, dtype=torch.bfloat16)
    for store in (found, expected):
        cpu.entry_insert(store, blank, entries)
    assert same_bits(found.pages, expected.pages)
