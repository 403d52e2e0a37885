"""Every line that installs resolves from PyPI alone, and what the project asks for is pinned.

Lines are read from the pages and files that show or run them. No folder of ready wheels, cache or
configuration of this machine takes part: only its network.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = [each.split()[-1] for each in PROJECT["classifiers"] if "Python :: 3." in each]
ASKED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *EXTRAS.values())
    for line in lines
    if lines is not EXTRAS["cuda"]  # torch chooses its NVRTC; tests/compilers has the tests'
]
PAGES = [
    *(ROOT / name for name in ("README.md", "Makefile", ".ci/run")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / ".github" / "workflows").iterdir()),
]
WORD = r"'[^']+'|-[\w-]+(?:=\S+)?|[\w.+/=:\[\],-]*[\w.\]]"
INSTALL = re.compile(rf"\b(?:pipx?|uv pip|uv tool) install((?: (?:{WORD}))+)")
BOUND_S = 240


def lines() -> dict[str, str]:
    """Arguments of every installation, and the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r"\\\n\s*", "", page.read_text("utf-8"))
        spans = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda span: " ".join(span[0].split()), text)
        for arguments in INSTALL.findall(spans):
            found.setdefault(arguments.strip(), page.name)
    return found


LINES = lines()


def index_of(line: str) -> str:
    named = re.search(r"--(?:extra-)?index-url[ =](\S+)", line)
    return named[1] if named else "PyPI"


def is_ours(words: list[str]) -> bool:
    return any(re.fullmatch(r"\.(\[.*\])?", word) for word in words)


def resolve(home: Path, *command: str) -> str | None:
    """Run a resolver that downloads nothing, by this machine's network and none of its settings.

    Returns why it failed, if it did; an index that is not reached ends it as a skip.
    """
    network = re.compile(r"PATH|SSL_CERT_(FILE|DIR)|\w+_proxy", re.IGNORECASE)
    kept = {name: value for name, value in os.environ.items() if network.fullmatch(name)}
    ours = {"HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "UV_SYSTEM_CERTS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=kept | ours, capture_output=True, text=True, timeout=BOUND_S,
        check=False,
    )  # fmt: skip
    unreachable = r".*(?:dns error|error sending request|Failed to establish|Retrying \().*"
    if done.returncode and (reason := re.search(unreachable, done.stderr)):
        pytest.skip(f"{command[-1]}: {reason[0].strip()}")
    return f"{command}: {done.stderr[-2000:]}" if done.returncode else None


def resolve_by_uv(home: Path, words: list[str]) -> list[str]:
    """Ours for the oldest and the newest Python, which wheels of other packages follow later."""
    command = [find_uv_bin(), "pip", "install", "--no-config", "--dry-run", *words]
    command += ["--python", sys.executable, "--only-binary=:all:", "--no-binary=dsv4kv"]
    if "--target" not in words:
        command += ["--target", str(home / "target")]
    pythons = (PYTHONS[0], PYTHONS[-1]) if is_ours(words) else PYTHONS[:1]
    failed = (resolve(home, *command, "--python-version", python) for python in pythons)
    return [each for each in failed if each]


@pytest.mark.parametrize("index", sorted({index_of(line) for line in LINES}))
def test_lines_that_install_resolve(index: str, tmp_path: Path) -> None:
    """Ours that differ in extras alone are resolved together, with pins and without."""
    together: dict[str, list[str]] = {}
    for line in (each for each in LINES if index_of(each) == index):
        words = [re.sub(r"^dsv4kv", ".", word) for word in shlex.split(line)]
        name = f"ours {'constraints.txt' in words}" if is_ours(words) else line
        together.setdefault(name, []).extend(words)
    with ThreadPoolExecutor(4) as pool:  # which wait for the network
        failed = pool.map(partial(resolve_by_uv, tmp_path), together.values())
    assert list(chain.from_iterable(failed)) == []


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_dependency_is_pinned_and_nothing_else() -> None:
    asked = {canonicalize_name(each.name) for each in ASKED} - {PROJECT["name"]}
    assert set(pins()) == asked


def test_pins_are_versions_that_the_package_accepts() -> None:
    known = pins()
    for each in ASKED:
        if each.name != PROJECT["name"]:
            assert each.specifier.contains(known[canonicalize_name(each.name)]), str(each)
