"""The indexer's logits. Sources: sglang#39095, vllm#45663."""

import pytest

from dsv4kv.budget.fit import indexer_logits_bytes


@pytest.mark.parametrize(
    ("rows", "context", "expected_gib"),
    [(4096, 372_000, 1.42), (4096, 800_000, 3.05), (8192, 1_048_576, 8.0)],
)
def test_logits_of_a_chunk_have_their_published_size(
    rows: int, context: int, expected_gib: float
) -> None:
    assert round(indexer_logits_bytes(rows, context) / 2**30, 2) == expected_gib
