"""Published config.json files give the presets' layers; unusable ones give a sentence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import Candidates, build_schedule
from dsv4kv.model.plan import build_schema
from dsv4kv.model.presets import config_from_huggingface, load_model

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "hf_config"
TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention"} | {
    128: "heavily_compressed_attention"
}
RATES = {kind: ratio for ratio, kind in TYPES.items() if ratio}


def published(name: str) -> Path:
    path = PUBLISHED / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the published {name} config.json is not on this machine")
    return path


def document(**changes: Any) -> dict[str, Any]:
    """A small V4 config; a change to None drops the key."""
    base = {
        "num_hidden_layers": 3,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "index_topk": 512,
        "compress_ratios": [0, 4, 128, 0],
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def transformers_dialect(ratios: list[int], layers: int) -> dict[str, Any]:
    return document(
        num_hidden_layers=layers,
        compress_ratios=None,
        layer_types=[TYPES[ratio] for ratio in ratios[:layers]],
        compress_rates=RATES,
        num_nextn_predict_layers=len(ratios) - layers,
    )


def write(folder: Path, content: object) -> str:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("file", "preset"),
    [
        ("v4-flash", "v4-flash"),
        ("v4-pro", "v4-pro"),
        ("v4-flash-nvfp4", "v4-flash"),
        ("v3.2", "v3.2"),
        ("v4.1-flash", "v4.1-flash"),
    ],
)
def test_a_published_config_equals_the_preset(file: str, preset: str) -> None:
    found, expected = load_model(str(published(file))), load_model(preset)
    for drafts in (False, True):
        schedules = [build_schedule(config, draft_layers=drafts) for config in (found, expected)]
        assert schedules[0] == schedules[1]
    unnamed = {"name": "", "source": ""}
    assert found.model_copy(update=unnamed) == expected.model_copy(update=unnamed)


V41 = {
    "model_type": "deepseek_v41_text",
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
}
"""What V4.1's own keys look like, in a smaller model."""


def test_only_kv_sources_of_v41_hold_compressed_kv_and_only_index_sources_select() -> None:
    config = config_from_huggingface(document(**V41), "model")
    specs = build_schedule(config)
    assert [spec.layer_idx for spec in specs if spec.owns_kv] == [1, 3]
    assert [spec.kv_owner for spec in specs[1:]] == [1, 1, 3, 3, 3]
    assert [spec.layer_idx for spec in specs if spec.selects] == [1, 3, 5]
    assert config.candidates == Candidates(source=3, blocks=2048, block_entries=8)
    assert config.formats.main == "fp4"


UNKNOWN_KEYS = """
    kv_share_layer_ids compress_stride compressor_types index_kpool indexer_types window_size
    sliding_window_pattern kv_head_dim global_head_dim kv_cache_groups candidate_levels
    attention_layer_types
"""


@pytest.mark.parametrize("key", UNKNOWN_KEYS.split())
def test_an_unknown_key_that_looks_like_a_cache_is_an_error_that_names_it(
    key: str, tmp_path: Path
) -> None:
    path = write(tmp_path, document(**{key: 4}))
    with pytest.raises(ConfigError, match=f"{key}: not known here") as refusal:
        load_model(path)
    assert str(refusal.value).startswith(path)


FLAT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "model_type": "deepseek_v32"}


@pytest.mark.parametrize(
    ("keys", "selecting"),
    [
        ({}, range(9)),
        ({"use_index_cache": True}, range(9)),
        ({"index_topk_freq": 4}, (0, 1, 5)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, (0, 1, 2, 6)),
        ({"index_topk_pattern": "FSSFSSFSS"}, (0, 3, 6)),
        ({"index_topk_pattern": "FSS", "index_topk_freq": 4}, (0, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_index_cache_of_v32_leaves_keys_to_the_layers_that_select(
    keys: dict[str, Any], selecting: Sequence[int]
) -> None:
    config = config_from_huggingface(document(num_hidden_layers=9, **FLAT, **keys), "model")
    layers = build_schedule(config, draft_layers=True)
    schemas = [build_schema(config, layer) for layer in layers]
    indexed = [schema.layer.layer_idx for schema in schemas if schema.indexer]
    assert indexed == list(selecting)


@given(st.lists(st.sampled_from([0, 4, 128]), min_size=1, max_size=50), st.integers(0, 3))
def test_both_dialects_give_one_schedule(ratios: list[int], drafts: int) -> None:
    every = ratios + [0] * drafts
    own = document(num_hidden_layers=len(ratios), compress_ratios=every)
    configs = [
        config_from_huggingface(dialect, "model")
        for dialect in (own, transformers_dialect(every, len(ratios)))
    ]
    assert configs[0] == configs[1]
    assert configs[0].compress_ratios == tuple(every)


def test_46_entries_for_43_layers_are_three_draft_layers() -> None:
    ratios = [0, 0, *[4, 128] * 20, 4, 0, 0, 0]
    config = config_from_huggingface(
        document(num_hidden_layers=43, compress_ratios=ratios, num_hash_layers=3), "flash-0731"
    )
    assert config.num_draft_layers == 3
    assert build_schedule(config) == build_schedule(load_model("v4-flash"))
    assert sum(spec.is_draft for spec in build_schedule(config, draft_layers=True)) == 3


WRONG_VALUES: dict[str, tuple[object, ...]] = {
    "compress_ratios": (4, "4", [0, [4], 128], [0, 3, 128], [0, 4]),
    "num_hidden_layers": ("many", 2.5, -3, 1025),
    "num_nextn_predict_layers": (2**64, -1, [1]),
    "max_position_embeddings": (10**400,),
    "hidden_size": ([],),
    "index_topk": (0,),
    "sliding_window": ("wide",),
    "rope_scaling": ("yarn", {"factor": "x"}),
    "text_config": (3,),
    "layer_types": (5,),
    "compress_rates": ([4, 128],),
    "kv_source_layer_ids": (2, [0]),
    "index_source_layer_ids": ([99],),
    "candidate_source_layer_id": (1,),
    "index_topk_freq": (0,),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_a_value_of_the_wrong_type_is_a_sentence_with_the_file(
    key: str, value: object, tmp_path: Path
) -> None:
    path = write(tmp_path, document(**{key: value}))
    with pytest.raises(ConfigError) as refusal:
        load_model(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


REFUSED: dict[str, object] = {
    "neither compress_ratios nor layer_types with": document(compress_ratios=None),
    "layer_types has linear_attention without a rate": transformers_dialect([0, 4], 2)
    | {"layer_types": ["sliding_attention", "linear_attention"]},
    "kv_lora_rank or qk_rope_head_dim is missing": document(**FLAT | {"kv_lora_rank": None}),
    **{
        f"{key} is missing": document(**{key: None})
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "index_topk")
    },
    "is a JSON object": [1, 2],
    "not JSON": "{",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_file_that_describes_no_such_model_is_refused_with_its_path(
    reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path, REFUSED[reason])
    with pytest.raises(ConfigError, match=reason) as refusal:
        load_model(path)
    assert str(refusal.value).startswith(path)


@pytest.mark.parametrize("name", ["v5-flash", "nowhere/config.json"])
def test_an_unknown_model_is_refused_with_the_presets(name: str) -> None:
    with pytest.raises(ConfigError, match="give a preset") as refusal:
        load_model(name)
    assert "v4-flash" in str(refusal.value)
