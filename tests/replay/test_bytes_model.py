"""The tables of the byte model against what ``bench`` counts, operation by operation."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.build import _draw_compressors, plan_from
from dsv4kv.bench.serve.operations import chunk_writes, decode_operations
from dsv4kv.cache.layers import LayerCache, build_layers
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.core.clock import Rates, VirtualClock, Work
from dsv4kv.model.presets import load_model
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.work import CountedLayers, StepWork
from dsv4kv.replay.clock.steps import WeightModel
from dsv4kv.replay.costs import StepTables
from dsv4kv.runs.quantities import kind_of
from tests.bench.serve.serving import make_config
from tests.examples import examples

LONGEST = 3000
WEIGHTLESS = WeightModel(0, 0, 0, 1, 1, 0, "none")
HELD = {
    "v4-flash": ("model.layers=[0, 2, 3, 4]",),
    "v4-pro, fp8 keys, online": (
        "model.preset=v4-pro",
        "model.layers=[0, 2]",
        "model.formats.indexer=fp8",
        "cache.state=online",
    ),
    "v4.1-flash": ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24]"),
    "v3.2": ("model.preset=v3.2", "model.layers=[0, 1]"),
}


@cache
def held(settings: tuple[str, ...]) -> tuple[list[LayerCache], StepTables]:
    """The layers that ``bench`` would hold, and the tables of a replay of these."""
    manager = KVCacheManager(plan_from(make_config(*settings)))
    compressors = _draw_compressors(manager.plan, seed=0)
    layers = list(build_layers(manager, load_backend("cpu"), compressors).values())
    owned = [layer.schema for layer in layers]
    return layers, StepTables(layers[0].model, owned, LONGEST)


def bench_counts(layers: Sequence[LayerCache], before: int, taken: int) -> Counter[str]:
    """Bytes by kind, and operations, of a decode step of one request."""
    counted = CountedLayers.of(layers[0].model, [layer.schema for layer in layers])
    positions = np.arange(before, before + taken)
    work = StepWork(counted, np.array([before + taken]), positions)
    found: Counter[str] = Counter()
    for layer in layers:
        for name, indexer in decode_operations(layer, fused=True, engine=True):
            _, moved, flops = work.of(name, layer.schema, indexer=indexer)
            found[kind_of(name)] += moved
            found["operations"] += flops
    return found


def decode(tables: StepTables, before: int, taken: int) -> Work:
    """A decode step of one request."""
    clock = VirtualClock(tables.weighed(WEIGHTLESS), Rates(1, 1, 0, ""), None)
    clock.verify([before], [taken])
    clock.step(1, taken, (before + taken) * taken, ())
    return clock.done


@pytest.mark.parametrize("model", HELD)
@examples(100)
@given(before=st.integers(0, LONGEST - 4), taken=st.integers(1, 4))
def test_a_decode_step_moves_and_computes_what_bench_counts(
    model: str, before: int, taken: int
) -> None:
    """With drafts or without: the same kinds, the same terms."""
    layers, tables = held(HELD[model])
    work = decode(tables, before, taken)
    counted = bench_counts(layers, before, taken)
    assert {
        "write": work.update_bytes,
        "scores": work.score_bytes,
        "top-k": work.select_bytes,
        "attention": work.attend_bytes,
        "operations": work.operations,
    } == {kind: counted[kind] for kind in ("write", "scores", "top-k", "attention", "operations")}
    assert work.gather_bytes == 0


def test_a_step_of_v4_whose_layers_share_a_selection_is_what_bench_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_model("v4-flash").model_copy(update={"index_sources": (2,)})
    monkeypatch.setattr("dsv4kv.bench.build.load_model", lambda _name: config)
    layers, tables = held.__wrapped__(("model.layers=[2, 3, 4]",))
    for before in (1022, 1023):
        assert decode(tables, before, 1).cache_bytes == sum(
            size for kind, size in bench_counts(layers, before, 1).items() if kind != "operations"
        )


@pytest.mark.parametrize("model", HELD)
@examples(75)
@given(before=st.integers(0, LONGEST - 1), tokens=st.integers(1, LONGEST))
def test_a_chunk_writes_what_bench_counts(model: str, before: int, tokens: int) -> None:
    layers, tables = held(HELD[model])
    after = min(before + tokens, LONGEST)
    counted = CountedLayers.of(layers[0].model, [layer.schema for layer in layers])
    work = StepWork(counted, np.array([after]), np.arange(before, after))
    written = sum(
        work.of(name, layer.schema, indexer=indexer)[1]
        for layer in layers
        for name, indexer in chunk_writes(layer)
    )
    assert tables.weighed(WEIGHTLESS).chunk_bytes(before, after) == written
