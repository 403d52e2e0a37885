"""Which core runs: the compiled one if it is of this source, the interpreted one, or an error."""

import os
import py_compile
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = "from dsv4kv.core import COMPILED; print(COMPILED)"


def copied(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "dsv4kv", folder / "dsv4kv", ignore=ignored)
    return folder / "dsv4kv" / "core"


def asked(core: Path, wanted: str = "") -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(core.parents[1]), "DSV4KV_CORE": wanted}
    command = [sys.executable, "-P", "-c", ASK]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("wanted", ["compiled", "mypyc"])
def test_a_core_that_is_not_there_is_a_sentence_and_no_defect(wanted: str, tmp_path: Path) -> None:
    answer = asked(copied(tmp_path), wanted)
    assert "ConfigError: DSV4KV_CORE is " in answer.stderr


def test_another_source_than_was_compiled_runs_interpreted_whatever_its_date(
    tmp_path: Path,
) -> None:
    core = copied(tmp_path)
    sources = sorted(core.glob("[!_]*.py"))
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = tmp_path / "compiled.py"
    stamp.write_text(f'SOURCE = "{digest}"')
    py_compile.compile(str(stamp), str(core / "compiled.pyc"))  # as a library, without a compiler
    os.utime(sources[0])
    assert asked(core).stdout == "True\n"
    with sources[0].open("a") as file:
        file.write("# changed\n")
    os.utime(sources[0], (0, 0))
    assert asked(core).stdout == "False\n"


def test_no_class_of_the_core_is_an_abc() -> None:
    """Compiled classes share the ABC's cache of instance checks, and get each other's answers."""
    for path in (ROOT / "dsv4kv" / "core").glob("[!_]*.py"):
        assert "ABC" not in path.read_text(), path.name
