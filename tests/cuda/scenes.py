"""Arguments of every operation, on the CPU: what a random small cache would pass.

Whatever an operation writes is poisoned before, so that leaving something out shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat, Place
from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.storage import PageStore
from tests.kernels.step_scenes import make_step
from tests.ops.samples import (
    POISON,
    fresh_online,
    fresh_ring,
    full_size_compressor,
    generator,
    nan_output,
    poisoned_store,
    random_tokens,
    random_values,
)

Arguments = tuple[Any, ...]

_ENTRIES = 32  # of a page
_NO_SLOT = -1


def store_of(format_name: str, *, filled: bool = False, pages: int = 4) -> PageStore:
    """Pages of a format such as ``main/fp8_ds_mla``: poisoned, or of valid random entries."""
    entry = entry_of(format_name)
    store = poisoned_store(entry, _ENTRIES, pages)
    if filled:
        count = _ENTRIES * pages
        cpu.entry_insert(store, random_values(entry, count, seed=5), torch.arange(count))
    return store


def entry_of(format_name: str) -> EntryFormat:
    """The row of ``FORMATS`` that a name such as ``main/fp8_ds_mla`` means."""
    places: dict[str, Place] = {"main": "main", "window": "window", "indexer": "indexer"}
    place, _, name = format_name.partition("/")
    return FORMATS[places[place]][name]


def window_insert(format_name: str) -> Arguments:
    """A chunk longer than the ring, whose first tokens are replaced at once, and single tokens."""
    chunk = torch.arange(70, 70 + _ENTRIES + 8)
    positions = torch.cat([chunk, torch.tensor([7, 5, 100])])
    slots = torch.cat([torch.full_like(chunk, 1), torch.tensor([2, _NO_SLOT, 3])])
    values = random_values(entry_of(format_name), len(slots), 1)
    return store_of(format_name), values, slots, positions


def entry_insert(format_name: str) -> Arguments:
    entries = torch.tensor([40, 0, _NO_SLOT, 127, 31, 128])  # the last is beyond the store
    return store_of(format_name), random_values(entry_of(format_name), 6, 2), entries


def indexer_insert(format_name: str) -> Arguments:
    return *entry_insert(format_name), True


def page_copy(format_name: str) -> Arguments:
    return store_of(format_name, filled=True), torch.tensor([3, 0]), torch.tensor([1, 2])


def _requests() -> tuple[Tensor, Tensor, Tensor]:
    """(table, slots, lengths) of three requests; unused places of the table are −1."""
    table = torch.tensor([[3, 1], [-1, -1], [0, -1], [2, -1]], dtype=torch.int32)
    return table, torch.tensor([2, 0, 1]), torch.tensor([20, 50, 0])


def gather_topk(format_name: str) -> Arguments:
    table, slots, lengths = _requests()
    indices = torch.randint(-1, 64, (3, 37), generator=generator(3), dtype=torch.int32)
    store = store_of(format_name, filled=True)
    return store, table, slots, indices, lengths, nan_output(3, 37, store.layout.format.dims)


def gather_all(format_name: str) -> Arguments:
    store = store_of(format_name, filled=True)
    return store, *_requests(), nan_output(3, 50, store.layout.format.dims)


def gather_window(format_name: str) -> Arguments:
    store = store_of(format_name, filled=True)
    slots, tokens = torch.tensor([1, 3, 0]), torch.tensor([7, 1000, 0])
    return store, slots, tokens, nan_output(3, 24, store.layout.format.dims)


def _query_tokens() -> tuple[Tensor, Tensor, Tensor]:
    """(table, slots, lengths) of five tokens: two of one request, one of none, one of nothing."""
    table, _, _ = _requests()
    return table, torch.tensor([2, 0, 0, -1, 1]), torch.tensor([20, 49, 50, 5, 0])


def indexer_query(_: str) -> Arguments:
    random = generator(14)
    queries = torch.randn(3, 64, 128, generator=random).bfloat16()
    weights, angles = (torch.randn(3, n, generator=random) for n in (64, 32))
    turns = torch.cat([angles.cos(), angles.sin()], dim=1)
    out = torch.full((3, 64, 128), POISON, dtype=torch.uint8)
    return queries, weights, turns, True, out, torch.full((3, 64), torch.nan)


def index_scores(format_name: str, blocks: Tensor | None = None) -> Arguments:
    random = generator(15)
    values = 8 * torch.randn(5, 64, 128, generator=random)
    queries = values.to(torch.float8_e4m3fn).view(torch.uint8)
    weights = torch.randn(5, 64, generator=random)
    out = torch.full((5, 50 if blocks is None else 16), torch.nan)
    store = store_of(format_name, filled=True)
    return store, *_query_tokens(), queries, weights, blocks, out


_BLOCKS = torch.tensor([[0, 2], [3, 6], [1, -1], [-1, -1], [-1, -1]], dtype=torch.int32)


def index_scores_of_blocks(format_name: str) -> Arguments:
    return index_scores(format_name, _BLOCKS)


def _few_scores(columns: int) -> Tensor:
    """Of which many are equal."""
    return torch.randint(-9, 9, (5, columns), generator=generator(16)).float()


def select_blocks(_: str) -> Arguments:
    out = torch.full((5, 3), POISON, dtype=torch.int32)
    return _few_scores(50), _query_tokens()[-1], 8, out


def select_topk(_: str, blocks: Tensor | None = None) -> Arguments:
    table, slots, lengths = _query_tokens()
    scores = _few_scores(50 if blocks is None else 16)
    out, entries = (torch.full((5, 12), POISON, dtype=torch.int32) for _ in range(2))
    return scores, lengths, blocks, table, slots, _ENTRIES, out, entries


def select_topk_of_blocks(_: str) -> Arguments:
    return select_topk(_, _BLOCKS)


def attend(format_name: str, kind: str = "csa") -> Arguments:
    """Chosen entries (``csa``), all (``hca``), or the window alone (``swa``)."""
    random, (table, slots, lengths) = generator(17), _query_tokens()
    store, indices = store_of(format_name, filled=True), None
    if kind == "csa":
        indices = torch.randint(-1, 52, (5, 37), generator=random, dtype=torch.int32)
    entries = None if kind == "swa" else Entries(store, table, lengths, indices)
    queries = (torch.randn(5, 64, 512, generator=random) / 8).bfloat16()
    sinks, out = torch.randn(64, generator=random), nan_output(5, 64, 512)
    ring, tokens = store_of("window/fp8_ds_mla", filled=True), torch.tensor([7, 999, 1000, 3, 0])
    lse = torch.full((5, 64), torch.nan)
    return ring, slots, tokens, 24, entries, queries, sinks, 512**-0.5, out, lse


def attend_all(format_name: str) -> Arguments:
    return attend(format_name, "hca")


def attend_window(format_name: str) -> Arguments:
    return attend(format_name, "swa")


def _state(compressor: Compressor, *, online: bool) -> Tensor:
    """States of four requests in the middle of a group."""
    state = fresh_online(compressor, 4) if online else fresh_ring(compressor, 4)
    state.copy_(torch.randn(state.shape, generator=generator(6)))
    if online:
        state[:, 1].abs_().add_(1.0)  # a denominator: one at least, for the largest token
    return state


def norm_rope_insert(kind: str, format_name: str, _: bool) -> Arguments:
    """Tokens that complete an entry; one's is nowhere, and one completes none."""
    compressor = full_size_compressor(kind)
    positions = (torch.tensor([0, 9, 3, 1000, 7]) + 1) * compressor.ratio - 1
    values = random_values(entry_of(format_name), 5, 4)
    entries = torch.tensor([40, 0, _NO_SLOT, 127, 31])
    return compressor, values, positions, store_of(format_name), entries


