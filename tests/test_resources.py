"""Shipped files are found from a source tree and from an installed package."""

from pathlib import Path

import pytest

from dsv4kv import resources


@pytest.mark.parametrize("folder", ["configs", "kernels", "results/sass"])
def test_a_shipped_folder_is_there(folder: str) -> None:
    found = resources.shipped(folder)
    assert found.is_dir()
    assert any(found.iterdir())


def test_the_model_presets_are_shipped() -> None:
    assert (resources.shipped("configs") / "models" / "v4-flash.yaml").is_file()


def test_files_inside_an_installed_package_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "dsv4kv"
    (package / "configs").mkdir(parents=True)
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.shipped("configs") == package / "configs"
    assert resources.shipped("kernels") == tmp_path / "kernels"
