"""``dsv4kv budget`` answers at once, in any direction, with units, and exits with its verdict."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from dsv4kv.budget.gpus import gpu_names
from dsv4kv.cli import app
from dsv4kv.files import shipped
from tests.cli.test_shell import imported_by
from tests.model.test_huggingface import published

GIB = 2**30
_MANY = "--max-running-requests 4096 --chunked-prefill-size 16384 --swa-full-tokens-ratio 0.1"
TERMINAL = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner(env=TERMINAL).invoke(app, ["budget", *arguments])
    assert result.exit_code == exit_code, result.output
    return result


def document(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    found = json.loads(run(*arguments, "--json", exit_code=exit_code).stdout)
    assert isinstance(found, dict)
    return found


_FP8 = "--main-format fp8_ds_mla --window-format fp8_ds_mla --indexer-format"
_BF16 = "--main-format bf16 --window-format bf16 --indexer-format bf16"


@pytest.mark.parametrize(
    ("asked", "gib"),
    [
        (f"v4-flash {_BF16}", 6.724),
        (f"v4-flash {_FP8} fp8", 3.763),
        (f"v4-flash {_FP8} mxfp4", 3.435),
        (f"v3.2 {_BF16}", 83.875),
        (f"v3.2 {_FP8} fp8", 46.941),
    ],
)
def test_a_request_of_a_million_tokens_takes_its_published_gibibytes(
    asked: str, gib: float
) -> None:
    """arXiv:2606.19348, and vLLM's 656 + 132 B entries for V3.2 (46.94 GiB)."""
    found = document("--context", "1M", "--concurrency", "1", "--model", *asked.split())
    assert round(found["request"]["cached_bytes"] / GIB, 3) == gib


def test_sglangs_role_decides_the_formats_of_v41() -> None:
    """sglang#39123: flashmla_mega for a role, though attention is tensor parallel."""
    serve = "sglang serve --model-path deepseek-ai/DeepSeek-V4.1-Flash --tp 4"
    sizes = [
        document("--command", f"{serve}{role}", "--gpu", "b200")["request"]
        for role in ("", " --disaggregation-mode decode")
    ]
    assert [size["marginal_bytes_per_gpu"] for size in sizes] == [1630, 890]


@pytest.mark.parametrize("model", ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"])
def test_a_published_config_gives_the_presets_answer(model: str, tmp_path: Path) -> None:
    """All of it but where it comes from; the file of V4.1 kept here names no engram tables."""
    question = ("--gpus", "8", "--context", "64K", "--model")
    path = published(model)
    if model == "v4.1-flash":
        whole = json.loads(path.read_text("utf-8"))
        weights = shipped("configs") / "weights" / f"{model}.yaml"
        kept = yaml.safe_load(weights.read_text("utf-8")).items()
        whole["text_config"] |= {key: value for key, value in kept if key.startswith("engram")}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(whole), "utf-8")
    preset, file = document(*question, model), document(*question, str(path))
    for found in (preset, file):
        found["inputs"]["model"] = found["model"] = ""
        found["weights"] |= {"source": "", "host_bytes": 0}
        for line in found["peak"]["lines"]:
            line["source"] = "" if line["what"] == "weights" else line["source"]
    assert file == preset


def test_a_sweep_is_written_as_svg_and_html(tmp_path: Path) -> None:
    axis = ["--gpus", "8", "--axis", "context=4K,1M"]
    for name in ("a.svg", "a.html"):
        path = tmp_path / name
        assert f"written: {path}" in run(*axis, "--chart", str(path)).output.replace("\n", "")
        assert path.read_text(encoding="utf-8")
    rows = json.loads(run(*axis, "--json").stdout)
    assert [row["context"] for row in rows] == ["4K", "1M"]


