"""Every package that an installation asks for has one version, and it is one that is allowed."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ASKED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]


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


def test_pins_are_in_order() -> None:
    assert list(pins()) == sorted(pins())
