"""Equal hashes are equal tokens; everything else is its request's own."""

import numpy as np

from dsv4kv.bench.serve.inputs import PromptContents
from dsv4kv.traces.request import Request


def rows(contents: PromptContents, serial: int, *positions: int) -> list[int]:
    where = np.array(positions)
    nothing = np.zeros(len(where), dtype=bool)
    found: list[int] = contents.rows(np.full(len(where), serial), where, nothing).tolist()
    return found


def test_prompts_share_the_data_of_equal_hashes_and_of_no_others() -> None:
    contents = PromptContents()
    contents.add(3, Request(0.0, 1024, 5, (7, 8), 512))
    contents.add(9, Request(0.0, 1024, 5, (7, 99), 512))
    assert rows(contents, 3, 0, 511) == rows(contents, 9, 0, 511)
    assert rows(contents, 3, 512) != rows(contents, 9, 512)


def test_a_batch_is_numbered_as_its_requests_alone() -> None:
    contents = PromptContents()
    contents.add(4, Request(0.0, 300, 5, (7, 8, 9), 128))
    contents.add(5, Request(0.0, 300, 5))
    serials, positions = np.array([4, 4, 5, 4]), np.array([10, 299, 10, 400])
    rejected = np.array([False, False, True, True])
    together = contents.rows(serials, positions, rejected)
    alone = [
        int(contents.rows(s[None], p[None], r[None])[0])
        for s, p, r in zip(serials, positions, rejected, strict=True)
    ]
    assert together.tolist() == alone
