"""The tables of the byte model against its terms, added up operation by operation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, build_schedule
from dsv4kv.model.schema import LayerCacheSchema, build_schema
from dsv4kv.ops import traffic
from dsv4kv.replay.costs import Pooling, StepBytes, _pooling

LONGEST = 3000
FLASH = load_model("v4-flash")
SCHEMAS = [build_schema(FLASH, spec) for spec in build_schedule(FLASH)]
TABLES = StepBytes(FLASH, SCHEMAS, LONGEST)


def poolings(schema: LayerCacheSchema) -> list[Pooling]:
    """The layer's compressors, main and indexer."""
    made = []
    if schema.main and schema.state_shape:
        made.append(_pooling(schema, schema.main, schema.state_shape, FLASH.head_dim))
    if schema.indexer and schema.indexer_state_shape:
        made.append(_pooling(schema, schema.indexer, schema.indexer_state_shape, FLASH.index_dim))
    return made


def decode_bytes(length: int) -> tuple[int, int]:
    """Bytes of the token that makes a request so long: what it writes, what it reads."""
    written = read = 0
    for schema in SCHEMAS:
        assert schema.window
        window = schema.window.format
        written += traffic.insert_bytes(window, 1)
        read += traffic.gather_window_bytes(window, min(length, 128), 1)
        for pool in poolings(schema):
            written += traffic.state_append_bytes(pool.compressor, 1, online=False)
            flushed = int(length % schema.layer.ratio == 0)
            written += traffic.flush_bytes(pool.compressor, pool.entry, flushed, online=False)
        entries = length // schema.layer.ratio if schema.main else 0
        if schema.indexer:
            pages = -(-entries // schema.indexer.entries)
            read += traffic.gather_all_bytes(schema.indexer.format, entries, pages)
        if schema.main and schema.layer.attn is AttentionType.HCA:
            pages = -(-entries // schema.main.entries)
            read += traffic.gather_all_bytes(schema.main.format, entries, pages)
        elif schema.main:
            found = min(entries, FLASH.index_topk)
            read += traffic.gather_topk_bytes(schema.main.format, found, FLASH.index_topk)
    return written, read


@pytest.mark.parametrize("length", [1, 3, 4, 127, 128, 129, 2047, 2048, 2052, LONGEST])
def test_a_decode_token_moves_what_its_operations_move(length: int) -> None:
    assert (TABLES.updates[length], TABLES.gathers[length]) == decode_bytes(length)


@settings(max_examples=30)
@given(st.integers(0, LONGEST - 1), st.integers(1, LONGEST))
def test_a_chunk_moves_what_its_operations_move(before: int, tokens: int) -> None:
    after = min(before + tokens, LONGEST)
    tokens = after - before
    written = read = 0
    for schema in SCHEMAS:
        assert schema.window
        written += traffic.insert_bytes(schema.window.format, min(tokens, 128))
        for pool in poolings(schema):
            entries = after // pool.ratio - before // pool.ratio
            written += traffic.compress_chunk_bytes(
                pool.compressor, pool.entry, tokens, entries, pool.state_rows
            )
        for page in (schema.main, schema.indexer):
            if page:
                entries = after // schema.layer.ratio
                pages = -(-entries // page.entries)
                read += traffic.gather_all_bytes(page.format, entries, pages)
    assert (TABLES.chunks(before, after), TABLES.visible[after]) == (written, read)


def test_the_states_of_v4_have_the_rows_that_the_report_says() -> None:
    rows = {
        (pool.ratio, pool.dim): (pool.rows, pool.channels, pool.state_rows)
        for schema in SCHEMAS
        for pool in poolings(schema)
    }
    assert rows == {(4, 512): (8, 1024, 8), (4, 128): (8, 256, 8), (128, 512): (128, 512, 128)}


@pytest.mark.parametrize("model", ["v4-pro", "v4.1-flash", "v3.2"])
def test_every_model_has_tables_that_grow_with_length(model: str) -> None:
    config = load_model(model)
    schemas = [build_schema(config, spec) for spec in build_schedule(config)]
    tables = StepBytes(config, schemas, 1024)
    assert tables.gathers[1024] > tables.gathers[1] > 0
    assert tables.updates[1:].min() > 0
    assert tables.chunks(0, 1024) > 0


def test_keys_are_read_by_the_layers_that_select() -> None:
    """V4.1: eight, of which four own none."""
    config = load_model("v4.1-flash")
    schemas = [build_schema(config, spec) for spec in build_schedule(config)]
    alone = [replace(each, layer=replace(each.layer, selects=False)) for each in schemas]
    every, none = (StepBytes(config, each, 1024).gathers[1024] for each in (schemas, alone))
    keys = {1: 1024 * (68 + 256) + 8 * 4, 2: 512 * (68 + 256) + 8 * 4}  # a block of 128 tokens
    assert every - none == 3 * keys[2] + 5 * keys[1]
