"""What people paste gets the right engine and settings, or a sentence with what is missing."""

import os
from pathlib import Path
from unittest import mock

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import Reading, launch_line, read_command
from dsv4kv.errors import ConfigError
from tests.budget.pasted import PASTED, PUBLISHED, Pasted

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cases"
SHARED = (
    Pasted("04_docker_entrypoint_vllm/serve.sh", "", {"engine": "vllm", "tp": "2"},
           options={"model": "v4-flash"}),
    Pasted("10_systemd_unit/vllm.service", "",
           {"model": "v4-flash", "tp": "4", "context": "370000"}),
    Pasted("11_srtslurm_trtllm/recipe.yaml", "",
           {"engine": "trtllm", "model": "v4-pro", "gpu": "gb300", "tp": "1", "dp": "8",
            "memory-fraction": "0.7", "request-limit": "64", "draft-tokens": "3"}, "decode"),
    Pasted("11_srtslurm_trtllm/recipe.yaml", "",
           refused="1: trtllm prefill deepseek-v4-pro (line 8); 2: trtllm decode"),
    Pasted("12_srtslurm_roles/recipe.yaml", "",
           refused="1: sglang prefill /model/ (line 8); 2: sglang decode /model/ (line 17)"),
    Pasted("12_srtslurm_roles/recipe.yaml", "",
           {"model": "v4-pro", "role": "prefill", "gpu": "b200", "dp": "8"}, "1"),
    Pasted("14_script_variables/bench.sh", "", {"tp": "8", "model": "v4-pro"},
           options={"model": "v4-pro", "tp": "8"}, unread="--max-num-seqs $CONC"),
    Pasted("14_script_variables/bench.sh", "", {"tp": "8", "request-limit": "64"},
           environment={"MODEL": "deepseek-ai/DeepSeek-V4-Pro", "TP": "8", "CONC": "64"}),
    Pasted("14_script_variables/array.sh", "", {"draft-layers": "1"},
           unread="--tp $TP, which nothing here sets: by --gpus, else the fewest"),
    Pasted("14_script_variables/array.sh", "", {"draft-layers": "1", "tp": "8"},
           environment={"TP": "8"}, unread="$DP_ATTENTION, which is not set"),
    Pasted("15_dynamo_trtllm/agg.yaml", "",
           {"engine": "trtllm", "model": "v4-flash", "tp": "1", "dp": "4", "gpu": "b200",
            "memory-fraction": "0.3", "block-tokens": "128", "context": "2048"}),
)  # fmt: skip

FROM_FILES = ("trtllm-serve", "llama-server")
"""Settings of the one are in files, the other's context is of all slots: no line says them."""


def read(pasted: Pasted, text: str) -> tuple[dict[str, str], Reading]:
    """What ``budget`` makes of it: options come on top."""
    with mock.patch.dict(os.environ, pasted.environment, clear=True):
        model = pasted.options.get("model")
        reading = read_command(text, pasted.which, model, set(pasted.options))
    return {**reading.texts, **pasted.options}, reading


def check(pasted: Pasted, text: str) -> None:
    if pasted.refused:
        with pytest.raises(ConfigError) as refusal:
            read(pasted, text)
        assert pasted.refused in str(refusal.value)
        return
    texts, reading = read(pasted, text)
    assert texts.items() >= pasted.texts.items(), texts
    if pasted.uncounted is not None:
        assert {told.spelling for told in reading.uncounted} == set(pasted.uncounted)
    else:
        assert pasted.unread in " ".join(reading.unread)
        assert bool(pasted.unread) == bool(reading.unread)
    found = answer(read_inputs({"gpu": pasted.gpu} | texts))
    layout, is_open = found.scenario.layout, "else the fewest" in " ".join(reading.unread)
    assert layout.tp == (layout.gpus if is_open else int(texts.get("tp", "1")))
    program = found.scenario.engine.family.launch.program
    line = launch_line(found.scenario, found.context, found.max_concurrency, reading.flags)
    assert program in line or program in FROM_FILES


@pytest.mark.parametrize(
    "pasted", PASTED + PUBLISHED, ids=lambda each: f"{each.kind}: {each.text[:40]!r}"
)
def test_what_people_paste_is_read_or_refused_with_the_reason(pasted: Pasted) -> None:
    check(pasted, pasted.text)


@pytest.mark.parametrize("pasted", SHARED, ids=lambda each: each.kind)
def test_a_recorded_case_is_read_or_refused_with_the_reason(pasted: Pasted) -> None:
    path = CASES / pasted.kind
    if not path.is_file():
        pytest.skip("the recorded cases are not here")
    check(pasted, str(path))


def test_a_replay_takes_no_command_whose_ranks_are_open() -> None:
    with pytest.raises(ConfigError, match=r"-tp is \$TP, which nothing here sets: add --tp"):
        read_command("vllm serve deepseek-ai/DeepSeek-V4-Pro -tp $TP", whole=True)
