"""Replays beside each other: exact where times are a model's, and what they reused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.runs.store import load_record, save_record
from tests.bench.compare.launched import make_launched_record
from tests.runs.records import make_environment

SMALL = ("replay", "builtin:chat", "--quiet", "--gpus", "8", "--memory", "8GiB")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        app, [*arguments]
    )


def replay(name: str, *options: str) -> str:
    done = run(*SMALL, *options, "--json", name)
    assert done.exit_code == 0, done.output
    return name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_replay_that_reuses_less_is_slower_and_says_what_it_lost() -> None:
    before, after = replay("a.json"), replay("b.json", "--set", "prefix.reuse=false")
    done = run("compare", before, after)
    assert done.exit_code == 1
    assert "config: prefix.reuse: True against False" in done.stdout
    assert "(simulated)" in done.stdout
    assert "exact" not in done.stdout
    assert "±" not in done.stdout
    saved = {
        name: load_record(Path(name)).cases[0].replay.reuse.saved_tokens  # type: ignore[union-attr]
        for name in (before, after)
    }
    assert saved[before] > saved[after] == 0
    line = next(row for row in done.stdout.splitlines() if row.startswith("prompt tokens saved"))
    assert line.split()[-2:] == ["0.00", "%"]


def test_times_of_a_clock_stand_beside_what_they_are_right_within() -> None:
    before, after = replay("a.json"), replay("b.json", "--gpu", "h100")
    told = run("compare", before, after, "--verbose").stdout
    row = next(line for line in told.splitlines() if line.startswith("tpot"))
    assert row.count("÷1.4 … ×1.4") == 2
    assert "changes have no interval; next to a time, its error" in " ".join(told.split())
    document = json.loads(run("compare", before, after, "--json").stdout)
    within = {each["name"]: each["within"] for each in document["rows"]}
    assert within == {"ttft": [2.1, 2.1], "tpot": [1.4, 1.4], "latency": [1.4, 1.4]}


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_replay_beside_a_bench_is_refused_in_one_sentence(
    force: tuple[str, ...], turned: bool
) -> None:
    save_record(make_launched_record().model_copy(update={"run_id": "bench"}), Path())
    sides = ["bench.json", replay("replay.json")]
    done = run("compare", *(reversed(sides) if turned else sides), *force)
    assert done.exit_code == 2
    assert done.stderr.count("error: ") == 1
    assert "compare records of one command." in " ".join(done.stderr.split())


# ---- docs/compare.md: its outputs are what is printed -------------------------------------------

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
