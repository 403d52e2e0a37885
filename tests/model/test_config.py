"""Models by name, with their published dimensions; one that contradicts itself is refused."""

import pytest
from pydantic import ValidationError

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model, preset_names, preset_of

FLASH = load_model("v4-flash")


def changed(**fields: object) -> DSV4Config:
    return DSV4Config(**(FLASH.model_dump() | fields))


def test_the_shipped_presets_are_known_by_name() -> None:
    assert preset_names() == ["v3.2", "v4-flash", "v4-pro", "v4.1-flash"]


@pytest.mark.parametrize(
    ("name", "hidden", "heads", "topk"),
    [("v4-flash", 4096, 64, 512), ("v4-pro", 7168, 128, 1024), ("v3.2", 7168, 128, 2048)],
)
def test_a_preset_has_the_published_dimensions(
    name: str, hidden: int, heads: int, topk: int
) -> None:
    config = load_model(name)
    assert (config.hidden_size, config.num_heads, config.index_topk) == (hidden, heads, topk)


def test_fewer_ratios_than_layers_are_refused() -> None:
    with pytest.raises(ValidationError, match="compress_ratios has 3 entries for 43 layers"):
        changed(compress_ratios=(0, 4, 128))


@pytest.mark.parametrize("owner", [0, 43, -1])
def test_an_owner_without_compressed_kv_is_refused(owner: int) -> None:
    with pytest.raises(ValidationError, match=f"kv_owners names layer {owner}, which has no"):
        changed(kv_owners=(owner,))


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
