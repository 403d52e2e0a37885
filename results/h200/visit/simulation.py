"""A machine like the one with the GPU, made of this one: for rehearsals.

A copy of the source tree without ``.git``, and a Python that sees the installed packages but
neither dsv4kv nor those that the machine lacks; what has to be carried lies there as wheels,
packed anew from what is installed here.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dsv4kv.files import temporary_folder

TREE = Path(__file__).resolve().parents[3]
CARRIED = (
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
)
ABSENT = (
    "annotated-types",
    "dsv4kv",
    "libcachesim",
    "ncu-report",
    "nvtx",
    "pydantic",
    "pydantic-core",
    "sglang",
    "syrupy",
    "typing-inspection",
    "vllm",
)
"""Packages that the machine lacks."""

_LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "visits", "*.egg-info", "build", "dist")


@dataclass(frozen=True)
class Simulation:
    """The machine.

    Attributes:
        folder: Where work begins; nothing of ours lies in it.
        script: ``visit.sh`` in the copied tree.
        python: Its Python.
    """

    folder: Path
    script: Path
    python: Path

    @classmethod
    def make(cls, folder: Path) -> "Simulation":
        """Make it in an empty folder."""
        tree, here = folder / "tree", folder / "elsewhere"
        shutil.copytree(TREE, tree, ignore=_LEFT_BEHIND, symlinks=True)
        here.mkdir()
        wheels = tree / "results" / "h200" / ".wheels"
        wheels.mkdir()
        for name in CARRIED:
            pack_wheel(name, wheels)
        python = _make_python(folder / "python")
        return cls(here, tree / "results" / "h200" / "visit.sh", python)

    def start(
        self, call: str, out: Path, steps: Sequence[str] | None = None, tools: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Begin a call there; ``tools`` is a folder of programs that come first on ``PATH``."""
        known = ("HOME", "TMPDIR", "DSV4KV_FULL")
        kept = {name: os.environ[name] for name in known if name in os.environ}
        path = os.pathsep.join(filter(None, [str(tools or ""), os.environ["PATH"]]))
        command = [str(self.script), call, "--twin", "--out", str(out)]
        command += ["--steps", ",".join(steps)] if steps else []
        environment = {**kept, "PATH": path, "PYTHON": str(self.python), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=self.folder, env=environment)


def rehearse(call: str, out: Path, steps: Sequence[str] | None) -> int:
    """Do a call in a simulation made for it; returns its exit code."""
    with temporary_folder("dsv4kv-rehearsal-") as folder:
        return Simulation.make(folder).start(call, out.resolve(), steps).wait()


def pack_wheel(name: str, folder: Path) -> None:
    """Pack an installed package as a wheel for this very Python."""
    package = metadata.distribution(name)
    assert package.files is not None
    tag = re.search(r"^Tag: (\S+)$", package.read_text("WHEEL") or "", re.MULTILINE)
    assert tag is not None
    stem = re.sub(r"[-_.]+", "_", name)
    with zipfile.ZipFile(folder / f"{stem}-{package.version}-{tag[1]}.whl", "w") as wheel:
        for file in package.files:
            path = Path(str(package.locate_file(file)))
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                wheel.write(path, str(file))


def _make_python(folder: Path) -> Path:
    """A Python whose packages are links to those installed here, less those that are absent."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    absent = {path for name in ABSENT for path in _files_of(name)}
    for place in map(Path, sys.path):
        if place.name not in ("site-packages", "dist-packages") or not place.is_dir():
            continue
        for path in place.iterdir():
            target = site / path.name
            if path.name not in absent and path.suffix != ".pth" and not target.exists():
                target.symlink_to(path)
    return folder / "bin" / "python"


def _files_of(name: str) -> set[str]:
    """What a package has put beside others: folders, modules and its own description."""
    try:
        files = metadata.files(name)
    except metadata.PackageNotFoundError:
        return set()
    return {file.parts[0] for file in files or () if file.parts[0] not in ("..", "__pycache__")}
