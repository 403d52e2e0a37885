"""Published traces give the totals that were counted independently of this reader."""

from pathlib import Path

import pytest

from dsv4kv.traces import detect_format, read_trace, write_trace
from tests.traces.scenes import summarize

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MOONCAKE = DATA / "mooncake" / "conversation_trace.jsonl"
AZURE = DATA / "azure" / "AzureLLMInferenceTrace_code.csv"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"published traces are not in {DATA}")


def test_the_mooncake_conversation_trace_has_its_known_totals() -> None:
    assert detect_format(MOONCAKE) == "mooncake"
    summary = summarize(read_trace(MOONCAKE))
    assert summary.requests == 12_031
    assert summary.duration_s == pytest.approx(3537, abs=1)
    assert summary.input_tokens.total == 144_793_823
    assert summary.output_tokens.total == 4_122_048
    assert summary.hash_block_tokens == 512
    assert summary.block_references == 288_500
    assert summary.distinct_blocks == 182_790
    assert summary.hit_share == pytest.approx(0.36641, abs=5e-6)


def test_the_mooncake_trace_survives_conversion(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl.gz"
    assert write_trace(read_trace(MOONCAKE), path) == 12_031
    assert all(a == b for a, b in zip(read_trace(path), read_trace(MOONCAKE), strict=True))


def test_the_azure_code_trace_is_read_to_its_last_row() -> None:
    assert detect_format(AZURE) == "azure"
    requests = list(read_trace(AZURE))
    # counted with: tail -n +2 FILE | awk -F, '{i+=$2; o+=$3} END {print NR, i, o}'
    assert len(requests) == 8_819
    assert sum(request.input_tokens for request in requests) == 18_059_974
    assert sum(request.output_tokens for request in requests) == 245_896
    # 18:17:03.9799600 to 19:14:19.9280160
    assert requests[-1].arrival_s == pytest.approx(57 * 60 + 15.948056, abs=1e-9)
    assert requests[1].arrival_s == 0.052
