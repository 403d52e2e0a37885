"""``dsv4kv lint`` says what is wrong first, ends with a verdict, and reads what it is given."""

import json
from functools import partial
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError
from tests.cli import shell

run = partial(shell.invoke, "lint", width=110)

pytestmark = pytest.mark.usefixtures("fresh_faults")
FAULTY = 'vllm serve deepseek-ai/DeepSeek-V4-Flash --speculative-config \'{"method":"mtp"}\''


@pytest.mark.parametrize("given", ["command", "log", "result"])
def test_what_lint_printed_itself_is_recognised(given: str, tmp_path: Path) -> None:
    texts = {
        "command": FAULTY,
        "log": "Traceback (most recent call last):\nValueError: No common block size for 16\n",
        "result": json.dumps({"completed": 8, "duration": 9.0, "failed": 1}),
    }
    path, own = tmp_path / "given.txt", tmp_path / "lint.json"
    path.write_text(texts[given])
    for text in (run(path, "--json").stdout, '{"looked_at":1,"known_faults":1,"findings":5}'):
        own.write_text(text)
        done = run(own)
        assert done.exit_code == 2
        assert "this is what lint --json printed, with " in " ".join(done.stderr.split())


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 99, b'{"completed": 1', b"[]", b"{}"])
def test_a_file_of_something_else_gets_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(content)
    done = run(path)
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == ConfigError.exit_code
    assert "error: " in done.output


@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 1e300, [None, "a"], [[1], [2]]])
def test_a_result_of_odd_values_is_looked_at(value: object, tmp_path: Path) -> None:
    names = ("output_lens", "input_lens", "errors", "dataset_name", "median_ttft_ms", "failed")
    odd = {"completed": 8, "duration": 1.0, "max_concurrency": 2} | dict.fromkeys(names, value)
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{json.dumps(odd)}\n{json.dumps(odd)}\n")
    assert isinstance(run(path).exception, SystemExit | None)
