"""A launch command is read: all that changes sizes is used, or named as not counted."""

import time
from pathlib import Path

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import command_document, flag_costs, read_command
from dsv4kv.errors import ConfigError


def test_the_server_of_the_guide_is_read_flag_by_flag() -> None:
    guide = Path(__file__).parents[2] / "docs" / "server.compose.yaml"
    reading = read_command(str(guide))
    asked = {name: reading.texts[name] for name in ("engine", "model", "tp", "context")}
    assert asked["model"] == "v4-flash"
    assert (asked["engine"], asked["tp"], asked["context"]) == ("vllm", "4", "131072")
    events = {"--kv-events-config", "--enable-prompt-tokens-details"}
    assert {each.spelling for each in reading.unknown} == events


SCRIPT = """\
#!/bin/bash
# two servers
TP=8
vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size $TP --max-num-seqs 64 &
vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size ${TP} > log 2>&1
"""


def test_of_several_commands_one_is_chosen_by_number_or_by_a_part(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(SCRIPT, "utf-8")
    with pytest.raises(ConfigError) as refusal:
        read_command(str(path))
    assert str(refusal.value) == (
        f"{path}: 2 commands: choose with --which, a number or a part of it: 1: vllm "
        "deepseek-ai/DeepSeek-V4-Flash (line 4); 2: vllm deepseek-ai/DeepSeek-V4-Pro (line 5)."
    )
    assert read_command(str(path), "2").texts["model"] == "v4-pro"
    assert read_command(str(path), "V4-Flash").texts["request-limit"] == "64"
    for which in ("3", "DeepSeek", "qwen"):
        with pytest.raises(ConfigError, match=f"--which {which}: "):
            read_command(str(path), which)


def costs(command: str, **given: str) -> dict[str, tuple[int, int]]:
    reading = read_command(command)
    found = answer(read_inputs({**reading.texts, **given}))
    return {
        cost.flag.spelling: (cost.taken_bytes, cost.requests)
        for cost in flag_costs(reading, given, found)
    }


def test_what_a_flag_costs_is_the_difference_to_the_command_without_it() -> None:
    found = costs(
        "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 --max-model-len 128K "
        "--max-num-batched-tokens 16384 --gpu-memory-utilization 0.95 --block-size 256",
        gpu="h200",
    )
    assert set(found) == {
        "--max-num-batched-tokens", "--gpu-memory-utilization", "--block-size",
    }  # fmt: skip
    taken, requests = found["--max-num-batched-tokens"]
    assert taken > 0 > requests  # 8,192 unless given
    taken, requests = found["--gpu-memory-utilization"]
    assert taken < 0 < requests  # 0.92 unless given
    assert found["--block-size"] == (0, 0)


def test_a_document_names_what_is_counted_what_is_not_and_what_is_unknown() -> None:
    reading = read_command(
        "vllm serve deepseek-ai/DeepSeek-V4-Flash --max-num-seqs 8 --cpu-offload-gb 100 --hm 1"
    )
    found = command_document(reading, [])
    assert [row["word"] for row in found["counted"]] == ["--model", "--max-num-seqs"]
    assert [row["word"] for row in found["not_counted"]] == ["--cpu-offload-gb"]
    assert found["not_known_to_change_sizes"] == ["--hm"]


SERVE = "vllm serve deepseek-ai/DeepSeek-V4-Flash"
ODD = (
    "", " ", "\n\n", "\0", "'", '"', "vllm serve '", "vllm", "vllm serve", "serve", "{", "{}",
    "[]", "[[[", "- " * 500, "a: &a [*a]", "{" * 5000, "[" * 5000, "x" * 300_000,
    "no/such/file.sh", "missing.yaml", "/", "/dev/null", "🙂", "vllm serve 🙂",
    "vllm serve --model", "$(", "${", "$",
    f"{SERVE} --max-model-len", f"{SERVE} --max-model-len -5", f"{SERVE} --max-model-len 1e9",
    f"{SERVE} --max-model-len 99999999999999999999999999999999999",
    f"{SERVE} --tensor-parallel-size 0", f"{SERVE} --tensor-parallel-size 3",
    f"{SERVE} -tp 8 --data-parallel-size 9999999", f"{SERVE} --gpu-memory-utilization 92",
    f"{SERVE} --speculative-config " + "'" + '{"a":' * 3000 + "'",
    f"{SERVE} --speculative-config '[]'", f"{SERVE} --attention-config null",
    f"{SERVE} --kv-cache-dtype nvfp4_ds_mla", f"{SERVE} --speculative-config '{{\"method\":3}}'",
    "services: {a: {image: vllm/x, command: null}}", "services: {a: {command: [1, 2, [3]]}}",
    "a: {command: !!str [b]}\nc: d", "a: {command: !!str {b: c}}\nd: e",
    "&" * 1000, "\\\n" * 5000, "A=${A:-$A}\nvllm serve $A", "vllm serve " + "--a " * 20_000,
    "sglang serve --tp 8 --dp 3 --enable-dp-attention --model v4-flash",
)  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:30]))
def test_an_odd_command_is_answered_or_a_sentence_in_bounded_time(text: str) -> None:
    before = time.process_time()
    told = ""
    try:
        reading = read_command(text)
        answer(read_inputs({**reading.texts, "gpu": "h200"}))
    except ConfigError as error:
        told = str(error)
    assert not told or told.endswith((".", "…", ")"))
    assert len(told) < 1500
    assert time.process_time() - before < 5


