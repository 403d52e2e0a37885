from functools import partial
from pathlib import Path

import pytest

from dsv4kv.config.load import load_config, shipped_names
from tests.cli import shell

run = partial(shell.invoke, "config")


@pytest.mark.parametrize("name", shipped_names())
def test_what_show_prints_is_the_same_configuration(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(run("show", name).output, encoding="utf-8")
    assert load_config(str(path)).config == load_config(name).config
