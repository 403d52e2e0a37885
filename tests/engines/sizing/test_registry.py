"""Engines by name."""

import pytest

from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("vllm", "vllm:0.33"),
        ("VLLM:v0.33.0", "vllm:0.33"),
        ("vllm:0.30.1", "vllm:0.33"),
        ("vllm:0.24", "vllm:0.25"),
        ("vllm:0.26.0", "vllm:0.26"),
        ("vllm:0.20.2", "vllm:0.22"),
        ("sglang", "sglang:0.5.23"),
        ("sglang:0.5.15.post1", "sglang:0.5.17"),
        ("sglang:0.5.21", "sglang:0.5.22"),
    ],
)
def test_a_version_takes_the_rules_that_cover_it(given: str, expected: str) -> None:
    assert find_engine(given).name == expected


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("vllm:0.34", "the nearest is vllm:0.33"),
        ("vllm:1", "the nearest is vllm:0.33"),
        ("vllm:0.19.1", "only from 0.20 on: the nearest is vllm:0.22"),
        ("sglang:0.5.11", "only from 0.5.12 on: the nearest is sglang:0.5.12"),
        ("vllm:new", "names no version: give one of vllm:0.22"),
        ("vlm", "no engine 'vlm' .did you mean vllm"),
        ("tgi", "give one of dsv4kv, vllm:0.22"),
    ],
)
def test_an_unknown_engine_or_version_names_the_nearest(given: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_engine(given)


@pytest.mark.parametrize(
    ("name", "layers", "stages", "expected"),
    [
        ("vllm:0.33", 43, 2, (22, 21)),
        ("vllm:0.33", 43, 4, (11, 11, 11, 10)),
        ("vllm:0.33", 61, 4, (15, 15, 16, 15)),
        ("sglang:0.5.23", 43, 2, (21, 22)),
        ("sglang:0.5.23", 43, 4, (10, 11, 11, 11)),
        ("sglang:0.5.15", 61, 4, (15, 15, 15, 16)),
        ("dsv4kv", 61, 4, (16, 15, 15, 15)),
    ],
)
def test_layers_are_spread_over_stages_as_the_engine_spreads_them(
    name: str, layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    """vLLM 0.33.0 and SGLang 0.5.15 to 0.5.23: ``get_pp_indices``, run."""
    assert find_engine(name).stage_layers(layers, stages) == expected
