"""What goes in through a handle comes out as the reference says, and to its owner only."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dsv4kv.cache.handle import LayerCacheHandle, ReadView, build_layers
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.errors import ConfigError, NotOwner
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import StateFormat
from dsv4kv.ops import reference_codec
from dsv4kv.ops.registry import load_backend
from tests.cache.caches import admit, small_plan
from tests.cache.feed import Feed, draw_compressors, parts_of

SWA, CSA, HCA = 1, 4, 3
PARTIAL = (SWA, HCA, CSA, 6)  # layer numbers that are nobody's row
DRAFTS = 2

Call = Callable[[LayerCacheHandle], object]


def build(plan: CachePlan, backend: str = "cpu") -> tuple[KVCacheManager, Feed]:
    manager = KVCacheManager(plan)
    return manager, Feed(build_layers(manager, load_backend(backend), draw_compressors(plan)))


def partial(backend: str = "cpu", state: StateFormat = "ring") -> tuple[KVCacheManager, Feed]:
    drafts = DRAFTS if state == "ring" else 0
    return build(small_plan(layers=PARTIAL, state=state, draft_tokens=drafts), backend)


def handles(
    tokens: tuple[int, ...] = (8, 8),
) -> tuple[KVCacheManager, dict[int, LayerCacheHandle]]:
    """A step of prompts, one per request, in every layer of the partial model."""
    manager, feed = partial()
    slots = admit(manager, len(tokens))
    prepare_forward(manager, slots, [0] * len(tokens), tokens)
    batch = StepBatch(manager, slots, [0] * len(tokens), tokens)
    return manager, {index: LayerCacheHandle(layer, batch) for index, layer in feed.layers.items()}


def serve(manager: KVCacheManager, feed: Feed, *, drafts: int) -> StepBatch:
    """Chunked prompts, decode steps, rejected drafts and a slot's second owner."""
    slots = admit(manager, 3)
    feed.request_of = {slot: slot for slot in slots}
    for slot, chunks in ((0, (100, 131)), (1, (5,)), (2, (126,))):
        for end in chunks:
            feed.step(manager, {slot: end})
    for _ in range(3):
        feed.step(manager, {slot: int(manager.tokens[slot]) + 1 for slot in slots})
    if drafts:
        kept = {slot: int(manager.tokens[slot]) + 1 for slot in slots}
        ends = {slot: end + drafts for slot, end in kept.items()}
        feed.step(manager, ends, drafts)
        prepare_forward(manager, slots, list(ends.values()), list(kept.values()))
    manager.release_request(1, manager.generation(1))
    feed.request_of[manager.admit_request()] = 3
    feed.step(manager, {1: 3})  # a short prompt: what the first owner left must not show
    for _ in range(7):
        batch = feed.step(manager, {slot: int(manager.tokens[slot]) + 1 for slot in (2, 0, 1)})
    return batch


def close(found: Tensor, expected: Tensor, step: float) -> bool:
    """Within one step of the format everywhere, and nearly always equal."""
    a, b = found.double(), expected.double()
    size = torch.maximum(a.abs(), b.abs())
    near = (a - b).abs() <= step * size.clamp(min=float(size.max()) / 256)
    return bool(near.all()) and float((a - b).abs().mean()) <= 0.04 * step * float(b.abs().mean())


def check_compressed(feed: Feed, batch: StepBatch, index: int, *, exact: bool) -> None:
    """All entries that a layer's requests see are those of their tokens, zeros follow."""
    layer = feed.layers[index]
    handle = LayerCacheHandle(layer, batch)
    for indexer, part in parts_of(layer).items():
        longest = int(handle.lengths().max())
        out = torch.full((3, longest, part.dims), 9.0, dtype=torch.bfloat16)
        handle.gather_all_compressed_kv(out, indexer=indexer)
        step = 2.0**-1 if part.store.layout.format.value == "e2m1" else 2.0**-3
        for b, (slot, length) in enumerate(
            zip(batch.request_slots.tolist(), handle.lengths().tolist(), strict=True)
        ):
            for number in range(length):
                expected = feed.entry(index, slot, number, indexer=indexer)
                same = torch.equal(out[b, number], expected)
                assert same if exact else close(out[b, number], expected, step)
            assert not out[b, length:].any()


@pytest.mark.parametrize(
    ("backend", "state"), [("reference", "ring"), ("cpu", "ring"), ("cpu", "online")]
)
def test_what_is_read_is_what_the_tokens_of_the_request_become(
    backend: str, state: StateFormat
) -> None:
    manager, feed = partial(backend, state)
    batch = serve(manager, feed, drafts=DRAFTS if state == "ring" else 0)
    for index, layer in feed.layers.items():
        handle = LayerCacheHandle(layer, batch)
        out = torch.full((3, 128, 512), 9.0, dtype=torch.bfloat16)
        handle.gather_swa_kv(out)
        for b, slot in enumerate(batch.request_slots.tolist()):
            tokens = int(manager.tokens[slot])
            visible = min(tokens, 128)
            for i in range(0, visible, 5):
                expected = feed.window(index, slot, tokens - visible + i)
                assert torch.equal(out[b, i], expected)
            assert not out[b, visible:].any()
        check_compressed(feed, batch, index, exact=backend == "reference")


