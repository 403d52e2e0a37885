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
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.ops import spec
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.work import CountedLayers, Pooling, StepWork, pooling_of
from dsv4kv.replay.clock.weights import WeightModel
from dsv4kv.replay.costs import StepTables
from dsv4kv.runs.quantities import kind_of
from tests.bench.serve.serving import make_config
from tests.examples import examples
from tests.ops.test_step_reads import schemas

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


@pytest.mark.parametrize("length", [1, 3, 4, 127, 128, 129, 2048, LONGEST])
def test_a_chunk_gathers_what_is_visible(length: int) -> None:
    layers, tables = held(HELD["v4-flash"])
    read = 0
    for schema in (layer.schema for layer in layers):
        for page in filter(None, (schema.main, schema.indexer)):
            entries = length // schema.layer.ratio
            pages = -(-entries // page.entries)
            read += spec.gather_all_bytes(page.format, entries, pages)
    assert tables.visible[length] == read


def poolings(config: DSV4Config) -> set[Pooling]:
    """The layers' compressors, main and indexer."""
    return {
        pooling
        for schema in schemas(config)
        for indexer in (False, True)
        if (pooling := pooling_of(schema, indexer=indexer))
    }


def test_the_states_of_v4_have_the_rows_that_the_report_says() -> None:
    rows = {
        (pool.ratio, pool.dim): (pool.rows, pool.channels, pool.state_rows)
        for pool in poolings(load_model("v4-flash"))
    }
    assert rows == {(4, 512): (8, 1024, 8), (4, 128): (8, 256, 8), (128, 512): (128, 512, 128)}


def test_a_group_of_v41_stands_alone() -> None:
    (pool,) = poolings(load_model("v4.1-flash"))
    assert (pool.ratio, pool.rows, pool.channels, pool.state_rows) == (2, 2, 512, 2)


@pytest.mark.parametrize("model", ["v4-pro", "v4.1-flash", "v3.2"])
def test_every_model_has_tables_that_grow_with_length(model: str) -> None:
    config = load_model(model)
    tables = StepTables(config, schemas(config), 1024)
    assert tables.reads["attention"][1024] > tables.reads["attention"][1] > 0
    assert tables.shared[1024] > tables.shared[4] > 0
    assert tables.updates[2::2].min() > 0
    assert tables.weighed(WEIGHTLESS).chunk_bytes(0, 1024) > 0


def test_keys_are_read_by_the_layers_that_select() -> None:
    """V4.1: eight, of which four own none; of these four, three score candidate blocks alone."""
    config = load_model("v4.1-flash")
    tables = StepTables(config, schemas(config), 1024)
    half, whole = 512 * 68 + 8 * 4, 1024 * 68 + 8 * 4  # a block holds 128 tokens
    assert tables.shared[1024] == 3 * half + whole


def test_layers_for_which_another_one_selects_read_no_keys() -> None:
    """IndexCache on V4: a flag of the schedule."""
    config = load_model("v4-flash")
    sharing = config.model_copy(update={"index_sources": (2, 10, 18, 26, 34, 42)})
    every, some = (StepTables(each, schemas(each), 1024) for each in (config, sharing))
    assert some.shared[1024] * 21 == every.shared[1024] * 6
    for kind in ("scores", "top-k"):
        assert some.reads[kind][1024] * 21 == every.reads[kind][1024] * 6
    assert (some.reads["attention"] == every.reads["attention"]).all()
    append = 2 * 2 * 256 * 4  # kv and score of a key's token, read and written
    assert every.updates[1023] - some.updates[1023] == 15 * append
    keys = 256 * (68 + 256) + 8 * 4
    assert every.visible[1024] - some.visible[1024] == 15 * keys


def test_layers_of_v32_for_which_another_one_selects_have_no_keys() -> None:
    config = load_model("v3.2")
    sharing = config.model_copy(update={"index_sources": tuple(range(0, 61, 4))})
    every, some = (StepTables(each, schemas(each), 1024) for each in (config, sharing))
    assert some.shared[1024] * 61 == every.shared[1024] * 16
    assert every.updates[1024] - some.updates[1024] == 45 * (256 + 8 + 132)
    assert (some.reads["attention"] == every.reads["attention"]).all()
