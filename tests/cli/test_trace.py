"""``dsv4kv trace`` tells, converts and makes traces; every number it prints has a unit."""

import gzip
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import trace as command
from dsv4kv.config.bench import Synthetic
from dsv4kv.errors import TraceError
from dsv4kv.traces import read_trace, resolve_trace
from dsv4kv.traces import synth as chat
from dsv4kv.traces.synth import synthesize

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.0319600,110,27
"""


@pytest.fixture(autouse=True)
def _plain_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    Path("azure.csv").write_text(AZURE)


def run(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(command.app, arguments)
    if result.exit_code != exit_code and result.exception:
        raise result.exception
    assert result.exit_code == exit_code
    return result


def test_info_refuses_a_second_line_without_end_before_the_digest_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hashlib.file_digest", None)
    with Path("sparse.jsonl").open("w") as file:
        file.write('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n')
        file.truncate(2**34)
    result = CliRunner().invoke(command.app, ["info", "sparse.jsonl"])
    assert "sparse.jsonl:2: the line is longer than 64 MiB" in str(result.exception)


def test_convert_takes_the_part_asked_for_and_keeps_its_times() -> None:
    run("convert", "azure.csv", "own.jsonl.gz", "--skip", "1", "--limit", "1")
    assert list(read_trace("own.jsonl.gz")) == list(read_trace("azure.csv"))[1:2]


def test_convert_sorts_by_arrival_when_asked_to() -> None:
    lines = AZURE.splitlines(keepends=True)
    Path("azure.csv").write_text(lines[0] + "".join(reversed(lines[1:])))
    run("convert", "azure.csv", "own.jsonl", "--sort")
    assert [request.input_tokens for request in read_trace("own.jsonl")] == [4808, 3180, 110]


def test_convert_leaves_nothing_behind_when_the_source_is_defective() -> None:
    Path("azure.csv").write_text(AZURE + "2023")
    with pytest.raises(TraceError, match=r"azure\.csv:5: the row has 1 fields"):
        run("convert", "azure.csv", "own.jsonl")
    assert os.listdir() == ["azure.csv"]  # noqa: PTH208


def test_a_trace_is_not_written_into_the_folder_that_it_is_read_from() -> None:
    Path("weka").mkdir()
    Path("weka/one.json").write_text("{}")
    with pytest.raises(TraceError, match="inside weka, whose files are the trace"):
        run("convert", "weka", "weka/more.json")
    assert not Path("weka/more.json").exists()


def test_synth_takes_settings_of_the_tree() -> None:
    run("synth", "made.jsonl", "--seed", "7", "--set", "requests=20", "--set", "input.mean=600")
    expected = Synthetic.model_validate({"requests": 20, "input": {"mean": 600}})
    assert list(read_trace("made.jsonl")) == list(synthesize(expected, 7))


def test_the_documented_call_makes_the_shipped_trace() -> None:
    call = (
        "dsv4kv trace synth configs/traces/chat.jsonl.gz --shape chat --conversations 12 --seed 0"
    )
    assert chat.__doc__ is not None
    assert call in chat.__doc__
    run("synth", "chat.jsonl.gz", *call.split()[4:])
    shipped = resolve_trace("builtin:chat").read_bytes()
    assert gzip.decompress(Path("chat.jsonl.gz").read_bytes()) == gzip.decompress(shipped)


def test_timestamps_that_many_requests_share_are_a_warning(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": 512, "output_length": 1, "hash_ids": [{}]}}\n'
    times = [3000 * (number // 8) - number // 8 % 2 for number in range(80)]  # ± 1 ms, as recorded
    path = tmp_path / "rounded.jsonl"
    path.write_text("".join(line.format(ms, n) for n, ms in enumerate(times)))
    result = CliRunner(env={"COLUMNS": "100"}).invoke(command.app, ["info", str(path)])
    assert "! 8.0 requests share a timestamp on average, 3 s apart" in result.stdout