def test_a_flag_of_the_engine_is_an_axis() -> None:
    asked = ["--gpus", "8", "--engine", "vllm", "--context", "1M", "--axis"]
    of = {
        name: json.loads(run(*asked, f"{name}=8k,2K", "--json").stdout)
        for name in ("max-num-batched-tokens", "max_num_batched_tokens", "step-tokens")
    }
    assert of["max-num-batched-tokens"] == of["max_num_batched_tokens"]
    assert [row["step-tokens"] for row in of["max-num-batched-tokens"]] == ["8000", "2048"]
    most = json.loads(run(*asked[:-1], "--max-num-batched-tokens", "2K", "--json").stdout)
    assert of["step-tokens"][1]["max_concurrency"] == most["max_concurrency"]
    assert most["max_concurrency"] == of["max-num-batched-tokens"][1]["max_concurrency"]


def test_every_gpu_of_the_catalogue_can_be_asked_for() -> None:
    rows = json.loads(run("--gpus", "64", "--tp", "8", "--axis", f"gpu={','.join(gpu_names())}",
                          "--context", "4K", "--json").stdout)  # fmt: skip
    assert len(rows) == len(gpu_names())
    assert all(row["problem"] is None for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [
        "--hbm 4GiB",  # on no number of GPUs
        "--gpus 1",
        "--gpus 1 --json",
        "--gpus 8 --context 1M --concurrency 64",
        "--gpus 8 --context 128K --concurrency 3000 --engine vllm:0.33",
        "--gpus 8 --axis context=4K,1M --concurrency 64",
        "--axis hbm=4GiB,141GiB --json",
        "--axis hbm=3GiB,4GiB",
    ],
)
def test_what_does_not_fit_ends_with_1_however_it_was_asked(arguments: str) -> None:
    run(*arguments.split(), exit_code=1)


def test_a_combination_of_a_sweep_that_cannot_be_asked_is_no_verdict() -> None:
    run("--gpus", "8", "--context", "4K", "--axis", "tp=8,3")


COMMAND = (
    "vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size 8 --max-model-len 128K "
    "--max-num-batched-tokens 16384 --kv-offloading-size 100 --trust-remote-code"
)


def test_a_launch_command_is_answered_with_what_each_flag_costs() -> None:
    found = document("--gpu", "h200", "--command", COMMAND, exit_code=1)
    words = {row["word"]: row for row in found["command"]["counted"]}
    assert words["--max-num-batched-tokens"]["takes_bytes_per_gpu"] > 0
    assert found["command"]["not_known_to_change_sizes"] == ["--trust-remote-code"]
    assert (found["context_tokens"], found["layout"]["label"]) == (131_072, "TP8")
    found = document("--context", "64K", "--dp", "2", "--command", COMMAND)  # on top of it
    assert (found["context_tokens"], found["layout"]["label"]) == (65_536, "TP8 DP2 EP16")


@pytest.mark.parametrize(
    ("serve", "given", "meant"),
    [
        ("vllm serve deepseek-ai/DeepSeek-V4-Pro", "--tensor-paralel-size 8",
         "--tensor-parallel-size"),
        ("vllm serve deepseek-ai/DeepSeek-V4-Flash", "--max-num-sqs 8", "--max-num-seqs"),
        ("sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash", "--tp-sise=8", "--tp-size"),
        ("trtllm-serve deepseek-ai/DeepSeek-V4-Flash", "--enable_atention_dp",
         "--enable_attention_dp"),
        ("vllm serve deepseek-ai/DeepSeek-V4-Flash", "--data-parallel-rank 8", None),
        ("sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash", "--cuda-graph-bs 8", None),
    ],
)  # fmt: skip
def test_a_flag_that_is_nearly_one_of_sizes_is_named_first(
    serve: str, given: str, meant: str | None
) -> None:
    asked = ["budget", "--command", f"{serve} {given}", "--gpu", "b300", "--context", "64K"]
    shown = CliRunner(env=TERMINAL).invoke(app, asked).stdout
    word = re.split("[ =]", given)[0]
    said = f"! {word} is not counted: did you mean {meant}?"
    assert (said in shown.splitlines()[1:4]) == (meant is not None)
    assert ("did you mean" in shown) == (meant is not None)


