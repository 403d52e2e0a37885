"""``dsv4kv explain``: files are recognised by content, and answered as by their own commands."""

import errno
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.runs.store import dumps
from tests.cli import shell
from tests.diagnose.faults.results import SGLANG as RUN
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33
from tests.profile.exports import two_replays
from tests.profile.traces import cpu_events, save
from tests.runs.records import make_case, make_record

run = partial(shell.invoke, "explain")

SERVE = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --max-model-len 128K"
DEEP = "python -m sglang.launch_server --model deepseek-ai/DeepSeek-V4-Flash --tp 8"
ATTENTION = "--dp 8 --enable-dp-attention"
COMPOSE = f"services:\n  v4:\n    image: vllm/vllm-openai:v0.33.0\n    command: {SERVE[11:]}\n"
TEXTS = {
    "compose": COMPOSE,
    "new": "\n".join(VLLM_0_33),
    "old": "\n".join(VLLM_0_26),
    "refused": "\n".join((*VLLM_0_33[:2], *REFUSAL)),
    "result": json.dumps(RUN),
    "run": dumps(make_record(make_case())),
    "script": f"#!/bin/sh\n{SERVE}\n",
    "sglang": "\n".join(SGLANG),
    "two": f"{SERVE}\n{DEEP} {ATTENTION}\n",
}
KINDS = {
    "compose": "command",
    "new": "log",
    "result": "result",
    "run": "profile",
    "script": "command",
    "sglang": "log",
    "timeline": "profile",
    "export": "profile",
}
"""Of files whose names say nothing."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        Path(name).write_text(text, encoding="utf-8")
    shutil.move(save(tmp_path / "timeline.json", cpu_events()), "timeline")
    shutil.move(two_replays().save(tmp_path / "export.sqlite"), "export")
    return tmp_path


def document(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_recognised_by_its_content(name: str) -> None:
    assert document(name)["kind"] == KINDS[name]


def test_sizes_are_those_of_budget() -> None:
    for given in ("script", "compose", SERVE):
        words = ["budget", "--command", given, "--gpu", "b200", "--json"]
        sizes = json.loads(CliRunner().invoke(app, words).stdout)
        assert document(given, "--gpu", "b200")["answers"] == [sizes]


def test_faults_are_those_of_lint() -> None:
    told = ["--engine", "sglang:0.5.20"]  # what the sizes of this log tell
    for name, words in (("two", []), ("sglang", told), ("result", [])):
        linted = json.loads(CliRunner().invoke(app, ["lint", name, *words, "--json"]).stdout)
        assert document(name)["faults"] == linted["findings"]
    assert document("two")["faults"]


def test_the_line_for_lint_has_what_decided_the_faults() -> None:
    tiered = "enable_hierarchical_cache=True, hicache_size=100, max_running"
    Path("tiered").write_text(TEXTS["sglang"].replace("max_running", tiered), encoding="utf-8")
    shown = run("tiered", "--gpu", "h200").stdout
    assert "dsv4kv lint tiered --gpu h200 --engine sglang:0.5.20" in shown
    shown = run("tiered", "--engine", "sglang:0.5.23").stdout
    assert "dsv4kv lint tiered --engine sglang:0.5.23" in shown


def test_standard_input_is_a_file_like_any_other() -> None:
    given, named = run("-", input=TEXTS["sglang"]).stdout, run("sglang").stdout
    given, named = (" ".join(each.split()) for each in (given, named))
    assert given.partition(". ")[0] == named.partition(". ")[0].replace("sglang: ", "-: ", 1)
    assert "dsv4kv lint" not in given


def test_it_ends_with_1_where_something_does_not_fit_or_is_faulty() -> None:
    assert run("new").exit_code == 0
    assert run("refused").exit_code == 1
    assert run(f"{DEEP} {ATTENTION}").exit_code == 1
    unset = f"{DEEP.replace('Flash', 'Pro').replace('--tp 8', '--tp $RANKS')} --context-length 1M"
    helped = run(unset)  # on eight GPUs, with other flags
    assert (helped.exit_code, "To make it fit" in helped.stdout) == (1, True)
    nowhere = run(f"{unset} --speculative-algorithm EAGLE", "--gpu", "rtx-4090")
    assert nowhere.exit_code == 1


def test_standard_input_without_end_is_read_to_a_bound() -> None:
    program = "from dsv4kv.cli import main; main()"
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            [sys.executable, "-c", program, "explain", "-"],
            stdin=endless,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: -: is larger than 256 MiB")


def test_what_is_no_file_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no such file" in run("gone").stderr
    known = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> Any:
        if path.name == "locked":  # below a folder that may not be searched
            raise PermissionError(errno.EACCES, "Permission denied")
        return known(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert "locked: cannot be read (Permission denied)" in run("locked").stderr
    assert "/dev/null: it is a folder, a pipe or a device" in run("/dev/null").stderr


TRTLLM = """\
engine.yaml: |
  custom_tokenizer: deepseek_v4
  kv_cache_config: {free_gpu_memory_fraction: 0.3, tokens_per_block: 128}
