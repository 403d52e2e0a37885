"""Published sizes of the model's cache follow from the layer patterns and entry formats.

Sources: arXiv:2606.19348 (layer patterns, cache sizes against V3.2), the page layouts of FlashMLA,
vLLM and SGLang (584-byte entries; 132- and 68-byte indexer keys), vLLM's 656-byte V3.2 entries.
"""

from fractions import Fraction

import pytest

from dsv4kv.model.plan import bytes_per_request, bytes_per_token
from tests.model.layouts import schemas_of

MILLION = 1_048_576


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("v4-flash", Fraction("3514.25")),  # 21 · (584 + 68)/4 + 20 · 584/128
        ("v4-pro", Fraction("5031.4375")),  # 30 · (584 + 68)/4 + 31 · 584/128
        ("v4.1-flash", Fraction(890)),  # 3 · (288 + 68)/2 + (288 + 68)
        ("v3.2", Fraction(61 * (656 + 132))),
    ],
)
def test_a_token_of_context_costs_its_published_bytes(model: str, expected: Fraction) -> None:
    assert bytes_per_token(schemas_of(model)) == expected


@pytest.mark.parametrize(("model", "percent"), [("v4-pro", 10.48), ("v4-flash", 7.32)])
def test_the_published_share_of_v32_holds_for_fp8_entries_and_4_bit_keys(
    model: str, percent: float
) -> None:
    baseline = bytes_per_request(schemas_of("v3.2", "fp8_ds_mla", "fp8"), MILLION)
    assert baseline.window == baseline.state == 0
    ours = bytes_per_request(schemas_of(model, "fp8_ds_mla", "mxfp4"), MILLION)
    assert round(100 * ours.cached / baseline.cached, 2) == percent


@pytest.mark.parametrize(("model", "expected"), [("v4-flash", 12_206_080), ("v4-pro", 18_710_528)])
def test_a_request_holds_its_published_bytes_of_compressor_state(
    model: str, expected: int
) -> None:
    schemas = schemas_of(model)
    assert bytes_per_request(schemas, 1).state == expected
    assert sum(schema.state_bytes for schema in schemas) == expected
