"""A question is looked up: model, GPU, weights, formats; what is unknown gets a sentence."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.answer import answer
from dsv4kv.errors import ConfigError
from tests.budget.questions import GIB, ask, scenario
from tests.model.test_huggingface import document


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"model": "v4-flahs"},
         "no model 'v4-flahs' (did you mean v4-flash or v4.1-flash?): give"),
        ({"gpu": "a100"}, "'a100' is more than one GPU: give a100-40gb or a100-80gb"),
        ({"gpu": "h2000"}, "no GPU 'h2000' (did you mean h200 or gh200?): give one of a100-40gb"),
        ({"engine": "vlm:0.33"}, "no engine 'vlm:0.33' (did you mean vllm:0.33"),
        ({"gpu": "h200", "hbm": "80GiB"},
         "--gpu h200 and --hbm 80.0 GiB both give a GPU's memory: keep one."),
        ({"engine": "vllm-ascend"}, "vllm-ascend is a rule of hits, for dsv4kv replay --rule"),
        ({"engine": "vllm", "gpu": "ascend-910c"}, "vLLM on Ascend is vllm-ascend: no log shows"),
        ({"main_format": "fp7"}, "'fp7' is not a main format: choose fp8_ds_mla, bf16, fp8, fp4,"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_up_is_a_sentence(texts: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        answer(ask(**texts))
    assert str(refusal.value).startswith(sentence)


def test_a_config_without_the_sizes_of_its_matrices_needs_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document()), "utf-8")
    with pytest.raises(ConfigError, match=r"weights of .* is not known: give --weights"):
        scenario(model=str(path))
    assert scenario(model=str(path), weights="8GiB", gpus="8").weight_bytes == (GIB,)


@given(st.sampled_from(["v4-flash", "v4-pro"]), st.integers(1, 8), st.integers(0, 3))
def test_stages_hold_every_layer_once_and_the_last_one_the_drafts(
    model: str, stages: int, drafts: int
) -> None:
    found = scenario(model=model, tp="1", dp="1", pp=str(stages), draft_layers=str(drafts))
    held = [layer for stage in found.stages for layer in stage]
    assert held == list(range(found.config.num_layers))
    counts = [found.deployment(stage, 1000).draft_layers for stage in range(stages)]
    assert counts == [0] * (stages - 1) + [drafts]


def test_sglang_on_ascend_keeps_what_two_logs_kept_without_a_fraction() -> None:
    """GiB of weights and of what was left for the cache."""
    use = answer(ask(engine="sglang:0.5.19", gpu="ascend-910c", gpus="4", dp="4")).use
    for weights, cache in ((47.06, 6.16), (41.35, 11.89)):
        assert (use.budget - use.reserve) / GIB == pytest.approx(weights + cache, abs=0.05)
