"""Two dumps of one content: the first difference, and its kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4kv.diagnose import dumps as faults
from dsv4kv.diagnose.dumps import Comparison, Inspection, Request
from dsv4kv.diagnose.records import Bytes, Dump
from dsv4kv.model.formats import FORMATS
from tests.diagnose.dumps.pages import FLASH, latents, record_of, written

MAIN = FORMATS["main"]["fp8_ds_mla"]
ROW, COUNT = MAIN.data_row_bytes, 256
SCALES = 64 * ROW
SOUND = written(MAIN, 64, latents(COUNT, 512, seed=3))


def compare(other: Bytes, table: list[int] | None = None, page_entries: int = 64) -> Comparison:
    one, second = (
        Inspection(
            Dump(Path("x"), "", pages, pages.shape), record_of(MAIN, size), [], [], pages, ids, []
        )
        for pages, size, ids in (
            (SOUND, 64, np.arange(len(SOUND))),
            (other, page_entries, np.array(table or range(len(other)))),
        )
    )
    return faults.compare(one, second, Request(FLASH, 4))


def test_pages_of_other_ids_and_sizes_are_equal_by_position() -> None:
    assert compare(SOUND[[2, 0, 3, 1]], [1, 3, 0, 2]) == Comparison(COUNT, COUNT, [])
    large = written(MAIN, 256, latents(COUNT, 512, seed=3))
    assert compare(large, page_entries=256) == Comparison(COUNT, COUNT, [])


def test_rows_that_only_one_dump_has_are_counted() -> None:
    assert compare(SOUND[:3]) == Comparison(192, 192, [], alone=(64, 0))
    longer = np.concatenate([SOUND, SOUND[:1], np.zeros_like(SOUND[:1])])
    assert compare(longer) == Comparison(COUNT, COUNT, [], alone=(0, 64))


STRANGE = written(MAIN, 64, latents(64, 512, seed=77))[0]
ROWS, SCALE = slice(5 * ROW, 6 * ROW), slice(SCALES + 40, SCALES + 48)
PLANTED: dict[str, list[tuple[int | slice, Any]]] = {
    "one step": [(5 * ROW + 3, SOUND[1, 5 * ROW + 3] ^ 1)],
    "scale": [(SCALES + 43, SOUND[1, SCALES + 43] + 1)],
    "rope": [(slice(5 * ROW + 448, 6 * ROW), SOUND[0, 448:ROW])],
    "missing": [(ROWS, 0), (SCALE, 0)],
    "other content": [(ROWS, STRANGE[:ROW])],
    "elsewhere": [
        (ROWS, SOUND[2, 9 * ROW : 10 * ROW]), (SCALE, SOUND[2, SCALES + 72 : SCALES + 80])
    ],
}  # fmt: skip


def planted(kind: str) -> Bytes:
    """In row 69, the sixth of the second page."""
    found = SOUND.copy()
    for place, content in PLANTED[kind]:
        found[1, place] = content
    return found


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_difference_is_named_and_placed(kind: str) -> None:
    found = compare(planted(kind))
    (difference,) = found.differences
    assert (found.rows, found.equal) == (COUNT, COUNT - 1)
    assert (difference.kind, difference.entry, difference.position) == (kind, 69, 276)
    assert ("entry 137" in difference.detail) == (kind == "elsewhere")
