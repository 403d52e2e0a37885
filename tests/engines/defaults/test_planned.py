"""What ``budget`` answers by default is what the engine's planner makes of its own defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.engines.sglang.sizes import SglangEngine
from tests.engines.defaults.planned import FILE, default_answer, main
from tests.engines.oracles.asking import needs_engines

ROWS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]


def name_of(row: dict[str, Any]) -> str:
    model, gpu, (tp, dp) = row["case"]
    return f"{row['engine']}-{model}-{gpu}-tp{tp}dp{dp}"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_default_answer_is_the_planners_with_its_own_defaults(row: dict[str, Any]) -> None:
    """Blocks and printed tokens of vLLM 0.33.0; full tokens and window slots of SGLang 0.5.23."""
    model, gpu, layout = row["case"]
    if row["memory"] <= 0:  # the weights of Pro on one H200
        assert default_answer(row["engine"], model, gpu, tuple(layout)).capacity is None
        return
    found = default_answer(row["engine"], model, gpu, tuple(layout), row["memory"])
    told, capacity, engine = row["answer"], found.capacity, found.scenario.engine
    assert capacity is not None
    if row["engine"] == "vllm":
        assert (capacity.units, int(capacity.units_per_request), int(capacity.unit_bytes)) == (
            told["blocks"],
            told["request_blocks"],
            told["block_bytes"],
        )
        assert int(float(capacity.concurrency) * found.context) == told["printed_tokens"]
        return
    assert isinstance(engine, SglangEngine)
    pools = engine.pools(found.scenario.deployment(0, found.context, found.concurrency))
    assert float(capacity.unit_bytes) == told["token_bytes"]
    if told["full"] is not None:
        assert capacity.units == told["full"]
        assert pools.fixed_window_tokens == told["window"]


@needs_engines
def test_the_planners_answer_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engines.defaults.planned.FILE", tmp_path / "again.jsonl")
    main()
    assert (tmp_path / "again.jsonl").read_bytes() == FILE.read_bytes()
