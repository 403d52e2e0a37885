"""From a GPU's memory to its KV: every line has a source, and nothing is lost between them."""

import pytest

from dsv4kv.sizing.answer import Peak, answer, peak_of
from dsv4kv.sizing.fit import available_bytes
from tests.sizing.questions import GIB, ask


def peak(**texts: str) -> Peak:
    return peak_of(answer(ask(gpus="8", **texts)))


@pytest.mark.parametrize("engine", ["dsv4kv", "vllm:0.26", "vllm:0.33", "sglang:0.5.23", "trtllm"])
@pytest.mark.parametrize("model", ["v4-flash", "v4-pro"])
def test_what_is_taken_and_what_is_left_are_the_whole(engine: str, model: str) -> None:
    found = answer(ask(gpus="8", engine=engine, model=model))
    lines = peak_of(found).lines
    sums = {kind: sum(line.size_bytes for line in lines if line.kind == kind)
            for kind in ("whole", "taken", "left")}  # fmt: skip
    assert sums["taken"] + sums["left"] == sums["whole"] == found.scenario.gpu.memory_bytes
    assert sums["left"] == available_bytes(found.scenario, found.use.stage, found.context)
    assert all(line.source for line in lines if line.kind != "left")


def test_what_vllm_says_of_itself_stands_in_lines_of_its_own() -> None:
    sizes = {line.what: line.size_bytes for line in peak(engine="vllm:0.33").lines}
    assert sizes["workspace of prompts"] == 1_128_824_832
    assert sizes["indices of HCA entries"] == 536_903_680
    assert sizes["indexer logits"] == 2**29
    assert "the rest of the reserve" in sizes
    older = {line.what for line in peak(engine="vllm:0.26").lines}
    assert "reserve" in older
    assert "workspace of prompts" not in older


def test_no_less_is_kept_than_is_known_to_be_held() -> None:
    """V4.1 gathers four prompts of 1M tokens in bf16: more than the 4 GiB that are guessed."""
    found = answer(ask(gpus="8", engine="vllm:0.33", model="v4.1-flash"))
    assert found.use.reserve > 4 * GIB
    given = answer(ask(gpus="8", engine="vllm:0.33", model="v4.1-flash", reserve="1GiB"))
    assert given.use.reserve == GIB


def test_sglangs_own_estimate_is_in_what_its_share_leaves() -> None:
    lines = peak(engine="sglang:0.5.23", gpu="b200").lines
    parts = {line.what: line.size_bytes for line in lines if line.kind == "part"}
    assert parts["activations of a chunk"] == 16_384 * 1.5 * 2**20
    assert parts["CUDA graphs"] == 512 * 2 * 2**20
    assert parts["buffers between ranks"] == GIB


def test_what_nothing_says_the_size_of_is_named() -> None:
    assert "CUDA graphs" in peak(engine="vllm").not_counted
    assert "buffers of DeepEP" in peak(engine="sglang").not_counted


def test_flashinfer_has_a_workspace_of_its_own() -> None:
    found = peak(engine="vllm:0.33", gpu="b200", attention_backend="FLASHINFER_MLA_SPARSE_DSV4")
    sizes = {line.what: line.size_bytes for line in found.lines}
    assert sizes["workspace of FlashInfer"] == 2**27
    assert "workspace of prompts" not in sizes
