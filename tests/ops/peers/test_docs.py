"""What docs/backends.md says is so."""

import re
from pathlib import Path

import pytest
import torch

from dsv4kv.ops.check import check_backend
from dsv4kv.ops.registry import resolve_backend
from tests.ops.operations import CACHES
from tests.ops.peers.test_peers import OPERATIONS

PAGE = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()


def test_the_example_equals_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_gather.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    resolved = resolve_backend("my_gather.py:gather_topk", "cpu")
    assert resolved.foreign == ("gather_topk",)
    for cache in ("as shipped", "long blocks"):
        assert check_backend(resolved, CACHES[cache], torch.device("cpu")) == []


def test_the_operations_of_every_package_are_listed() -> None:
    table = PAGE.partition("| backend | brings |")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    name = ""
    for row in table.splitlines()[2:]:
        cells = row.split("|")
        name = cells[1].strip(" `") or name
        listed.setdefault(name, set()).update(re.findall(r"`(\w+)`", cells[2]))
    assert listed == OPERATIONS
