"""Programs asked in the engines' own environment, and their answers as they are kept.

``DSV4KV_ENGINES`` is the folder that ``make engines`` makes: an environment (``bin/python``) and
the unpacked wheels (``vllm``, ``sglang``). None of their code is kept. A file of answers holds the
questions, too, which were drawn at random once: they are asked again, and of newer versions.
"""

import gzip
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
needs_engines = pytest.mark.skipif(
    "DSV4KV_ENGINES" not in os.environ,
    reason="the engines' packages are not unpacked here: make engines",
)


def engines_folder() -> Path:
    """Where the engines are unpacked."""
    return Path(os.environ["DSV4KV_ENGINES"])


def ask(script: str, package: str, questions: Iterable[Any]) -> list[Any]:
    """A program's answers, one JSON line for every question."""
    folder = engines_folder()
    told = subprocess.run(
        [folder / "bin" / "python", HERE / script, folder / package],
        input="".join(json.dumps(question) + "\n" for question in questions),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in told.stdout.splitlines() if line.startswith(("{", "["))]


def read_kept(file: Path) -> list[Any]:
    """Rows of a file, without its first line, which says who answered them."""
    with gzip.open(file, "rt") as lines:
        next(lines)
        return [json.loads(line) for line in lines]


def keep(file: Path, rows: Iterable[Any]) -> None:
    """Write rows anew below the first line; the same give the same bytes."""
    with gzip.open(file, "rt") as lines:
        text = next(lines) + "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