def state_append(kind: str, _: str, online: bool) -> Arguments:
    compressor = full_size_compressor(kind)
    slots = torch.tensor([1, 3, _NO_SLOT, 0])
    positions = 2 * compressor.ratio + torch.tensor([0, 1, 2, 0])
    kv, score = random_tokens(compressor, 4, seed=77)
    return compressor, _state(compressor, online=online), kv, score, slots, positions


def flush(kind: str, format_name: str, online: bool) -> Arguments:
    compressor = full_size_compressor(kind)
    slots, entries = torch.tensor([3, 0, 2]), torch.tensor([17, 99, 64])
    positions = torch.full((3,), 2 * compressor.ratio - 1)
    state = _state(compressor, online=online)
    return compressor, state, slots, positions, store_of(format_name), entries


def compress_chunk(kind: str, format_name: str, online: bool) -> Arguments:
    compressor = full_size_compressor(kind)
    start, count = (
        2 * compressor.ratio + 1,
        3 * compressor.ratio,
    )  # ends a begun group and two more
    kv, score = random_tokens(compressor, count, seed=78)
    state, entries = _state(compressor, online=online), torch.tensor([17, 99, 64])
    return compressor, state, kv, score, 2, start, store_of(format_name), entries


def step_write(kind: str, _: str, online: bool) -> Arguments:
    """Single tokens, of which some complete an entry; with indexer keys where layers have them."""
    kinds = (kind, "indexer") if kind == "csa" else (kind,)
    step = make_step(kinds, [(2, 131, 1), (0, 383, 1), (-1, 7, 1), (1, 6, 1)], online=online)
    return step.ring, step.values, step.slots, step.positions, step.parts


