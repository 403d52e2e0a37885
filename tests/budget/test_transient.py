"""The indexer's logits. Sources: sglang#39095, vllm#45663."""

import pytest

from dsv4kv.budget.fit import indexer_logits_bytes
from dsv4kv.errors import ConfigError


@pytest.mark.parametrize(
    ("rows", "context", "expected_gib"),
    [(4096, 372_000, 1.42), (4096, 800_000, 3.05), (8192, 1_048_576, 8.0)],
)
def test_logits_of_a_chunk_have_their_published_size(
    rows: int, context: int, expected_gib: float
) -> None:
    assert round(indexer_logits_bytes(rows, context) / 2**30, 2) == expected_gib


def test_keys_come_four_tokens_each_in_rows_of_256() -> None:
    assert indexer_logits_bytes(1, 1) == indexer_logits_bytes(1, 1024) == 256 * 4
    assert indexer_logits_bytes(1, 1025) == 512 * 4
    assert indexer_logits_bytes(0, 1025) == indexer_logits_bytes(3, 0) == 0


def test_negative_counts_are_refused() -> None:
    for rows, context in ((-1, 4), (4, -1)):
        with pytest.raises(ConfigError, match="cannot be negative"):
            indexer_logits_bytes(rows, context)
