"""A machine like the one with the GPU, made of this one: for rehearsals.

A copy of the source tree without ``.git``, and a Python that sees of the installed packages those
that the machine has; what has to be carried is there as wheels, packed anew from what is installed
here. Stand-ins take the place of NVIDIA's tools.
"""

import os
import re
import shutil
import subprocess
import venv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsv4kv.files import temporary_folder
from tests.visit.tools import make_tools
from visit import carried

TREE = Path(__file__).resolve().parents[3]
PRESENT = (
    *("torch", "triton", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-ml-py"),
    *("typer", "rich", "pyyaml", "jinja2", "matplotlib", "xxhash", "pandas", "pyarrow", "psutil"),
    *("pytest", "pytest-benchmark", "pytest-xdist", "hypothesis", "pip"),
)
"""Packages that the machine has, with what they need; no others are seen."""

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
        for name in carried.NAMES:
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
    if absent := [name for name in ("pytest", "hypothesis") if find_spec(name) is None]:
        raise SystemExit(f"{', '.join(absent)}: not installed; the extra `test` is needed.")
    with temporary_folder("dsv4kv-rehearsal-") as folder:
        tools = make_tools(folder / "tools")
        return Simulation.make(folder).start(call, out.resolve(), steps, tools).wait()


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
    """A Python that sees of the packages installed here those that the machine has."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    present = _with_needs(PRESENT) - {*carried.NAMES} | {"typing-extensions"}  # an old one
    others = [each for each in metadata.distributions() if _name(each) not in present]
    shared = {file.parts[0] for each in others for file in each.files or ()}
    for name in present:
        package = metadata.distribution(name)
        for file in package.files or ():
            if file.parts[0] in ("..", "__pycache__") or file.suffix == ".pth":
                continue
            # ``nvidia`` and such are of several packages
            part = file if file.parts[0] in shared else Path(file.parts[0])
            if not (site / part).exists():
                (site / part).parent.mkdir(parents=True, exist_ok=True)
                (site / part).symlink_to(str(package.locate_file(part)))
    return folder / "bin" / "python"


def _with_needs(names: Iterable[str]) -> set[str]:
    """Packages installed here of these names, and all that they need."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        try:
            needs = metadata.requires(name)
        except metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            wanted = [Requirement(each) for each in needs or ()]
            left += [e.name for e in wanted if not e.marker or e.marker.evaluate({"extra": ""})]
    return found


def _name(package: metadata.Distribution) -> str:
    return canonicalize_name(package.metadata["Name"])
