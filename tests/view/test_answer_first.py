"""Answers come first, fit on a screen, and have a line that does what it promises."""

import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.replay.plan import search
from dsv4kv.replay.plan.search import Answer
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import dumps
from tests.bench.compare.launched import make_launched_case, make_launched_record
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33
from tests.profile.exports import Export
from tests.runs.records import make_case, make_record

CHAT = "replay builtin:chat --gpus 8 --memory 6GiB"
VLLM_COMMAND = (
    "vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size 8 --max-model-len 128K "
    "--max-num-batched-tokens 16384 --kv-offloading-size 100 --trust-remote-code"
)
ANSWERS = {
    "budget": "budget",
    "budget, vLLM": "budget --model v4-pro --gpus 8 --engine vllm:0.33 --context 1M",
    "budget, SGLang": "budget --gpus 8 --gpu b200 --engine sglang:0.5.23",
    "budget, host memory": (
        "budget --gpus 8 --engine sglang:0.5.23 --tp 8 --context 128K "
        "--enable-hierarchical-cache --hicache-ratio 2"
    ),
    "budget, too much": "budget --gpus 8 --context 128K --concurrency 3000 --engine vllm:0.33",
    "budget, load": "budget --model v4-pro --gpu b200 --gpus 8 --concurrency 64",
    "budget, command": f"budget --gpu b200 --command {shlex.quote(VLLM_COMMAND)}",
    "budget, sweep": "budget --gpus 8 --axis context=4K,1M --axis model=v4-flash,v4-pro,v3.2",
    "explain": "explain new.log",
    "explain, SGLang": "explain sglang.log",
    "explain, ranks": "explain ranks.log",
    "explain, refusal": "explain refused.log",
    "replay": CHAT,
    "replay, vLLM": f"{CHAT} --rule vllm-v4:4096",
    "replay, overloaded": f"{CHAT} --set workload.speed=5000 --gpus 1",
    "replay, tiers": f"{CHAT} --set tiers.host.capacity_bytes=100MiB",
    "replay, fleet": f"{CHAT} --set fleet.replicas=8 --set fleet.router=dynamo",
    "replay, sweep": f"{CHAT} --axis prefix.rule=ideal,vllm-v4:dense,vllm-v4:semantic",
    "plan": "plan builtin:chat --slo ttft_p90=2s --slo tpot_p50=50ms --gpu h200",
    "plan, near": "plan builtin:chat --slo ttft_p90=400ms --gpu b200 --split none,1:1",
    "plan, rate": "plan builtin:chat --slo ttft_p90=400ms --gpus 4 --gpu b200",
    "plan, nothing": "plan builtin:chat --slo ttft_p90=100ms --gpu b200 --most-gpus 2",
    "mrc": "trace mrc builtin:chat",
    "mrc, rules": "trace mrc builtin:chat --capacity 48K --strategy none --rule all",
    "mrc, drafts": (
        "trace mrc builtin:chat --capacity 48K --strategy none --rule vllm "
        "--speculation mtp,mtp+connector"
    ),
    "info": "trace info builtin:chat",
    "bench": "report bench.json",
    "bench, launches": "report before.json",
    "profile": "profile server.sqlite",
    "profile, nothing known": "profile foreign.sqlite",
    "profile, rules": "profile foreign.sqlite --rules rules.yaml",
    "compare": "compare before.json after.json",
    "compare, one launch": "compare bench.json bench.json",
}
"""Questions by what is special about them."""
MAX_LINES = {100: 40, 80: 45}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with start-up logs."""
    place = tmp_path_factory.mktemp("answers")
    ranks = [f"(EngineCore_DP{rank} pid={rank}) {line}" for rank in (0, 1) for line in VLLM_0_33]
    ranks[-1] = ranks[-1].replace("63,859", "63,854")
    logs = {"old": VLLM_0_26, "new": VLLM_0_33, "sglang": SGLANG, "ranks": ranks}
    logs["refused"] = (*VLLM_0_33[:2], *REFUSAL)
    for name, lines in logs.items():
        (place / f"{name}.log").write_text("\n".join(lines), encoding="utf-8")
    (place / "bench.json").write_text(dumps(make_record(make_case())))
    many = [f"operation_{number}" for number in range(20)]
    for seed, name in enumerate(("before", "after")):
        changed = dict.fromkeys(many[::7], 1.3) if seed else {}
        (place / f"{name}.json").write_text(dumps(make_many(many, changed, seed)))
    make_server(SERVER).save(place / "server.sqlite")
    make_server(FOREIGN).save(place / "foreign.sqlite")
    (place / "rules.yaml").write_text("engine: mine\nrules: {gather: [^my_]}\n")
    with chdir(place):
        yield place


SERVER = (
    *("sm100_fp8_gemm_1d1d_impl", "sm100_fwd_sparse_mla_fp8_decode", "sparse_attn_fwd_kernel"),
    *("_myfork_gather_and_dequant_paged_kv", "concat_and_cache_mla_kernel", "elementwise_kernel"),
    *("_fused_kv_compress_norm_rope_insert_csa_kernel", "sm100_fp8_paged_mqa_logits", "relu"),
    *("persistent_topk_kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "topkGatingSoftmax"),
)
FOREIGN = ("my_paged_gather", "my_gemm")


def make_server(kernels: Sequence[str]) -> Export:
    """Eight steps of a server, in which each kernel takes less than the one before it."""
    export, at = Export(), 0
    export.add("TARGET_INFO_GPU", id=0, name="NVIDIA B200", cuDevice=0)
    for step in range(8):
        export.range("execute_model", at, at + 1_000_000)
        at += 1_000
        for number, name in enumerate(kernels):
            correlation, taken = 100 * step + number, 60_000 // (number + 1)
            export.call(correlation, at, at + 500)
            export.kernel(name, correlation, at + 1_000, at + 1_000 + taken)
            at += taken + 2_000
        at = (step + 1) * 2_000_000
    return export


def make_many(names: Sequence[str], factors: Mapping[str, float], seed: int) -> RunRecord:
    """Seven launches of many operations."""
    cases = []
    for launch in range(7):
        case = make_launched_case(launch, {}, seed)
        (first, *_) = case.operations
        operations = [
            first.model_copy(
                update={
                    "name": name,
                    "samples_ns": [round(t * factors.get(name, 1)) for t in first.samples_ns],
                }
            )
            for name in names
        ]
        cases.append(case.model_copy(update={"operations": operations}))
    return make_launched_record(cases=cases)


PLAN = search.plan
PLANNED: dict[str, Answer] = {}


def planned(command: str, asked: search.Search) -> Answer:
    """What a command plans: once for every width and form in which it is printed."""
    if command not in PLANNED:
        PLANNED[command] = PLAN(asked)
    return PLANNED[command]


@functools.cache  # one folder holds what all commands read
def printed(command: str, width: int = 100) -> str:
    """What a command prints, without what differs from run to run."""
    terminal = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    asked = re.sub(" --(json|verbose)$", "", command)
    with patch.object(search, "plan", functools.partial(planned, asked)):
        output = CliRunner(env=terminal).invoke(app, shlex.split(command)).stdout
    return re.sub(r" +$", "", re.sub(r"results/\S+\.json", "RECORD", output), flags=re.MULTILINE)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_a_screen(name: str, snapshot: SnapshotAssertion) -> None:
    assert printed(ANSWERS[name]) == snapshot
    for width, most in MAX_LINES.items():
        lines = printed(ANSWERS[name], width).splitlines()
        assert len(lines) <= most
        commands = ("dsv4kv ", "vllm ", "python ", "for i in ", "SGLANG_", "record:", "error:")
        assert not [e for e in lines if cell_len(e) > width and not e.startswith(commands)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "asked",
    [
        "--model v4-pro --gpus 8 --engine vllm:0.33 --context 128K",
        "--gpus 8 --gpu b200 --engine sglang --context 1M",
        "--gpus 8 --gpu b200 --engine vllm --draft-layers 1 --draft-tokens 1 --context 64K",
        "--gpus 4 --gpu b200 --engine sglang --context 32K --max-running-requests 4096",
        "--gpus 8 --engine trtllm --context 128K --max_num_tokens 4096 --tp 8",
        "--gpus 4 --gpu b200 --engine trtllm --model v4-pro --tp 4 --max_batch_size 64",
        "--gpus 8 --engine vllm:0.26 --context 128K",
        "--gpus 8 --engine sglang:0.5.19 --gpu gb200 --reserve 6GiB --context 1M",
        "--model v4-pro --gpus 8 --engine vllm --context 1M",
    ],
)
def test_a_launch_line_holds_what_was_promised(asked: str) -> None:
    *promise, line = printed(f"budget {asked}").rpartition("\n\n")[2].splitlines()
    requests, label, options = re.fullmatch(  # type: ignore[union-attr]
        r"([\d,]+) requests?(?: \(.*\))?, ([^;]*)(?:; .* also needs (.*))?:",
        " ".join(promise),
    ).groups("")
    again = f"budget --command {shlex.quote(line)} {options}"
    if line.startswith("dsv4kv budget"):
        again = line.removeprefix("dsv4kv ")
    found = json.loads(printed(f"{again} --json"))
    assert found["max_concurrency"] == int(requests.replace(",", ""))
    assert found["layout"]["label"] == label


@pytest.mark.usefixtures("folder")
def test_the_replay_of_a_plan_has_its_hit_rate() -> None:
    lines = printed(ANSWERS["plan, rate"]).splitlines()
    share = next(re.search(r"Hit rate ([\d.]+%)", line) for line in lines if "Hit rate" in line)
    (replay,) = (line for line in lines if line.startswith("dsv4kv replay"))
    assert share is not None
    assert f"{share[1]} of prompt tokens hit" in printed(replay.removeprefix("dsv4kv "))
    best = json.loads(printed(f"{ANSWERS['plan, rate']} --json"))["best"]
    assert f"workload.speed={best['speed']!r}" in replay


@pytest.mark.usefixtures("folder")
def test_deployments_of_a_number_of_gpus_add_up_and_rates_are_counted_apart() -> None:
    told = " ".join(printed(ANSWERS["plan, rate"]).split())
    considered, ruled, tried, rates = re.search(  # type: ignore[union-attr]
        r"(\d+) deployments considered; ruled out (.*?); (\d+) simulated at (\d+) rates", told
    ).groups()
    assert int(considered) == sum(map(int, re.findall(r"\d+", ruled))) + int(tried)
    assert int(rates) > int(tried)


@pytest.mark.usefixtures("folder")
def test_the_nearest_at_a_lower_rate_than_the_trace_says_so() -> None:
    told = " ".join(
        printed("plan builtin:chat --gpu b200 --gpus 2 --slo latency_p90=250ms").split()
    )
    assert "2 GPUs at 0.000161 requests/s (0.001 × the trace's rate): latency_p90" in told
