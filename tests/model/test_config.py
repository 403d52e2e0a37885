"""Models by name, with their published dimensions; one that contradicts itself is refused."""

import pytest

from dsv4kv.model.presets import preset_of


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
