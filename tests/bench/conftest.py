from collections.abc import Iterator
from unittest.mock import patch

import pytest

from dsv4kv.bench.serve import inputs
from tests.one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture(autouse=True, scope="package")
def few_distinct_tokens() -> Iterator[None]:
    """Enough, and drawn eight times as fast."""
    with patch.object(inputs, "_DISTINCT_TOKENS", 521):
        yield
