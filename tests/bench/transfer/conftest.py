from collections.abc import Iterator
from unittest.mock import patch

import pytest

from dsv4kv.bench.serve import inputs

_DISTINCT_TOKENS = inputs._DISTINCT_TOKENS


@pytest.fixture(autouse=True, scope="package")
def all_distinct_tokens() -> Iterator[None]:
    """The other side is another process, where nothing is patched; both draw the same bits."""
    with patch.object(inputs, "_DISTINCT_TOKENS", _DISTINCT_TOKENS):
        yield
