"""Types of matrices by quantization_config and by name, in bytes that published files have."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.quantised import experts_of_name, read_storage, storage_of_name
from dsv4kv.budget.weights import derive_weights
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from tests.budget.test_weights import facts_of

GROUPED = {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": True}
BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block"}
MLX = {"bits": 2, "group_size": 64, "mode": "affine"}
CONFIGS: dict[str, tuple[dict[str, Any], str | None, tuple[str, float, str, float]]] = {
    "DeepSeek's": ({"quant_method": "fp8"}, "fp4", ("fp4", 4.25, "fp8", 8)),
    "Base": ({"quant_method": "fp8"}, None, ("fp8", 8, "fp8", 8)),
    "NVIDIA's": (
        {"quant_method": "fp8", "moe_quant_algo": "NVFP4"},
        "fp4",
        ("nvfp4", 4.5, "fp8", 8),
    ),
    "AWQ": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        None,
        ("int4", 4 + 20 / 128, "bf16", 16),
    ),
    "GPTQ of all": (
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "modules_to_not_convert": ["gate"]},
        None,
        ("int8", 8 + 24 / 32, "int8", 8 + 24 / 32),
    ),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["re:.*experts.*"], "weights": GROUPED},
                "b": {"targets": ["re:.*attn.*"], "weights": BLOCKS},
            },
        },
        "fp4",
        ("int4", 4 + 16 / 128, "fp8", 8),
    ),
    "Quark": (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
            "exclude": ["*attn*"],
        },
        None,
        ("fp4", 4.25, "bf16", 16),
    ),
    "MLX": (
        MLX | {"model.layers.0.self_attn.wq_a": {"bits": 4, "group_size": 64}},
        None,
        ("2.5-bit", 2.5, "2.9-bit", 2.9),
    ),
    "plain": ({}, None, ("bf16", 16, "bf16", 16)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_bits_are_read_from_the_file(name: str) -> None:
    config, dtype, told = CONFIGS[name]
    found = read_storage(config, dtype, name)
    bits = [float(each.each * 8) for each in (found.experts, found.dense)]
    assert (found.experts.name, bits[0], found.dense.name, bits[1]) == told


@pytest.mark.parametrize(
    ("entries", "spared"),
    [
        (["mlp.experts", "lm_head"], None),
        (["re:.*experts.*"], None),
        (["mlp.shared_experts", "attn"], {}),
        (["model.layers.3.mlp.experts.0.up_proj"], {3: False}),
        (["model.layers.0.", "layers.1", "model.layers.12.*"], {0: True, 1: True, 12: True}),
        (["re:model\\.layers\\.[0-2]\\.mlp\\.experts.*"], {0: False, 1: False, 2: False}),
        (["re:^model\\.layers\\.(0|41)\\..*$"], {0: True, 41: True}),
    ],
)
@pytest.mark.parametrize("method", ["awq", "compressed-tensors", "modelopt"])
def test_experts_that_the_file_spares_are_in_bf16(
    entries: list[str], spared: dict[int, bool] | None, method: str
) -> None:
    """As a substring, a glob or a regular expression; shared experts are not."""
    groups = {"a": {"targets": ["Linear"], "weights": GROUPED}}
    key = "modules_to_not_convert" if method == "awq" else "ignore"
    config = {"quant_method": method, "config_groups": groups, "quant_algo": "nvfp4", key: entries}
    found = read_storage(config, None, "config.json")
    assert (found.experts.name == "bf16") == (spared is None)
    assert found.spared == (spared or {})


def test_a_spared_layer_weighs_as_in_bf16() -> None:
    config, facts = load_model("v4-flash"), facts_of("v4-flash")
    awq = {"quant_method": "awq", "modules_to_not_convert": ["attn", "layers.1.", "lm_head"]}
    plain, spared = (
        derive_weights(
            config,
            facts.model_copy(update={"expert_dtype": None, "quantization_config": each}),
        )
        for each in ({}, awq)
    )
    assert spared.layers[1] == plain.layers[1]
    assert spared.layers[0].expert_bytes < plain.layers[0].expert_bytes / 3


@pytest.mark.parametrize("method", ["exl3", "aqlm", "fp2"])
def test_an_unknown_method_is_said_to_be_unknown(method: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"quant_method '{method}'.*not known: give the .* to replay with"
    ):
        read_storage({"quant_method": method}, None, "config.json")


KEYS = (
    *("bits", "group_size", "config_groups", "quant_algo", "quantized_layers"),
    *("global_quant_config", "dynamic"),
)
VALUES = st.none() | st.text(max_size=3) | st.integers(-2, 4) | st.just([1])
METHODS = ("awq", "gptq", "compressed-tensors", "quark", "modelopt", "mlx", "ascend")


@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.sampled_from(METHODS))
def test_odd_values_are_a_sentence(config: dict[str, Any], method: str) -> None:
    try:
        found = read_storage(config | {"quant_method": method}, None, "config.json")
    except ConfigError:
        return
    assert found.experts.each > Fraction(0)


@pytest.mark.parametrize(
    ("name", "experts", "dense"),
    [
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4", "fp8"),
        ("deepseek-ai/DeepSeek-V4-Flash-Base", "fp8", "fp8"),
        ("canada-quant/DeepSeek-V4-Flash-W4A16-FP8-MTP", "int4", "fp8"),
        ("vllm-ascend/DeepSeek-V4-Flash-w8a8-mtp", "int8", "bf16"),
    ],
)
def test_a_name_says_how_a_checkpoint_is_stored(name: str, experts: str, dense: str) -> None:
    found = storage_of_name(name)
    assert found is not None
    assert (found.experts.name, found.dense.name) == (experts, dense)


def test_names_of_unknown_bits_ask_for_the_size() -> None:
    assert storage_of_name("deepseek-ai/DeepSeek-V4-Flash-0731") is None
    for name in ("unsloth/DeepSeek-V4-Flash-GGUF", "mlx-community/DeepSeek-V4-Flash-2bit-DQ"):
        with pytest.raises(
            ConfigError, match=r"to budget with --weights, to replay with --set cost\.weight_bytes"
        ):
            storage_of_name(name)


@pytest.mark.parametrize(
    ("name", "left"),
    [("DeepSeek-V4-Flash-180B", 160), ("V4-Flash-REAP-K132", 132), ("DeepSeek-V4-Flash-0731", 256),
     ("DeepSeek-V4-Flash-284B", 256)],
)  # fmt: skip
def test_experts_that_are_left_are_read_from_a_name(name: str, left: int) -> None:
    assert experts_of_name(name, 256, lambda n: 7_300_000_000 + n * 1_082_000_000) == left
    with pytest.raises(ConfigError, match="pruned"):
        experts_of_name("DeepSeek-V4-Flash-REAP", 256, lambda n: n)
