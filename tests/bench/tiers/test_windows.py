"""Where windows are kept: the places of the report's strategies and of the engines."""

import pytest

from dsv4kv.bench.tiers.prefixes import Windows, parse_windows
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model


def windows(text: str, model: str = "v4-flash", block_tokens: int = 256) -> Windows:
    config = load_model(model)
    return parse_windows(text, block_tokens=block_tokens, window_tokens=config.window_tokens)


# Chunks that vLLM 0.33.0's reachable_block_mask keeps: one for every 256 tokens of the prompt, and
# 22 of windows and states for every place.
CHUNKS = {
    2_048: {"vllm:0": 30, "vllm:4096": 30, "vllm:32768": 30},
    8_192: {"vllm:0": 54, "vllm:4096": 98, "vllm:32768": 54},
    131_072: {"vllm:0": 534, "vllm:4096": 1_238, "vllm:32768": 622},
    1_048_576: {"vllm:0": 4_118, "vllm:4096": 9_750, "vllm:32768": 4_822},
}


@pytest.mark.parametrize("tokens", CHUNKS)
def test_as_many_chunks_are_kept_as_vllms_mask_keeps(tokens: int) -> None:
    for name, chunks in CHUNKS[tokens].items():
        assert tokens // 256 + 22 * len(windows(name).places(tokens)) == chunks, name
    assert len(windows("vllm:dense").places(tokens)) == tokens // 256


def test_a_model_without_windows_can_resume_after_every_block() -> None:
    assert parse_windows("ends", block_tokens=64, window_tokens=0) == Windows(64)


@pytest.mark.parametrize(
    "name", ["periodic", "periodic:0", "periodic:-1", "lmcache:0", "slru", "zero", ""]
)
def test_other_names_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"period|choose one of full, periodic:TOKENS"):
        windows(name)
