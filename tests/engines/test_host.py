"""What engines keep in host memory and send of a prompt: bytes, pages, chunks, to the integer."""

from functools import partial

import pytest

from dsv4kv.engines.contract import Sent
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.vllm.sizes import VllmEngine
from tests.engines.sizing.deployments import deploy

MODELS = ("v4-flash", "v4-pro")
CSA, HCA, LAYERS = {"v4-flash": 21, "v4-pro": 30}, {"v4-flash": 20, "v4-pro": 31}, (43, 61)
LENGTHS = (8192, 131_072, 1_048_576)
PROMPTS = (2_048, 8_192, 131_072, 1_048_576)


def vllm() -> VllmEngine:
    engine = find_engine("vllm:0.33")
    assert isinstance(engine, VllmEngine)
    return engine


CHUNKS = {
    None: (184, 736, 11_776, 94_208),
    0: (30, 54, 534, 4_118),
    4_096: (30, 98, 1_238, 9_750),
    32_768: (30, 54, 622, 4_822),
}
"""Chunks stored of prompts by retention; the mask of vLLM's own code answered so."""


def sent(engine: str, model: str, tokens: int) -> Sent:
    found = find_engine(engine).sent(deploy(model), tokens)
    assert found is not None
    return found


of_vllm, of_sglang = partial(sent, "vllm:0.33"), partial(sent, "sglang:0.5.23")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_vllm_sends_padded_pages_of_the_context_and_a_fixed_part(model: str, tokens: int) -> None:
    """Its NIXL connector clips windows to 3, 3, 17 and 3 blocks (vLLM 0.33.0, base_scheduler)."""
    csa, hca, layers = CSA[model], HCA[model], LAYERS[MODELS.index(model)]
    page = csa * (37_440 + 8_640) + hca * 1_728
    fixed = 3 * layers * 37_440 + 3 * csa * (32_832 + 8_640) + 17 * hca * 32_832
    pages = tokens // 256
    assert of_vllm(model, tokens) == Sent(
        pages * page + fixed, pages * (2 * csa + hca) + 3 * layers + 6 * csa + 17 * hca
    )
