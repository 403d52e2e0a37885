"""Steps that were measured: looked up, and refused where there are none."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.layout import Layout
from dsv4kv.errors import ConfigError
from dsv4kv.replay.clock import tables
from dsv4kv.replay.clock.steps import decode_s, prompt_s
from tests.replay.clock.test_steps import DP4, HELD_OUT, PLAIN, TABLE, deploy


def times(
    factors: tables.Factors = PLAIN, table: tables.StepTable = TABLE, drafts: int = 0
) -> tables.TableTimes:
    return tables.TableTimes(deploy(DP4, drafts), table, factors, "made up")


@pytest.mark.parametrize("context", [1024, 4096, 65_536])
@pytest.mark.parametrize(("place", "batch"), [(0, 1), (1, 8), (2, 64)])
def test_a_decode_step_at_a_node_is_the_table_s(context: int, place: int, batch: int) -> None:
    found_ms = decode_s(times(), 4 * batch, context) * 1e3  # four replicas
    assert found_ms == pytest.approx(TABLE.decode_ms[context][place], abs=1e-9)


@pytest.mark.parametrize("prefix", [0, 16_384])
@pytest.mark.parametrize(("place", "tokens"), [(0, 256), (1, 1024), (2, 4096)])
def test_a_chunk_at_a_node_is_the_table_s(prefix: int, place: int, tokens: int) -> None:
    found_ms = prompt_s(times(), tokens, prefix) * 1e3
    assert found_ms == pytest.approx(TABLE.prefill_ms_by_prefix[prefix][place], abs=1e-9)


def test_beyond_its_nodes_a_table_goes_on_as_at_its_end_and_is_less_sure() -> None:
    known = times()
    decode_s(known, 64, 4096)
    assert known.held_out == HELD_OUT
    per_token_ms = (40 - 15) / (65_536 - 4096)
    expected_ms = 40 + per_token_ms * 65_536
    assert decode_s(known, 4 * 64, 131_072) * 1e3 == pytest.approx(expected_ms)
    assert known.held_out == HELD_OUT.widened(tables.BEYOND)
    assert known.extrapolated == ["131,072 tokens of context (it has 1,024 to 65,536)"]
    decode_s(known, 4 * 200, 4096)
    prompt_s(known, 9000, 20_000)
    assert known.extrapolated[1:] == [
        "200 requests of a rank (it has 1 to 64)",
        "9,000 prompt tokens of a rank (it has 256 to 4,096)",
        "20,000 tokens before a chunk (it has 0 to 16,384)",
    ]


def test_before_its_nodes_a_table_is_less_sure_where_its_first_stretch_goes_down() -> None:
    """At 2 rows a rank going on as from 32 to 64 would take 2 ms, not 20."""
    steep = TABLE.model_copy(
        update={"batch_per_rank": (32, 64), "decode_ms": {1024: (20, 40), 65_536: (24, 48)}}
    )
    known = times(table=steep)
    assert decode_s(known, 4 * 24, 1024) == pytest.approx(20e-3)
    assert decode_s(known, 4 * 32, 10) == pytest.approx(20e-3)  # context costs little here
    prompt_s(known, 100)
    assert known.held_out == HELD_OUT
    decode_s(known, 4 * 2, 1024)
    assert known.held_out == HELD_OUT.widened(tables.BEYOND)
    assert known.extrapolated == ["2 requests of a rank (it has 32 to 64)"]


@given(st.integers(1, 256), st.integers(1, 131_072), st.integers(1, 8192), st.integers(0, 65_536))
def test_a_shipped_table_is_as_sure_as_stated_within_its_last_nodes(
    rows: int, context: int, tokens: int, prefix: int
) -> None:
    for gpu in ("b200", "b300"):
        known = tables.open_shipped(deploy(DP4), "v4-flash", gpu)
        decode_s(known, rows, context)
        prompt_s(known, tokens, prefix)
        assert not known.extrapolated


def test_a_deployment_without_a_table_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"none of v4-flash b300 tp2 dp1.*v4-pro b200 tp8 dp8"):
        tables.open_shipped(deploy(Layout(tp=2)), "v4-flash", "b300")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_per_rank": [1, 8]}, "rows of"),
        ({"prefill_tokens": [256, 4096, 1024]}, "do not grow"),
        ({"decode_ms": {}}, "decode_ms"),
        ({"decode_ms": {1024: [5, 7, float("nan")]}}, r"decode_ms\.1024\.2: .* finite number"),
        ({"decode_ms": {1024: [5, 7, 1e308]}}, r"decode_ms\.1024\.2: .* less than or equal to"),
        ({"prefill_ms_by_prefix": {0: [0, 30, 80]}}, r"by_prefix\.0\.0: .* greater than 0"),
        ({"factors": {"client_ms": 0}}, "held_out: Field required"),
        ({"factors": {"client_ms": -1, "held_out": HELD_OUT.model_dump()}}, "client_ms: .*"),
        ({"factors": {"decode": 0, "client_ms": 0}}, "decode: .* greater than 0"),
        ({"factors": [1.5]}, "must be a mapping"),
        ({"prefill_tokens": [-1, 1024, 4096]}, r"prefill_tokens\.0: .*"),
    ],
)
def test_a_table_that_is_no_grid_is_a_sentence(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(TABLE.model_dump() | change))
    with pytest.raises(ConfigError, match=f"(?s)cost.table: .*{sentence}"):
        tables.open_own(deploy(DP4), path)