def test_an_answer_needs_neither_torch_nor_numpy() -> None:
    asked = (
        ["--model", "v4-flash", "--gpu", "h200"],
        ["--json"],
        ["--gpus", "8", "--engine", "vllm:0.33"],
    )
    told = imported_by(["budget", "--help"], *(["budget", *words] for words in asked))
    assert told == [[], *[["pydantic"]] * 3]


@pytest.mark.parametrize(
    "layout", ["--tp 8", "--tp 1 --dp 8", "--tp 4 --max-total-tokens 30118400"]
)
@pytest.mark.parametrize("flags", ["", "--mem-fraction-static 0.95", _MANY])
def test_no_size_is_negative(layout: str, flags: str) -> None:
    command = f"python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro {layout}"
    words = ["budget", "--gpu", "h200", "--command", f"{command} {flags}", "--verbose"]
    printed = CliRunner(env=TERMINAL).invoke(app, words).output
    assert "per GPU" in printed
    assert not re.search(r"[-−]\d[\d.]* [KMGT]?i?B\b", printed)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "✓ 1 request of 1,048,576 tokens fits on"),
        ("--gpu-memory-utilization 0.91", "! 1 request of 1,048,576 tokens fits (none in a start"),
        (
            "--context 66560",
            "✓ 26 requests of 66,560 tokens fit (20 in a start with 2.50 GiB less)",
        ),
        ("--context 66560 --concurrency 20", "✓ 20 requests of 66,560 tokens fit on"),
        ("--context 66560 --concurrency 21", "! 21 requests of 66,560 tokens fit on"),
        ("--concurrency 20", "✓ 20 requests of up to 90,112 tokens fit (66,560 in a start with"),
        ("--kv-memory 13.38GiB --context 66560", "✓ 11 requests of 66,560 tokens fit on"),
    ],
)
def test_an_answer_says_what_a_start_with_less_memory_holds(more: str, told: str) -> None:
    words = ("--engine", "vllm:0.33", "--model", "v4-pro", "--gpus", "8", *more.split())
    printed = " ".join(run(*words).stdout.split())
    assert printed.startswith(told)
    answer = printed.partition("More requests")[0]
    low = re.search(r"\(([\d,]+|none) in a start", answer)
    found = document(*words)
    most = found["low_context_tokens"] or found["low_concurrency"]
    assert not low or most == int(low[1].replace(",", "").replace("none", "0"))
    at_most = "at most 26 fit (20 in a start with 2.50 GiB less)" in printed
    assert at_most == ("66560 --concurrency" in more)


@pytest.mark.parametrize("engine", ["sglang:0.5.12", "sglang:0.5.23", "vllm:0.33"])
@pytest.mark.parametrize("model", ["v4-flash", "v4-pro"])
@pytest.mark.parametrize("layout", ["", "--tp 1 --dp 8"])
def test_an_advised_line_has_no_fault_that_a_switch_mends(
    engine: str, model: str, layout: str
) -> None:
    words = ["--gpu", "b200", "--gpus", "8", "--context", "64K", "--engine", engine]
    asked = ["budget", "--model", model, *words, *layout.split()]
    line = CliRunner(env=TERMINAL).invoke(app, asked).stdout.splitlines()[-1]
    looked = CliRunner(env=TERMINAL).invoke(app, ["lint", line, "--engine", engine, "--json"])
    assert not [each["id"] for each in json.loads(looked.stdout)["findings"] if each["sure"]]
    assert line.count("--enable-prefill-delayer") == line.count("--enable-dp-attention")


SERVE = (
    "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 1 --data-parallel-size 8 "
    "--enable-expert-parallel --gpu-memory-utilization 0.95 --max-num-batched-tokens 2048"
)


def test_a_pasted_command_is_not_printed_again_and_what_its_flags_cost_has_one_form() -> None:
    printed = run("--command", SERVE).stdout
    assert "vllm serve" not in printed
    assert "vllm serve" in run("--command", SERVE, "--context", "64K").stdout
    costs = run("--command", COMMAND, exit_code=1).stdout
    assert re.search(r"--max-num-batched-tokens +16384 +takes [\d.]+ GiB ", costs)
    assert re.search(r"--max-num-batched-tokens +2048 +frees [\d.]+ GiB ", printed)


