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


def test_a_known_fault_is_a_sentence_a_row_and_exit_code_1() -> None:
    done = run(FAULTY, "--engine", "vllm:0.22")
    text = " ".join(done.output.split())
    assert done.exit_code == 1
    assert text.startswith("✗ 3 faults found")
    assert "✗ With drafts (MTP, DSpark) no prompt is ever found in the prefix" in text
    assert "It costs: 0.0 % of prompt tokens found instead of 72.7 %" in text
    assert "vllm-drafts-no-hits yes >=0.21,<0.23 0.23 github.com/vllm-project/vllm" in text


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


@pytest.mark.parametrize("flag", ["-sc", "--speculative_config"])
def test_a_flag_is_known_by_all_of_its_spellings(flag: str) -> None:
    command = FAULTY.replace("--speculative-config", flag)
    done = run(command, "--engine", "vllm:0.22", "--json")
    assert "vllm-drafts-no-hits" in {each["id"] for each in json.loads(done.stdout)["findings"]}


def test_every_server_of_a_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(
        f"{FAULTY}\nsglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --hicache-size 9\n"
    )
    done = run(path, "--json", "--engine", "vllm:0.22")
    looked = json.loads(done.stdout)["looked_at"]
    assert [(each["engine"], each["version"]) for each in looked] == [
        ("vllm", "0.22"),
        ("sglang", None),
    ]


def test_a_log_without_arguments_says_that_it_has_none(tmp_path: Path) -> None:
    path = tmp_path / "startup.log"
    path.write_text(
        "INFO 11-01 10:00:00 [a.py:1] vLLM API server version 0.22.0\n"
        "INFO 11-01 10:00:01 [a.py:1] GPU KV cache size: 63,859 tokens\n"
    )
    done = run(path)
    assert done.exit_code == 0
    assert "no arguments in it: give the command, too" in " ".join(done.output.split())


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


def test_a_file_of_several_documents_has_images_and_variables(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(f"""\
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.22.1
    command: [sh, -c]
    args:
    - {FAULTY}
---
kind: Service
""")
    found = json.loads(run(path, "--json").stdout)
    assert found["looked_at"][0]["version"] == "0.22.1"
    assert all(each["sure"] for each in found["findings"])
