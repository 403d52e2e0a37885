"""Killed in the middle of its puts, a process leaves nothing wrong and loses nothing it was told.

``DSV4KV_STORE_KILLS=20`` kills so often; the suite does it twice.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.bench.library import FileStore
from tests.bench.tiers.kinds import content, poisoned

KILLS = int(os.environ.get("DSV4KV_STORE_KILLS", "2"))
OBJECTS, BATCH, SIZE = 1000, 10, 37_440
PLACE = Path(__file__).parents[3]


@pytest.mark.parametrize("turn", range(KILLS))
def test_a_kill_leaves_nothing_wrong_under_a_name_and_everything_acknowledged(
    turn: int, tmp_path: Path
) -> None:
    """The process puts 1,000 objects and says after every ten that it has."""
    command = [sys.executable, "-m", "tests.bench.tiers.test_kills", str(tmp_path)]
    after = random.Random(turn).randrange(OBJECTS // BATCH)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PLACE) as process:
        assert process.stdout is not None
        acknowledged = sum(1 for _ in zip(range(after + 1), process.stdout, strict=False))
        process.kill()
        acknowledged += len(process.stdout.readlines())
    store = FileStore(tmp_path)
    names = [str(number) for number in range(OBJECTS)]
    there, room = store.exists(names), poisoned(SIZE)
    assert there[: acknowledged * BATCH].all()
    for number in np.flatnonzero(there).tolist():
        assert store.get([names[number]], [room]).all()
        assert (room == content(number, SIZE)).all()
    left = [path for path in store.folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in left} <= {".kv"}
    store.close()


def put(folder: Path) -> None:
    store = FileStore(folder, threads=4)
    for start in range(0, OBJECTS, BATCH):
        batch = range(start, start + BATCH)
        store.put([str(number) for number in batch], [content(number, SIZE) for number in batch])
        os.write(sys.stdout.fileno(), b"kept\n")


if __name__ == "__main__":
    put(Path(sys.argv[1]))
