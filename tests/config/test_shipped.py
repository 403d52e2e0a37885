import pytest

from dsv4kv.config.load import load_config, shipped_names
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, build_schedule


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_configuration_is_valid_and_carries_its_name(name: str) -> None:
    assert load_config(name).config.name == name


@pytest.mark.parametrize("name", ["default", "smoke"])
def test_the_partial_model_has_one_layer_of_each_attention(name: str) -> None:
    section = load_config(name).config.model
    schedule = build_schedule(load_model(section.preset))
    types = [schedule[layer].attn for layer in section.layers or ()]
    assert types == [AttentionType.SWA, AttentionType.CSA, AttentionType.HCA]
