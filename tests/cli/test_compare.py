"""``dsv4kv compare``: what is printed and returned, and what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import load_record, save_record
from tests.bench.compare.launched import make_launched_record
from tests.bench.settings import TINY
from tests.cli import shell

run = partial(shell.invoke, "compare")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def save(name: str, record: RunRecord) -> str:
    return str(save_record(record.model_copy(update={"run_id": name}), Path()).path)


def test_a_single_launch_is_unclear_and_ends_with_3() -> None:
    before = save("before", make_launched_record(seed=1))
    single = save("single", make_launched_record(1, seed=2, launches=[]))
    result = run(before, single)
    assert result.exit_code == 3
    assert "! UNCLEAR: " in result.stdout
    rows = json.loads(run(before, single, "--json").stdout)["rows"]
    assert {row["reason"] for row in rows} == {"too few launches: 8 verdicts need 5 a side"}
    assert {row["interval"] for row in rows} == {None}


SETTINGS = [word for setting in (*TINY, "workload.data=none") for word in ("--set", setting)]


def test_two_configurations_are_measured_in_turns_kept_and_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsv4kv.view.html.to_svg", lambda *_: "")  # charts take seconds
    Path("other.yaml").write_text("cache: {block_tokens: 256, max_context_tokens: 1024}\n")
    result = run("--ab", "config:smoke", "other.yaml", *SETTINGS, "--set", "workload.trace=null",
                 "--launches", "1", "--html", "page.html", "--verbose")  # fmt: skip
    assert result.exit_code == 3
    assert "config: cache.block_tokens: 128 against 256" in result.stdout
    assert "--force" not in result.stdout
    assert "one pair of launches" in re.sub(r"\s+", " ", result.stdout)
    assert "launches with interleaved steps" in re.sub(r"\s+", " ", result.stdout)
    paths = re.findall(r"^record of [AB] \S+: (.*)$", result.stderr, re.M)
    records = [load_record(Path(path)) for path in paths]
    assert [len(record.launches) for record in records] == [1, 1]
    assert Path("page.html").read_text().count("KV cache of ") >= 2


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_a_duel_of_revisions_keeps_what_there_is_and_leaves_no_worktree(
    folder: Path, name: signal.Signals
) -> None:
    clone, temporary = folder / "clone", folder / "tmp"
    (clone / "dsv4kv").mkdir(parents=True)
    temporary.mkdir()
    (clone / "dsv4kv" / "__main__.py").write_text("import time; time.sleep(600)")
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for arguments in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "one")):
        subprocess.run(("git", *identity, *arguments), cwd=clone, check=True)
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit it
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", "compare", "--ab", "HEAD", "HEAD", "--launches", "2"],
        cwd=clone,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, ignored)
    while not list(temporary.glob("dsv4kv-launch-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(name)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert list(temporary.iterdir()) == []
    trees = subprocess.run(
        ("git", "worktree", "list"), cwd=clone, capture_output=True, text=True, check=True
    )
    assert len(trees.stdout.splitlines()) == 1
