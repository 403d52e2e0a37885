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


def test_the_default_serves_the_shipped_chat_trace() -> None:
    config = load_config("default").config
    assert (config.workload.trace, config.workload.concurrency) == ("builtin:chat", 8)
    assert (config.workload.step_tokens, config.cache.max_context_tokens) == (2048, 8192)


def test_the_smoke_run_is_short_and_fits_its_cache() -> None:
    config = load_config("smoke").config
    synthetic = config.workload.synthetic
    assert config.workload.trace is None
    assert (synthetic.requests, config.workload.concurrency) == (6, 2)
    assert (config.measure.verify_every, config.measure.memcpy_bytes) == (5, 2**24)
    assert synthetic.input.high + synthetic.output.high <= config.cache.max_context_tokens


def test_bookkeeping_holds_all_61_layers_of_v4_pro_and_moves_no_data() -> None:
    config = load_config("bookkeeping").config
    assert (config.model.layers, load_model(config.model.preset).num_layers) == (None, 61)
    assert (config.workload.data, config.workload.concurrency) == ("none", 64)
    assert (config.workload.step_tokens, config.cache.max_context_tokens) == (8192, 131072)
