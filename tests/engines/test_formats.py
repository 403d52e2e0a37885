"""What engines store follows their version, the GPU, the backend and the layout.

Sources: vLLM 0.33.0, SGLang 0.5.23; bytes of a token as shared by users of V4.1-Flash.
"""

import pytest

from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import Place
from dsv4kv.model.presets import load_model

VLLM, SGLANG = "vllm:0.33", "sglang:0.5.23"
SPARSE = {"backend": "FLASHINFER_MLA_SPARSE_DSV4"}


def names(engine: str, model: str, arch: str | None, **where: object) -> tuple[str, ...]:
    site = Site(engine, load_model(model), arch, **where)  # type: ignore[arg-type]
    return tuple(name for name, _ in stored_formats(site, {}).values())


@pytest.mark.parametrize(
    ("engine", "model", "arch", "where", "expected"), [
        (VLLM, "v4-pro", "sm_90", {}, ("fp8_ds_mla", "fp8_ds_mla", "fp8")),
        (VLLM, "v4-pro", "sm_100", {}, ("fp8_ds_mla", "fp8_ds_mla", "fp8_ue8m0x4")),
        (VLLM, "v4-pro", "sm_100", SPARSE, ("bf16", "bf16", "fp8_ue8m0x4")),
        (VLLM, "v4-pro", "sm_100", SPARSE | {"dtype": "fp8"}, ("fp8", "fp8", "fp8_ue8m0x4")),
        ("vllm:0.26", "v4-pro", "sm_100", {}, ("fp8_ds_mla", "fp8_ds_mla", "fp8")),
        (VLLM, "v4.1-flash", "sm_100", {"dtype": "fp8_ds_mla"},
         ("fp8_group32_interleaved", "fp8_group32_interleaved", "fp8_ue8m0x4")),
        (SGLANG, "v4.1-flash", "sm_100", {"tp": 4, "split": True},
         ("fp4", "fp8_group32", "mxfp4")),
        (SGLANG, "v4.1-flash", "gfx950", {}, ("fp8_ds_mla", "fp8_ds_mla", "mxfp4")),
        (VLLM, "v3.2", "sm_90", {"dtype": "fp8"}, ("fp8_ds_mla", "fp8_ds_mla", "fp8")),
        (VLLM, "v3.2", "sm_100", {"dtype": "nvfp4_ds_mla"},
         ("nvfp4", "fp8_ds_mla", "fp8_ue8m0x4")),
        (SGLANG, "v3.2", "sm_100", {}, ("fp8", "fp8_ds_mla", "fp8")),
        ("dsv4kv", "v4.1-flash", "sm_90", {}, ("fp4", "fp8_group32", "mxfp4")),
        (VLLM, "v4.1-flash", None, {}, ("fp4_interleaved", "fp8_group32_interleaved", "fp8")),
        ("trtllm", "v4-flash", "sm_90", {}, ("fp8_ds_mla", "fp8_ds_mla", "mxfp4")),
    ]
)  # fmt: skip
def test_formats_follow_engine_gpu_backend_and_layout(
    engine: str, model: str, arch: str | None, where: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert names(engine, model, arch, **where) == expected


@pytest.mark.parametrize(
    ("engine", "model", "arch", "where", "asked", "sentence"), [
        ("vllm:0.22", "v4-flash", "sm_90", {}, {"indexer": "mxfp4"}, "only on sm_100, sm_103"),
        (VLLM, "v3.2", "sm_100", {}, {"indexer": "mxfp4"}, "keeps mxfp4 of v3.2 on no GPU"),
        (VLLM, "v4.1-flash", "sm_90", {}, {"indexer": "mxfp4"},
         "only on sm_100, sm_103, gfx950, and this GPU is sm_90"),
        (VLLM, "v4.1-flash", "sm_100", {}, {"main": "fp4"}, "keeps fp4 of v4.1-flash on no GPU"),
        (SGLANG, "v4.1-flash", "sm_90", {}, {"window": "fp8_group32"},
         "sm_100, sm_103, gfx950, and this GPU is sm_90"),
        (VLLM, "v4-pro", "sm_90", {"dtype": "bfloat16"}, {},
         "dtype bfloat16: .*auto, fp8, fp8_e4m3, fp8_ds_mla: choose"),
        (VLLM, "v4-pro", "sm_100", SPARSE | {"dtype": "fp8_ds_mla"}, {},
         "dtype fp8_ds_mla: .*auto, bfloat16, fp8, fp8_e4m3: choose"),
        (SGLANG, "v4-flash", None, {"dtype": "bfloat16"}, {},
         "dtype bfloat16: .*on such a GPU in auto, fp8_e4m3: choose"),
    ]
)  # fmt: skip
def test_what_the_engine_does_not_keep_there_is_a_sentence(
    engine: str,
    model: str,
    arch: str | None,
    where: dict[str, str],
    asked: dict[Place, str | None],
    sentence: str,
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        stored_formats(Site(engine, load_model(model), arch, **where), asked)  # type: ignore[arg-type]
