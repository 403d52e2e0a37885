"""Planted faults of pages are found, named and placed."""

from typing import Any

import numpy as np
import pytest

from dsv4kv.diagnose.dumps import Fault, Request, find_faults
from dsv4kv.diagnose.records import Bytes
from dsv4kv.model.formats import FLAT_FORMATS, FORMATS, EntryFormat
from tests.diagnose.dumps.pages import FLASH, latents, record_of, written

MAIN = FORMATS["main"]["fp8_ds_mla"]
ENTRIES, COUNT = 64, 8
ROW = MAIN.data_row_bytes
SCALES = ENTRIES * ROW


def pages(entry: EntryFormat = MAIN) -> Bytes:
    return written(entry, ENTRIES, latents(ENTRIES * COUNT, entry.dims, seed=5))


ASKED = Request(FLASH, 4)


def faults(
    found: Bytes,
    entry: EntryFormat = MAIN,
    asked: Request | None = None,
    table: list[int] | None = None,
) -> list[Fault]:
    order = np.array(table or range(COUNT))
    return find_faults(record_of(entry, ENTRIES), found, order, asked)


@pytest.mark.parametrize(
    "entry", [MAIN, FLAT_FORMATS["fp8_ds_mla"], *FORMATS["indexer"].values()],
    ids=lambda entry: f"{entry.name} {entry.entry_bytes}",
)  # fmt: skip
def test_sound_pages_have_no_faults(entry: EntryFormat) -> None:
    assert faults(pages(entry), entry) == []


def test_sound_pages_have_no_faults_by_position_either() -> None:
    assert faults(pages(), asked=ASKED) == []


SOUND = pages()
ROWS, SCALE = slice(5 * ROW, 6 * ROW), slice(SCALES + 40, SCALES + 48)
FIRST = slice(5 * ROW, 5 * ROW + 64)
CODES = SOUND[3, FIRST]
SMALLER = np.where(CODES & 0x7F > 16, CODES - 16, CODES & 0x80)  # of a scale four times as large
Edit = tuple[int | slice, Any]
PLANTED: dict[str, tuple[int | None, list[Edit]]] = {
    "nan": (5, [(5 * ROW + 7, 0x7F)]),
    "odd scale": (5, [(SCALES + 42, 0xFF)]),
    "scale of other values": (5, [(SCALES + 40, SOUND[3, SCALES + 40] + 2), (FIRST, SMALLER)]),
    "odd rope": (5, [(5 * ROW + 449, 0x7E)]),
    "repeated row": (
        5, [(ROWS, SOUND[1, 2 * ROW : 3 * ROW]), (SCALE, SOUND[1, SCALES + 16 : SCALES + 24])]
    ),
    "repeated page": (0, [(slice(None), SOUND[1])]),
    "zero row": (5, [(ROWS, 0), (SCALE, 0)]),
    "other bytes": (
        None, [(slice(None), np.random.default_rng(0).integers(0, 256, len(SOUND[3])))]
    ),
}  # fmt: skip
"""By kind: the row that it is in, and what is written into the fourth page."""


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_named_and_placed(kind: str) -> None:
    found, (entry, edits) = SOUND.copy(), PLANTED[kind]
    for place, content in edits:
        found[3, place] = content
    (fault,) = faults(found)
    assert (fault.kind, fault.rows, fault.page, fault.entry) == (kind, 1, 3, entry)


def test_a_row_of_another_position_is_told_by_its_phase() -> None:
    """As a stale row of an older request has, or one that was put in another's place."""
    found = pages()
    strange = written(MAIN, ENTRIES, latents(ENTRIES * COUNT, 512, seed=5))
    found[3, 5 * ROW : 6 * ROW] = strange[6, 9 * ROW : 10 * ROW]
    found[3, SCALES + 40 : SCALES + 48] = strange[6, SCALES + 72 : SCALES + 80]
    found[6, 9 * ROW : 10 * ROW] = strange[3, 5 * ROW : 6 * ROW]
    found[6, SCALES + 72 : SCALES + 80] = strange[3, SCALES + 40 : SCALES + 48]
    (fault,) = faults(found, asked=ASKED)
    placed = ("phase of another position", 2, 3, 5)
    assert (fault.kind, fault.rows, fault.page, fault.entry) == placed
    assert fault.position == (3 * ENTRIES + 5) * 4


def test_phases_of_rows_without_a_common_direction_are_not_judged() -> None:
    rows = latents(ENTRIES * COUNT, 512, seed=5)
    rows[:, -64:] = rows[:, -64:][:, np.random.default_rng(1).permutation(64)]
    assert faults(written(MAIN, ENTRIES, rows), asked=ASKED) == []


def test_pages_are_judged_in_a_requests_order() -> None:
    found, table = pages(), [4, 2, 7, 0, 1, 3, 6, 5]
    stored = np.empty_like(found)
    stored[table] = found
    assert faults(stored, asked=ASKED, table=table) == []
    (fault,) = faults(stored, asked=ASKED, table=[2, 4, *table[2:]])
    assert (fault.kind, fault.page, fault.entry) == ("phase of another position", 2, 0)
