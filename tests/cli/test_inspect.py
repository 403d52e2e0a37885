"""``inspect`` as a user types it."""

import json
from functools import partial
from pathlib import Path

import numpy as np

from dsv4kv.model.formats import FORMATS
from tests.cli import shell
from tests.diagnose.dumps.pages import latents, written

inspect = partial(shell.invoke, "inspect")

MAIN = FORMATS["main"]["fp8_ds_mla"]
SOUND = written(MAIN, 64, latents(256, 512, seed=3))


def test_sound_pages_are_named_and_pass(tmp_path: Path) -> None:
    np.save(tmp_path / "pages.npy", SOUND)
    done = inspect(tmp_path / "pages.npy", "--ratio", "4")
    assert done.exit_code == 0
    assert "fp8_ds_mla, 584 B, block-split, 64 a page; 4 pages, no fault found" in done.output


def test_a_fault_is_said_and_fails(tmp_path: Path) -> None:
    stale = SOUND.copy()
    stale[2] = stale[1]
    np.save(tmp_path / "pages.npy", stale)
    done = inspect(tmp_path / "pages.npy", "--json")
    (dump,) = json.loads(done.output)["dumps"]
    assert done.exit_code == 1
    assert (dump["record"], dump["page_entries"]) == ("fp8_ds_mla", 64)
    assert [(each["kind"], each["page"]) for each in dump["faults"]] == [("repeated page", 2)]


def test_two_dumps_are_compared_by_position(tmp_path: Path) -> None:
    np.save(tmp_path / "cold.npy", SOUND)
    np.save(tmp_path / "hit.npy", SOUND[[3, 1, 0, 2]])
    np.save(tmp_path / "table.npy", [2, 1, 3, 0])
    same = inspect(tmp_path / "cold.npy", tmp_path / "hit.npy", "--table2", tmp_path / "table.npy")
    assert same.exit_code == 0
    assert "256 of 256 rows are equal, bit for bit" in same.output
    other = inspect(tmp_path / "cold.npy", tmp_path / "hit.npy")
    assert other.exit_code == 1
    assert "64 of 256 rows are equal; first at entry 0: elsewhere" in other.output


def test_of_many_zeros_the_first_are_looked_at(tmp_path: Path) -> None:
    for size, told in ((2**20, "every byte is zero"), (2**34, "the first 64 MiB are zero")):
        with (tmp_path / "pages.bin").open("wb") as file:
            file.truncate(size)
        assert told in inspect(tmp_path / "pages.bin").output
