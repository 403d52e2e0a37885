import gzip
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dsv4kv.cli import app, progress
from dsv4kv.cli.progress import Watcher


@pytest.fixture(autouse=True)
def every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 10.0)


def watch(*, terminal: bool, total: int | None = 100) -> str:
    """What a count to 100 tokens prints that takes a second a token."""
    seconds, stream = 0.0, StringIO()
    console = Console(file=stream, force_terminal=terminal, width=80)
    with Watcher(console, "bench", "tokens", total, clock=lambda: seconds) as watcher:
        watcher.start(total)
        for _ in range(100):
            seconds += 1
            watcher.advance(1)
    return stream.getvalue()


def test_a_log_gets_a_line_every_ten_seconds_with_the_time_left() -> None:
    lines = watch(terminal=False).splitlines()
    assert lines[:2] == [
        "bench: 10 of 100 tokens, 10 s, about 90 s left",
        "bench: 20 of 100 tokens, 20 s, about 80 s left",
    ]
    assert lines[9:] == ["bench: 100 of 100 tokens, 100 s"]


@pytest.mark.parametrize("terminal", [True, False])
def test_no_time_is_left_of_what_nobody_knows_the_end_of(terminal: bool) -> None:
    printed = watch(terminal=terminal, total=None)
    assert "100 tokens" in printed
    assert "left" not in printed
    assert " of " not in printed


TRACE = "".join(
    json.dumps({"timestamp": n, "input_length": 600, "output_length": 1, "hash_ids": [1, n + 2]})
    + "\n"
    for n in range(2000)
)
COMMANDS = [
    ("info TRACE", ["reading TRACE"]),
    ("mrc TRACE --rule vllm", ["reading TRACE", "measuring"]),
    ("convert TRACE out.jsonl", ["converting TRACE"]),
    ("convert TRACE out --to mooncake --sort", ["converting TRACE"]),
]


@pytest.mark.parametrize(("command", "named"), COMMANDS)
@pytest.mark.parametrize("compressed", [False, True])
def test_reading_a_trace_says_how_far_it_is(
    command: str,
    named: list[str],
    compressed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    content = TRACE.encode()
    Path("TRACE").write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    done = CliRunner().invoke(app, ["trace", *command.split()])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if " of " in line]
    assert list(dict.fromkeys(line.partition(":")[0] for line in lines)) == named
