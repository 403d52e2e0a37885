"""What an engine's prefill side sends of a prompt: bytes and descriptors, to the integer."""

from collections.abc import Callable
from functools import partial

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.host import Sent
from dsv4kv.engines.names import find_engine
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats

MODELS = ("v4-flash", "v4-pro")
CSA, HCA, LAYERS = {"v4-flash": 21, "v4-pro": 30}, {"v4-flash": 20, "v4-pro": 31}, (43, 61)
LENGTHS = (8192, 131_072, 1_048_576)


def deployment(model: str, indexer: str = "fp8") -> Deployment:
    config = load_model(model)
    return Deployment(
        model=config,
        formats=choose_formats(config, indexer=indexer),
        max_context_tokens=1_048_576,
        in_flight_tokens=8192,
    )


def sent(engine: str, model: str, tokens: int) -> Sent:
    found = find_engine(engine).sent(deployment(model), tokens)
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
    assert fixed == {"v4-flash": 18_605_376, "v4-pro": 27_886_464}[model]
    pages = tokens // 256
    assert of_vllm(model, tokens) == Sent(
        pages * page + fixed, pages * (2 * csa + hca) + 3 * layers + 6 * csa + 17 * hca
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [*LENGTHS, 127, 128, 129, 255, 256, 257, 131_073])
def test_sglang_sends_pages_one_or_two_windows_and_the_open_group(model: str, tokens: int) -> None:
    """SGLang 0.5.23, disaggregation/prefill.py: a window page more where it begins before."""
    csa, hca, layers = CSA[model], HCA[model], LAYERS[MODELS.index(model)]
    page = csa * (37_440 + 8_448) + hca * 1_728
    window = layers * 149_760 + csa * (65_536 + 16_384)
    assert (page, window) == {
        "v4-flash": (998_208, 8_160_000),
        "v4-pro": (1_430_208, 11_592_960),
    }[model]
    pages = -(-tokens // 256)
    tails = 1 if tokens % 256 == 0 or tokens % 256 >= 128 or tokens < 128 else 2
    pending = bool(tokens % 128)
    assert of_sglang(model, tokens) == Sent(
        pages * page + tails * window + pending * hca * 128 * 4_096,
        pages * (2 * csa + hca) + tails * (layers + 2 * csa) + pending * hca,
    )


@pytest.mark.parametrize(
    ("engine", "megabytes"),
    [
        (of_vllm, ((50.68, 531.75, 4_123.8), (73.84, 763.10, 5_909.6))),
        (of_sglang, ((40.10, 519.24, 4_096.8), (57.36, 743.86, 5_869.7))),
    ],
)
def test_requests_of_8k_128k_and_1m_have_the_published_sums(
    engine: Callable[[str, int], Sent], megabytes: tuple[tuple[float, ...], ...]
) -> None:
    for model, sums in zip(MODELS, megabytes, strict=True):
        for tokens, asked in zip(LENGTHS, sums, strict=True):
            found = engine(model, tokens).bytes / 1e6
            assert found == pytest.approx(asked, abs=0.05 if asked > 1000 else 0.005)