def test_a_choice_of_entries_gives_those_and_zeros_for_what_cannot_be_seen() -> None:
    manager, feed = partial()
    batch = serve(manager, feed, drafts=DRAFTS)
    handle = LayerCacheHandle(feed.layers[CSA], batch)
    every = torch.empty(3, int(handle.lengths().max()), 512, dtype=torch.bfloat16)
    handle.gather_all_compressed_kv(every)
    topk = torch.tensor([[0, 30, 7, -1, 32], [34, 1, -1, 35, 99], [1, 0, 2, 1, -1]]).int()
    out = torch.full((3, 5, 512), 9.0, dtype=torch.bfloat16)
    handle.gather_compressed_kv(topk, out)
    for b in range(3):
        for k, entry in enumerate(topk[b].tolist()):
            seen = 0 <= entry < int(handle.lengths()[b])
            expected = every[b, entry] if seen else torch.zeros(512).bfloat16()
            assert torch.equal(out[b, k], expected)


def test_layers_of_a_pipeline_stage_use_their_own_rows() -> None:
    plan = small_plan(layers=[22, 23, 24], stage=1, stages=2, sharing="layer")
    manager, feed = build(plan)
    states = manager.states[AttentionType.CSA]
    assert states.state is not None
    for row, index in enumerate((22, 24)):
        part = feed.layers[index].main
        assert part is not None
        assert part.pooling()[1].data_ptr() == states.state[row].data_ptr()
        assert part.store is manager.pools[index].main
        assert feed.layers[index].window is states.windows[row]
        assert feed.layers[index].lane == row
    batch = serve(manager, feed, drafts=0)
    for index in (22, 23, 24):
        check_compressed(feed, batch, index, exact=False)


def test_lengths_are_the_whole_entries_after_the_step() -> None:
    _, layer = handles((7, 130))
    assert layer[CSA].lengths().tolist() == [1, 32]
    assert layer[HCA].lengths().tolist() == [0, 1]


VALUES, TOPK = torch.zeros(16, 512).bfloat16(), torch.zeros(2, 1, dtype=torch.int32)
ROWS, OUT = torch.zeros(16, 1024), torch.zeros(2, 128, 512).bfloat16()
CALLS: dict[str, Call] = {
    "write_swa": lambda handle: handle.write_swa(VALUES),
    "append_state": lambda handle: handle.append_state(ROWS, ROWS),
    "flush": lambda handle: handle.flush(),
    "compress_chunk": lambda handle: handle.compress_chunk(ROWS, ROWS),
    "gather_compressed_kv": lambda handle: handle.gather_compressed_kv(TOPK, OUT),
    "gather_all_compressed_kv": lambda handle: handle.gather_all_compressed_kv(OUT),
    "gather_swa_kv": lambda handle: handle.gather_swa_kv(OUT),
}
OF_COMPRESSED = [name for name in CALLS if "swa" not in name]


