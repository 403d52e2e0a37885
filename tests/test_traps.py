"""No command runs code that is in the current folder, in none of its processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import COMMANDS, leaves, write_files
from tests.profile.exports import two_replays
from tests.profile.tools import install

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "aiohttp", "click", "dsv4kv", "jinja2", "matplotlib", "numpy", "pandas", "psutil",
    "pydantic", "pynvml", "rich", "sglang", "sitecustomize", "tokenizers", "torch", "typer",
    "usercustomize", "vllm", "xxhash", "yaml", "zmq",
)  # fmt: skip
TRAPS = sorted({*sys.stdlib_module_names, *PACKAGES} - {"__main__"})
_PROGRAM = """
import json, sys
from dsv4kv.cli import main
if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        sys.argv[1:] = words
        if words[0] == "kernels":  # a module takes half a second to compile
            from dsv4kv.ops.cuda import inspection as found
            few = found.catalogue()[:1]
            found.catalogue = lambda: few
        try:
            main()
        except SystemExit as ended:
            print(f"\\nended with {ended.code}:", *words, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files, and modules with everybody's names that leave a file where they are run."""
    folder: Path = tmp_path_factory.mktemp("traps") / "current"
    sprung = folder.parent / "sprung"
    folder.mkdir()
    sprung.mkdir()
    code = f"open({str(sprung)!r} + '/' + __name__, 'w').close()\nraise SystemExit('trapped')\n"
    for name in TRAPS:
        (folder / f"{name}.py").write_text(code)
    write_files(folder)
    (folder / "matplotlibrc").write_text("text.usetex: True\n")
    (folder.parent / "program.py").write_text(_PROGRAM)
    return folder


def run(folder: Path, start: list[str], words: list[str]) -> tuple[int, str, set[str]]:
    """Run a command in the folder: exit code, output and what was trapped."""
    sprung = folder.parent / "sprung"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DSV4KV_CACHE_DIR": str(folder / "cubins"),
    }
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    trapped = {path.name for path in sprung.iterdir()}
    for name in trapped:
        (sprung / name).unlink()
    return done.returncode, done.stdout, trapped


@pytest.mark.parametrize("measuring", [True, False])
def test_no_command_runs_what_the_current_folder_holds(
    measuring: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do its children; commands that import torch share a process, and all others do."""
    for tool, ending in (("nsys", "sqlite"), ("ncu", "ncu-rep")):
        fake = install(tool, tmp_path / tool, monkeypatch)
        (tmp_path / "ready").write_text("a report")
        fake.does("profile", writes=tmp_path / "ready", runs=True)
        fake.does("export", writes=two_replays().save(tmp_path / f"{tool}.{ending}"))
    names = [
        name for name in sorted(leaves()) if name.startswith(("bench", "profile")) == measuring
    ]
    asked = [words for name in names for words in COMMANDS[name]]
    code, output, trapped = run(folder, [str(folder.parent / "program.py")], [json.dumps(asked)])
    assert not trapped, output
    assert (code, output.count("\nended with ")) == (0, len(asked)), output
    assert "ended with 70" not in output, output
    assert "Traceback" not in output, output


def test_as_a_module_it_drops_the_current_folder_before_it_imports(folder: Path) -> None:
    early = {"json", "typing", "random", "re", "logging", "pathlib", "enum", "typer", "torch"}
    for name in set(TRAPS) - early:  # Python's own -m imports some before it runs anything
        (folder / f"{name}.py").unlink()
    code, output, trapped = run(folder, ["-m", "dsv4kv"], ["budget"])
    assert (code, trapped) == (0, set()), output
