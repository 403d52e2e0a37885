"""Which layers there are, what they run, and who holds them (patterns: arXiv:2606.19348)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, build_schedule
from dsv4kv.model.presets import load_model, preset_of

MODELS = st.sampled_from(["v4-flash", "v4-pro", "v4.1-flash", "v3.2"])
SWA = AttentionType.SWA


@pytest.mark.parametrize(("model", "hashed"), [("v4-flash", 3), ("v4-pro", 3), ("v3.2", 0)])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_first_layers_of_the_model_route_by_token_ids_on_whatever_stage(
    model: str, hashed: int, stages: int
) -> None:
    config = load_model(model)
    every = [s for i in range(stages) for s in build_schedule(config, stage=i, stages=stages)]
    assert [spec.routes_by_id for spec in every] == [n < hashed for n in range(len(every))]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("v4-flash", [0, 0, *[4, 128] * 20, 4]),
        ("v4-pro", [128, 128, *[4, 128] * 29, 4]),
        ("v4.1-flash", [0, 0, *[2] * 18, *[1] * 20]),
    ],
)
def test_a_model_has_its_published_ratio_in_every_layer(model: str, expected: list[int]) -> None:
    assert [spec.ratio for spec in build_schedule(load_model(model))] == expected


@given(MODELS, st.integers(1, 40), st.booleans())
def test_pipeline_stages_split_the_layers_without_gap_or_overlap(
    model: str, stages: int, drafts: bool
) -> None:
    config = load_model(model)
    parts = [
        build_schedule(config, stage=stage, stages=stages, draft_layers=drafts)
        for stage in range(stages)
    ]
    held = [spec.layer_idx for part in parts for spec in part]
    layers = len(config.compress_ratios) if drafts else config.num_layers
    assert held == list(range(layers))
    sizes = [sum(not spec.is_draft for spec in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_layer_beyond_the_model_is_refused_with_the_range() -> None:
    with pytest.raises(ConfigError, match=r"layers \[43, 99\] are not among 0..42 of v4-flash"):
        build_schedule(load_model("v4-flash"), layers=[3, 43, 99])


def test_without_the_owner_the_first_reader_held_keeps_the_copy() -> None:
    specs = build_schedule(load_model("v4.1-flash"), layers=[5, 6, 9, 30])
    assert [spec.kv_owner for spec in specs] == [5, 5, 9, 30]
    assert [spec.owns_kv for spec in specs] == [True, False, True, True]


@given(st.sets(st.integers(0, 39), min_size=1))
def test_every_owner_in_a_subset_is_held_and_owns(layers: set[int]) -> None:
    specs = {
        spec.layer_idx: spec for spec in build_schedule(load_model("v4.1-flash"), layers=layers)
    }
    for spec in specs.values():
        owner = specs[spec.kv_owner]
        assert owner.kv_owner == owner.layer_idx <= spec.layer_idx
        assert owner.ratio == spec.ratio


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("deepseek-ai/DeepSeek-V4-Pro", "v4-pro"),
        ("deepseek-v4-flash", "v4-flash"),
        ("RedHatAI/DeepSeek-V4-Flash-NVFP4", "v4-flash"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "v3.2"),
        ("v4-pro", "v4-pro"),
        ("deepseek-ai/DeepSeek-V5", "deepseek-ai/DeepSeek-V5"),
        ("a/b/deepseek-v4-pro", "a/b/deepseek-v4-pro"),
        ("deepseek-v4-pro.json", "deepseek-v4-pro.json"),
        ("v4-prou", "v4-prou"),
        ("", ""),
    ],
)
def test_a_checkpoint_is_known_by_its_name(name: str, preset: str) -> None:
    assert preset_of(name) == preset