@pytest.mark.parametrize("event", ["released", "reused", "rolled back"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_stale_handle_is_refused_and_touches_nothing(call: Call, event: str) -> None:
    manager, layer = handles()
    if event == "rolled back":
        prepare_forward(manager, [1], [8], [3])
    else:
        manager.release_request(1, manager.generation(1))
    if event == "reused":
        prepare_forward(manager, admit(manager, 1), [0], [8])
    pages = manager.pools[CSA].main.pages.clone()
    states = [state.clone() for state in manager.states[AttentionType.CSA].states()]
    with pytest.raises(NotOwner, match="make a new step"):
        call(layer[CSA])
    assert torch.equal(manager.pools[CSA].main.pages, pages)
    found = manager.states[AttentionType.CSA].states()
    assert all(torch.equal(a, b) for a, b in zip(found, states, strict=True))


@pytest.mark.parametrize("name", OF_COMPRESSED)
def test_a_window_layer_says_that_it_has_no_compressed_kv(name: str) -> None:
    _, layer = handles()
    with pytest.raises(ConfigError, match=r"layer 1 \(swa\) has no compressed KV"):
        CALLS[name](layer[SWA])
    with pytest.raises(ConfigError, match=r"layer 1 \(swa\) has no compressed KV"):
        layer[SWA].completed()


def test_an_hca_layer_says_that_it_has_no_indexer() -> None:
    _, layer = handles()
    calls: list[Callable[[], object]] = [
        lambda: layer[HCA].append_state(ROWS, ROWS, indexer=True),
        lambda: layer[HCA].flush(indexer=True),
        lambda: layer[HCA].gather_all_compressed_kv(OUT, indexer=True),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"layer 3 \(hca\) has no indexer"):
            call()


def test_a_chunk_of_two_requests_is_refused() -> None:
    _, layer = handles()
    with pytest.raises(ConfigError, match="a chunk belongs to one request, not to 2"):
        layer[CSA].compress_chunk(ROWS, ROWS)


@pytest.mark.parametrize(("state", "most"), [("ring", 1 + DRAFTS), ("online", 1)])
def test_more_tokens_than_a_state_can_hold_until_its_flush_are_refused(
    state: StateFormat, most: int
) -> None:
    """The newest would overwrite rows that the first flush still reads."""
    manager, feed = partial(state=state)
    slots = admit(manager, 2)
    prepare_forward(manager, slots, [0, 0], [1, most + 1])
    handle = LayerCacheHandle(feed.layers[HCA], StepBatch(manager, slots, [0, 0], [1, most + 1]))
    rows = torch.ones(most + 2, 512)
    before = manager.states[AttentionType.HCA].states()[0].clone()
    with pytest.raises(ConfigError, match=f"its compressor state takes {most}: raise draft_tok"):
        handle.append_state(rows, rows)
    assert torch.equal(manager.states[AttentionType.HCA].states()[0], before)
    prepare_forward(manager, slots, [1, most + 1], [1, most])
    handle = LayerCacheHandle(feed.layers[HCA], StepBatch(manager, slots, [0, 0], [1, most]))
    handle.append_state(rows[1:], rows[1:])


def test_a_flush_that_completes_nothing_changes_nothing() -> None:
    manager, layer = handles((3, 2))
    pages = manager.pools[CSA].main.pages.clone()
    layer[CSA].flush()
    layer[HCA].flush()
    assert torch.equal(manager.pools[CSA].main.pages, pages)


@pytest.mark.parametrize("model", ["v4-flash", "v3.2"])
def test_layers_without_data_are_refused(model: str) -> None:
    plan = small_plan(load_model(model), layers=[2])
    manager = KVCacheManager(plan, data=False)
    with pytest.raises(ConfigError, match=f"{model} has no data here"):
        build_layers(manager, load_backend("cpu"), {})


# ---- as those ask who know the original ------------------------------------------------------


def test_a_manager_hands_out_the_layers_it_was_bound_to_and_no_others() -> None:
    manager, made = handles()
    step = next(iter(made.values()))._step
    for index, handle in made.items():
        assert manager.acquire(index, step).layer is handle.layer
    with pytest.raises(ConfigError, match=r"layer 5 is not held here; held are 1, 3, 4, 6"):
        manager.acquire(5, step)
    with pytest.raises(ConfigError, match="call build_layers first"):
        KVCacheManager(small_plan()).acquire(1, step)


def read_entries(view: ReadView, b: int, entries: Tensor) -> Tensor:
    """Entries of a request, found in the pages as a kernel would: bf16[n, D]."""
    slot, size = int(view.slots[b]), view.store.layout.entries
    pages = torch.full_like(entries, slot)
    if view.blocks is not None:
        pages = view.blocks[slot].long()[entries // size]
    form, physical = view.store.layout.format, pages * size + entries % size
    data = view.store.data_rows()[view.store.data_index(physical)]
    scales = view.store.scale_rows()[view.store.scale_index(physical)]
    rows = zip(map(bytes, data.tolist()), map(bytes, scales.tolist()), strict=True)
    return torch.tensor([reference_codec.decode(form, *row) for row in rows]).bfloat16()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_is_read_in_place_through_a_view_is_what_a_gather_returns(backend: str) -> None:
    manager, feed = partial(backend)
    batch = serve(manager, feed, drafts=DRAFTS)
    for index in PARTIAL:
        handle = manager.acquire(index, batch)
        window = torch.empty(batch.num_requests, 128, 512, dtype=torch.bfloat16)
        handle.gather_swa_kv(window)
        check_view(handle.window_view(), window, 512, 64, shown=128)
        for indexer in parts_of(handle.layer):
            view = handle.indexer_view() if indexer else handle.compressed_view()
            sizes = (128, 64) if indexer else (512, 64)
            most = int(view.lengths.max())
            out = torch.empty(batch.num_requests, most, sizes[0], dtype=torch.bfloat16)
            handle.gather_all_compressed_kv(out, indexer=indexer)
            check_view(view, out, *sizes, shown=most)


def check_view(view: ReadView, out: Tensor, head_dim: int, heads: int, *, shown: int) -> None:
    assert (view.head_dim, view.num_query_heads) == (head_dim, heads)
    for b, length in enumerate(view.lengths.tolist()):
        entries = torch.arange(max(0, length - shown), length)
        if len(entries):
            assert torch.equal(read_entries(view, b, entries), out[b, : len(entries)])


def test_a_view_of_what_a_layer_does_not_have_is_refused() -> None:
    _, made = handles()
    for index, view in ((SWA, "compressed_view"), (SWA, "indexer_view"), (HCA, "indexer_view")):
        with pytest.raises(ConfigError, match=f"layer {index}"):
            getattr(made[index], view)()