---
command: [python3, -m, dynamo.trtllm]
args: [--model-path, DeepSeek-V4-Flash, --tensor-parallel-size, "4", --max-batch-size, "4",
  --max-seq-len, "2048", --kv-block-size, "128", --extra-engine-args, /config/engine.yaml]
"""


@pytest.mark.parametrize("tokens", ["128", "256"])
def test_a_launch_line_has_only_flags_of_its_command(tokens: str) -> None:
    """trtllm-serve takes its block from a file alone: 128 is its own, 256 no line says."""
    Path("agg.yaml").write_text(TRTLLM.replace("128", tokens))
    *_, said, line = run("agg.yaml", "--gpu", "b200").stdout.splitlines()
    assert "kv_block_size" not in line
    assert line.startswith("trtllm-serve" if tokens == "128" else "dsv4kv budget --command")
    assert ("flags that change no size omitted" in said) == (tokens == "128")


@pytest.mark.parametrize("partition", ["", "8,9,9,8,6", "8,8,8,8,8"])
def test_stages_that_are_not_sized_are_not_said_to_be_refused(partition: str) -> None:
    line = "vllm serve deepseek-ai/DeepSeek-V4.1-Flash --pipeline-parallel-size 5"
    variable = f"VLLM_PP_LAYER_PARTITION={partition} " * bool(partition)
    done = run(f"{variable}{line}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "starts of vLLM with such stages are known, and are not sized" in done.stderr
    assert "stages that begin at layer 2, 8, 14, 20 (VLLM_PP_LAYER_PARTITION)" in done.stderr
    sized = run(f"VLLM_PP_LAYER_PARTITION=2,6,6,6,20 {line}", "--gpu", "b300")
    assert "1 " in sized.stdout


TWO = "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 2 --max-model-len {}\n"
LOADED = "Model loading took 75.5 GiB memory and 12.3 seconds"
SECRET = '{"kv_connector":"x","extra":{"password":"hunter2"}}'
NO_MEMORY = """\
vLLM API server version 0.33.0
non-default args: {'model': 'v4-pro', 'tensor_parallel_size': 4, 'max_model_len': 131072}
ValueError: No available memory for the cache blocks.
"""


@pytest.mark.parametrize(
    ("text", "words", "code", "said", "never"), [
        ('{"schema_version": "1.0", "request_latency": {"unit": "ms", "avg": 48.2}}', "", 7,
         ["this is AIPerf's summary"], ""),
        ('{"a":' * 100_000, "", 2, ["text is not recognised (no launch command is longer"], ""),
        ('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}', "", 2,
         ["is a trace (mooncake)"], ""),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1,9,2", "", 2,
         ["is a trace (azure)"], ""),
        (TEXTS["new"], "--gpu b200 -v", 0, ["GPU, of formats not printed b200 given"], ""),
        (f"{TEXTS['new']}\n{LOADED}", "--gpu h100", 2,
         ["GiB on one GPU, and h100 has 79.2 GiB: name the log's GPU"], ""),
        (SERVE, "-v", 0, ["9 in 10 starts", "exact with --kv-memory of the start's log"], ""),
        (f"{SERVE} --kv-transfer-config '{SECRET}'", "--json", 0, ["password"], "hunter2"),
        (f"{SERVE} --kv-transfer-config '{SECRET}'", "--verbose", 0, ["--kv-transf"], "hunter2"),
        (TWO.format("128K") + TWO.format("x"), "--gpu h200", 0,
         ["requests of 131,072 tokens fit",
          "text: vllm deepseek-ai/DeepSeek-V4-Flash (line 2): --max-model-len"],
         "no GPU is named"),
        (TWO.format("128K"), "", 0, ["no GPU is named: h200 is taken"], ""),
        (NO_MEMORY, "", 1, ["weights and activations leave no memory for the cache"], ""),
    ]
)  # fmt: skip
def test_what_a_file_is_or_lacks_is_said(
    text: str, words: str, code: int, said: list[str], never: str
) -> None:
    """Of a command that is refused beside another, too; a password is never shown."""
    Path("text").write_text(text, encoding="utf-8")
    done = run("text", *words.split())
    told = " ".join(done.output.split())
    assert done.exit_code == code, told
    assert [part for part in said if part not in told] == []
    assert not never or never not in told
