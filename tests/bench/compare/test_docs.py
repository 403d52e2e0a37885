"""docs/compare.md: its outputs are what is printed."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.runs.store import save_record
from tests.bench.compare.launched import make_launched_record
from tests.runs.records import make_environment

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "compare.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CHANGES: dict[str, dict[str, Any]] = {
    "slower.json": {"git_sha": "89abcdef0123" + 28 * "0"},
    "elsewhere.json": {"cpu": "Arm Neoverse-V2", "cpu_count": 72},
}


@pytest.mark.parametrize("other", CHANGES)
def test_the_outputs_of_the_page_are_those_of_the_program(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clean = make_environment(git_dirty=False)
    before = make_launched_record(seed=1, run_id="before", environment=clean)
    after = make_launched_record(
        seed=2,
        run_id=other.removesuffix(".json"),
        factors={"flush": 1.1},
        environment=clean.model_copy(update=CHANGES[other]),
    )
    for record in (before, after):
        save_record(record, Path())
    terminal = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner(env=terminal).invoke(app, ["compare", "before.json", other])
    told = re.sub(r" +$", "", result.output, flags=re.MULTILINE)
    assert told in [text for _, text in BLOCKS]