@dataclass(frozen=True)
class Scene:
    """One call of an operation.

    Attributes:
        operation: Name in the contract.
        format_name: Of its pages, such as ``main/fp8_ds_mla``.
        subject: What else tells scenes apart.
        make: Makes the arguments, afresh each time.
    """

    operation: str
    format_name: str
    subject: str
    make: Callable[[], Arguments]

    def arguments(self) -> Arguments:
        """The contract's arguments: new tensors of equal content each time."""
        return self.make()

    def __str__(self) -> str:
        return f"{self.operation} {self.format_name} {self.subject}".strip()


def _page_scene(operation: Callable[[str], Arguments], format_name: str) -> Scene:
    return Scene(operation.__name__, format_name, "", lambda: operation(format_name))


def _read_scene(
    operation: str, make: Callable[[str], Arguments], format_name: str = "", subject: str = ""
) -> Scene:
    return Scene(operation, format_name, subject, lambda: make(format_name))


def _state_scene(
    operation: Callable[..., Arguments], kind: str, format_name: str, *, online: bool = False
) -> Scene:
    subject = f"{kind} {'online' if online else 'ring'}"
    return Scene(
        operation.__name__, format_name, subject, lambda: operation(kind, format_name, online)
    )


SCENES = [
    *(_page_scene(entry_insert, f"main/{name}") for name in FORMATS["main"]),
    *(_page_scene(window_insert, f"window/{name}") for name in FORMATS["window"]),
    *(_page_scene(indexer_insert, f"indexer/{name}") for name in FORMATS["indexer"]),
    *(_page_scene(gather_topk, f"main/{name}") for name in FORMATS["main"]),
    *(_page_scene(gather_topk, f"indexer/{name}") for name in FORMATS["indexer"]),
    *(_page_scene(gather_all, f"main/{name}") for name in FORMATS["main"]),
    *(_page_scene(gather_window, f"window/{name}") for name in FORMATS["window"]),
    _read_scene("indexer_query", indexer_query),
    *(
        _read_scene("index_scores", make, f"indexer/{name}", subject)
        for make, subject in ((index_scores, "all"), (index_scores_of_blocks, "blocks"))
        for name in FORMATS["indexer"]
    ),
    _read_scene("select_blocks", select_blocks),
    _read_scene("select_topk", select_topk, subject="all"),
    _read_scene("select_topk", select_topk_of_blocks, subject="blocks"),
    *(_read_scene("attend", attend, f"main/{name}", "chosen") for name in FORMATS["main"]),
    _read_scene("attend", attend_all, "main/fp8_ds_mla", "all"),
    _read_scene("attend", attend_window, "window/fp8_ds_mla", "window"),
    *(_page_scene(page_copy, name) for name in ("main/fp8_ds_mla", "indexer/mxfp4")),
    *(
        _state_scene(operation, kind, format_name, online=online)
        for operation in (state_append, flush, compress_chunk)
        for kind, format_name, online in (
            ("csa", "main/fp8_ds_mla", False),
            ("csa", "main/fp4", False),
            ("indexer", "indexer/mxfp4", False),
            ("hca", "main/fp8_ds_mla", False),
            ("hca", "main/fp8_ds_mla", True),
        )
    ),
    *(
        _state_scene(norm_rope_insert, kind, format_name)
        for kind, format_name in (
            ("latent-1", "main/fp4"),
            ("latent-1", "main/fp8_group32_interleaved"),
            ("keys-2", "indexer/mxfp4"),
        )
    ),
    *(_state_scene(operation, "latent-2", "main/fp4") for operation in (flush, compress_chunk)),
    *(
        _state_scene(step_write, kind, "window/fp8_ds_mla", online=online)
        for kind, online in (("csa", False), ("hca", False), ("hca", True))
    ),
]
"""Every operation with every format that goes with it."""