def test_scripts_within_scripts_and_unknown_flags_take_no_time() -> None:
    """4 ** 20 scripts; 2,000 flags that each were compared with all known ones."""
    nested = 'A=\'x "$A ;" "$A ;" "$A ;" "$A ;"\'\nbash -c "$A ;"\n'
    flags = " ".join(f"--x{number} 1" for number in range(2_000))
    began = time.process_time()
    read = read_command(f"{nested}vllm serve deepseek-ai/DeepSeek-V4-Flash {flags}")
    assert (read.misspelt, len(read.unknown)) == ({}, 2_000)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "started",
    ["trtllm-serve m --extra_llm_api_options=conf/own.yaml", "vllm serve m --config own.yaml"],
)
def test_settings_of_a_file_next_to_the_command_count(tmp_path: Path, started: str) -> None:
    (tmp_path / "own.yaml").write_text("tensor_parallel_size: 8\n", encoding="utf-8")
    script = tmp_path / "serve.sh"
    script.write_text(f"{started}\n", encoding="utf-8")
    assert read_command(str(script), model="v4-flash").texts["tp"] == "8"


def test_flags_inside_a_json_value_that_are_not_counted_are_named() -> None:
    config = '{"host_cache_size": 64000000000, "max_tokens": 400000}'
    line = f"trtllm-serve deepseek-ai/DeepSeek-V4-Flash --tp_size 8 --kv_cache_config '{config}'"
    reading = read_command(line)
    assert [each.spelling for each in reading.uncounted] == ["--host_cache_size"]
    assert reading.texts["kv-blocks"] == "3125"


def test_a_file_of_settings_that_is_no_mapping_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("[tensor_parallel_size, 8]", encoding="utf-8")
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m -tp 2 --config own.yaml\n", encoding="utf-8")
    assert "--config own.yaml" in read_command(str(script), model="v4-flash").unread


@pytest.mark.parametrize(
    ("started", "ranks"),
    [("vllm serve", "-tp"), ("sglang serve", "--tp"), ("trtllm-serve", "--tp_size")],
)
def test_settings_that_are_not_there_are_named_and_may_give_the_layout(
    started: str, ranks: str
) -> None:
    line = f"{started} deepseek-ai/DeepSeek-V4-Flash --config cfg/serve.yaml"
    with pytest.raises(ConfigError, match=r"--config cfg/serve.yaml: not read.* the layout"):
        read_command(line)
    given = read_command(f"{line} {ranks} 8")
    assert "--config cfg/serve.yaml" in given.unread


def test_a_file_of_settings_is_read_once_for_all_commands(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("".join(f"key{n}: {n}\n" for n in range(9_000)))
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m --config own.yaml\n" * 40, encoding="utf-8")
    began = time.process_time()
    assert read_command(str(script), model="v4-flash")
    assert time.process_time() - began < 8


def test_a_script_is_sized_for_the_gpu_that_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "dsv4_fp4_b300_vllm.sh"
    path.write_text("vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8", "utf-8")
    assert read_command(str(path)).texts["gpu"] == "b300"
    assert "gpu" not in read_command(str(path), options={"gpu"}).texts
