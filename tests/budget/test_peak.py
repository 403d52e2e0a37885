"""From a GPU's memory to its KV: every line has a source, and nothing is lost between them."""

import pytest

from dsv4kv.budget.answer import answer, peak_lines
from dsv4kv.budget.fit import available_bytes
from tests.budget.questions import ask


def sizes_of(**texts: str) -> dict[str, int]:
    lines = peak_lines(answer(ask(gpus="8", **texts)))
    return {line.what: line.size_bytes for line in lines}


@pytest.mark.parametrize("engine", ["dsv4kv", "vllm:0.26", "vllm:0.33", "sglang:0.5.23", "trtllm"])
@pytest.mark.parametrize("model", ["v4-flash", "v4-pro"])
def test_what_is_taken_and_what_is_left_are_the_whole(engine: str, model: str) -> None:
    found = answer(ask(gpus="8", engine=engine, model=model))
    lines = list(peak_lines(found))
    sums = {kind: sum(line.size_bytes for line in lines if line.kind == kind)
            for kind in ("whole", "taken", "left")}  # fmt: skip
    assert sums["taken"] + sums["left"] == sums["whole"] == found.scenario.gpu.memory_bytes
    assert sums["left"] == available_bytes(found.scenario, found.use.stage, found.context)
    assert all(line.source for line in lines if line.kind != "left")


def test_what_vllm_says_of_itself_stands_in_lines_of_its_own() -> None:
    sizes = sizes_of(engine="vllm:0.33")
    assert sizes["workspace of prompts"] == 1_128_824_832
    assert sizes["indices of HCA entries"] == 536_903_680
    assert sizes["indexer logits"] == 2**29
    assert "the rest of the reserve" in sizes
    older = sizes_of(engine="vllm:0.26")
    assert "reserve" in older
    assert "workspace of prompts" not in older
