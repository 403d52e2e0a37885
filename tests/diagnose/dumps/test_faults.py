"""Planted faults of pages are found, named and placed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dsv4kv.diagnose.dumps.faults import Fault, Request, find_faults
from dsv4kv.diagnose.dumps.reading import Bytes
from dsv4kv.model.formats import FLAT_FORMATS, FORMATS, EntryFormat
from tests.diagnose.dumps.pages import FLASH, latents, record_of, written

MAIN = FORMATS["main"]["fp8_ds_mla"]
ENTRIES, COUNT = 64, 8
ROW = MAIN.data_row_bytes
SCALES = ENTRIES * ROW


def pages(entry: EntryFormat = MAIN) -> Bytes:
    return written(entry, ENTRIES, latents(ENTRIES * COUNT, entry.dims, seed=5))


def request(**known: int) -> Request:
    return Request(np.arange(COUNT), 4, 0, FLASH, **known)


def faults(found: Bytes, entry: EntryFormat = MAIN, asked: Request | None = None) -> list[Fault]:
    return find_faults(record_of(entry, ENTRIES), found, asked)


@pytest.mark.parametrize(
    "entry",
    [MAIN, FLAT_FORMATS["fp8_ds_mla"], *FORMATS["indexer"].values()],
    ids=lambda entry: f"{entry.name} {entry.entry_bytes}",
)
def test_sound_pages_have_no_faults(entry: EntryFormat) -> None:
    assert faults(pages(entry), entry) == []


def test_sound_pages_have_no_faults_by_position_either() -> None:
    assert faults(pages(), asked=request(entries=ENTRIES * COUNT)) == []


def plant_nan(found: Bytes) -> None:
    found[3, 5 * ROW + 7] = 0x7F


def plant_scale(found: Bytes) -> None:
    found[3, SCALES + 5 * 8 + 2] = 0xFF


def plant_other_scale(found: Bytes) -> None:
    """Another row's: values are four times as large then."""
    found[3, SCALES + 5 * 8] += 2
    codes = found[3, 5 * ROW : 5 * ROW + 64]
    sizes = codes & 0x7F
    codes[:] = np.where(sizes > 16, codes - 16, codes & 0x80)


def plant_rope(found: Bytes) -> None:
    found[3, 5 * ROW + 449] = 0x7E


def plant_repeated_row(found: Bytes) -> None:
    found[3, 5 * ROW : 6 * ROW] = found[1, 2 * ROW : 3 * ROW]
    found[3, SCALES + 40 : SCALES + 48] = found[1, SCALES + 16 : SCALES + 24]


def plant_repeated_page(found: Bytes) -> None:
    found[3] = found[1]


def plant_zero_row(found: Bytes) -> None:
    found[3, 5 * ROW : 6 * ROW] = 0
    found[3, SCALES + 40 : SCALES + 48] = 0


def plant_shift(found: Bytes) -> None:
    found[3] = np.roll(found[3], 8)


def plant_other_page(found: Bytes) -> None:
    found[3] = np.random.default_rng(0).integers(0, 256, len(found[3]))


def plant_arrangement(found: Bytes) -> None:
    """Rows with their scales after each of them, in a page of split ones."""
    inline = replace(MAIN, scales_at="row_end", page_align=1)
    rows = written(inline, ENTRIES, latents(ENTRIES, MAIN.dims, seed=9))
    found[3, : rows.shape[1]] = rows[0]


PLANTED: dict[str, tuple[Callable[[Bytes], None], int | None]] = {
    "nan": (plant_nan, 5),
    "odd scale": (plant_scale, 5),
    "scale of other values": (plant_other_scale, 5),
    "odd rope": (plant_rope, 5),
    "repeated row": (plant_repeated_row, 5),
    "repeated page": (plant_repeated_page, 0),
    "zero row": (plant_zero_row, 5),
    "shifted page": (plant_shift, None),
    "other bytes": (plant_other_page, None),
    "other arrangement": (plant_arrangement, None),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_named_and_placed(kind: str) -> None:
    found = pages()
    plant, entry = PLANTED[kind]
    plant(found)
    (fault,) = faults(found)
    assert (fault.kind, fault.rows, fault.page, fault.entry) == (kind, 1, 3, entry)
    if kind == "shifted page":
        assert fault.detail == "by +8 B"


def test_rows_that_were_never_written_are_missed_where_their_number_is_known() -> None:
    found = pages()
    found[7, 60 * ROW : SCALES], found[7, SCALES + 60 * 8 :] = 0, 0
    assert faults(found, asked=request()) == []
    (fault,) = faults(found, asked=request(entries=ENTRIES * COUNT))
    last = (7 * ENTRIES + 60) * 4
    assert (fault.kind, fault.rows, fault.entry, fault.position) == ("zero tail", 4, 60, last)


def test_a_row_of_another_position_is_told_by_its_phase() -> None:
    """As a stale row of an older request has, or one that was put in another's place."""
    found = pages()
    strange = written(MAIN, ENTRIES, latents(ENTRIES * COUNT, 512, seed=5))
    found[3, 5 * ROW : 6 * ROW] = strange[6, 9 * ROW : 10 * ROW]
    found[3, SCALES + 40 : SCALES + 48] = strange[6, SCALES + 72 : SCALES + 80]
    found[6, 9 * ROW : 10 * ROW] = strange[3, 5 * ROW : 6 * ROW]
    found[6, SCALES + 72 : SCALES + 80] = strange[3, SCALES + 40 : SCALES + 48]
    (fault,) = faults(found, asked=request())
    assert (fault.kind, fault.rows, fault.page, fault.entry) == (
        "phase of another position",
        2,
        3,
        5,
    )
    assert fault.position == (3 * ENTRIES + 5) * 4


def test_phases_of_rows_without_a_common_direction_are_not_judged() -> None:
    rows = latents(ENTRIES * COUNT, 512, seed=5)
    rows[:, -64:] = rows[:, -64:][:, np.random.default_rng(1).permutation(64)]
    assert faults(written(MAIN, ENTRIES, rows), asked=request()) == []


def test_pages_are_judged_in_a_requests_order() -> None:
    found, table = pages(), np.array([4, 2, 7, 0, 1, 3, 6, 5])
    stored = np.empty_like(found)
    stored[table] = found
    assert faults(stored, asked=Request(table, 4, 0, FLASH)) == []
    swapped = np.array([2, 4, 7, 0, 1, 3, 6, 5])
    (fault,) = faults(stored, asked=Request(swapped, 4, 0, FLASH))
    assert (fault.kind, fault.page, fault.entry) == ("phase of another position", 2, 0)
