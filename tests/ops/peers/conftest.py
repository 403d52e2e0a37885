"""Packages that are not installed, made up in a folder of the test's own."""

import sys
from collections.abc import Callable, Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

WritePackage = Callable[..., None]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritePackage]:
    """Writes an importable module with its packages: ``write_module("a.b", "source")``."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(module: str, source: str) -> None:
        *packages, name = module.split(".")
        folder = tmp_path
        for package in packages:
            folder /= package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{name}.py").write_text(source)
        invalidate_caches()

    yield write
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in {path.stem for path in tmp_path.iterdir()}:
            del sys.modules[module]