def test_options_that_no_flag_says_are_pasted_with_the_command_that_was_read(
    tmp_path: Path,
) -> None:
    serve = "vllm serve /mine --served-model-name deepseek-ai/DeepSeek-V4-Flash -tp 8"
    (tmp_path / "serve.sh").write_text(f"{serve} --gpu-memory-utilization 0.8")
    words = ["--command", str(tmp_path / "serve.sh"), "--overlap", "3", "--context", "128K"]
    lines = run(*words).stdout.splitlines()
    promised, line = lines[-2:]
    assert line.startswith("dsv4kv budget ")
    again = run(*shlex.split(line)[2:]).stdout
    assert again.split(" ", 2)[1] == promised.split(" ", 1)[0]


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize("flag", ["--hf-overrides", "--engram-config"])
def test_a_token_in_an_option_that_is_not_counted_is_not_shown(
    flag: str, words: list[str]
) -> None:
    serve = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"
    command = f"""{serve} {flag} '{{"token": "SECRET7"}}'"""
    said = run("--command", command, "--context", "64K", *words).output
    assert flag in said
    assert "SECRET7" not in said


@pytest.mark.parametrize("weights", ["", "--weights 100GiB"])
@pytest.mark.parametrize(
    "asked",
    [
        "--engine llama.cpp -c 131072 -np 4 --n-cpu-moe 10 --gpus 2",
        "--command 'llama-server -m DeepSeek-V4-Flash-Q4_K_M.gguf -c 131072 -np 4 -ncmoe 10'",
    ],
)
def test_what_a_slots_weights_and_lengths_rest_on_is_said(asked: str, weights: str) -> None:
    """A slot holds a quarter of 128K; no longer request is promised."""
    words = shlex.split(f"{asked} {weights}")
    told = " ".join(run(*words).stdout.split())
    assert ("not counted: " in told) == ("weights are the published checkpoint's" in told)
    assert ("not counted: " in told) == (not weights)
    by_context = document(*words)["concurrency_by_context"]
    assert [each["context_tokens"] for each in by_context] == [4096, 32_768]


def test_a_line_to_paste_holds_the_requests_that_are_said() -> None:
    """By the model that a server's own path names, which is no path here."""
    path = "/hub/models--deepseek-ai--DeepSeek-V4-Flash/snapshots/6c858e71890b"
    command = f"trtllm-serve {path} --tp_size 4 --max_batch_size 4 --max_seq_len 2048"
    *_, said, line = run("--command", command, "--gpu", "b200").stdout.splitlines()
    held = int(said.split()[0])
    assert held > 4
    assert run("--command", line, "--gpu", "b200").stdout.split()[1] == f"{held}"


def test_what_fits_nowhere_says_what_of_its_command_was_not_read(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp $RANKS\n")
    words = ["--command", str(script), "--context", "1M"]
    said = run(*words, "--hbm", "8GiB", exit_code=1).stderr
    assert "cannot fit on 8 GPUs" in said
    assert "Not read: --tp $RANKS, which nothing here sets" in said
    shown = run(*words, exit_code=1).stdout  # with flags that make it fit
    assert "! not read: --tp $RANKS, which nothing here sets" in shown
    assert "--tp-size 8 --dp-size 4 --enable-dp-attention" in shown.splitlines()[-1]


def test_a_slots_flag_is_weighed_with_the_context_that_is_left_without_it() -> None:
    """Four unified slots of 256K hold 7,055.56 MiB, two of 128K 1,807.78."""
    command = "llama-server -m DeepSeek-V4-Flash-Q4_K_M.gguf -c 262144 -np 2"
    (slots,) = (
        each
        for each in document("--weights", "100GiB", "--command", command)["command"]["counted"]
        if each["word"] == "-np"
    )
    assert slots["requests"] == -2
    assert 5.0 * GIB < -slots["takes_bytes_per_gpu"] < 5.4 * GIB
