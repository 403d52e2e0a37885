"""What ``budget`` answers by default is what the engine's planner makes of its own defaults."""

from typing import Any

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.engines.sglang.sizes import SglangEngine
from tests.budget.questions import ask
from tests.engines.oracles.planned import SGLANG, VLLM, read_settings

ROWS = [(VLLM, row) for row in read_settings("vllm defaults")]
ROWS += [(SGLANG, row) for row in read_settings("sglang defaults")]


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=lambda each: str(each["case"])
                         if isinstance(each, dict) else each)  # fmt: skip
def test_the_default_answer_is_the_planners_with_its_own_defaults(
    engine: str, row: dict[str, Any]
) -> None:
    """Blocks and printed tokens of vLLM 0.33.0; full tokens and window slots of SGLang 0.5.23."""
    model, gpu, (tp, dp) = row["case"]
    given = {"kv_memory": str(row["memory"])} if row["memory"] > 0 else {}
    found = answer(ask(engine=engine, model=model, gpu=gpu, tp=f"{tp}", dp=f"{dp}", **given))
    told, capacity, own = row["answer"], found.capacity, found.scenario.engine
    if not given:  # the weights of Pro on one H200
        assert capacity is None
        return
    assert capacity is not None
    if engine == VLLM:
        assert (capacity.units, int(capacity.units_per_request), int(capacity.unit_bytes)) == (
            told["blocks"],
            told["request_blocks"],
            told["block_bytes"],
        )
        assert int(float(capacity.concurrency) * found.context) == told["printed_tokens"]
        return
    assert isinstance(own, SglangEngine)
    pools = own.pools(found.scenario.deployment(0, found.context, found.concurrency))
    assert float(capacity.unit_bytes) == told["token_bytes"]
    if told["full"] is not None:
        assert capacity.units == told["full"]
        assert pools.fixed_window_tokens == told["window"]
