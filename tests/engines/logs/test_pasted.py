"""Logs as people have them: an answer that the log does not contradict, or what it lacks.

A row has the log's lines, options given with it, and what the page says and does not say.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.contract import GIB, Deployment
from dsv4kv.engines.names import find_engine
from tests.engines.logs.startup import SGLANG, VLLM_0_26, VLLM_0_33
from tests.engines.sizing.deployments import deploy

CASES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "cases"


@dataclass(frozen=True)
class Pasted:
    """One log, the options given with it, and parts of what is printed."""

    kind: str
    log: str | tuple[str, ...]
    options: str = ""
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    code: int = 0


def pipeline(sizes: tuple[int, ...], gib: tuple[float, ...], shown: tuple[int, ...]) -> list[str]:
    """The log of a pipeline of vLLM 0.33 serving Flash, memory of some stages shown."""
    engine, end, found = find_engine("vllm:0.33"), 0, []
    base = deploy("v4-flash", context=131_072, flight=4096 * len(sizes))
    for stage, (size, memory) in enumerate(zip(sizes, gib, strict=True)):
        own = replace(base, layers=tuple(range(end, end + size)), stage=stage)
        found.append(engine.capacity(own, int(memory * GIB)))
        end += size
    least = min(found, key=lambda each: each.printed_tokens or 0)
    echo = (
        "version 0.33.0 non-default args: {'model': 'deepseek-ai/DeepSeek-V4-Flash', "
        f"'max_model_len': 131072, 'pipeline_parallel_size': {len(sizes)}, "
        "'max_num_batched_tokens': 4096}"
    )
    memories = [
        f"(Worker_PP{stage} pid=1) INFO 01-01 Available KV cache memory: {gib[stage]:.2f} GiB"
        for stage in shown
    ]
    return [echo, *memories, *least.log_lines[1:]]


def of_sglang(version: str, deployment: Deployment, memory: int, *more: str) -> tuple[str, ...]:
    capacity = find_engine(f"sglang:{version}").capacity(deployment, memory)
    return (f"sglang version {version} model_path='/m/{deployment.model.name}'",
            *capacity.log_lines, *more)  # fmt: skip


NAMELESS = tuple(line.replace("/data/DeepSeek-V4-Flash", "/model") for line in VLLM_0_26)
EVEN, UNEVEN = (11, 11, 11, 10), (12, 12, 11, 8)
CAPPED = of_sglang(
    "0.5.20", deploy("v4-pro", concurrency=8, window_ratio=0.1), 60 * GIB,
    "DSV4 pool sizes: full=4000000, swa=400128", "DSV4 pool sizes: full=65536, swa=6400",
    "max_total_num_tokens=65536, chunked_prefill_size=8192, max_running_requests=8, "
    "context_len=8192",
)  # fmt: skip
DECODE = (
    (
        "server_args=ServerArgs(model_path='/m/DeepSeek-V4-Flash', tp_size=8, dp_size=8, "
        "enable_dp_attention=True, context_length=9216, disaggregation_mode='decode', "
        "swa_full_tokens_ratio=0.1)"
    ),
    *of_sglang("0.5.15", deploy("v4-flash", concurrency=16, window_ratio=0.1), 20 * GIB)[1:],
    "max_total_num_tokens=163840, max_running_requests=16, context_len=9216",
)

ROWS = (
    # ---- options given with a log
    Pasted("options", NAMELESS, "--model v4-flash", ("v4-flash", "7,236 blocks")),
    Pasted("options", VLLM_0_26, "--model v4-pro", ("says v4-flash",), code=2),
    Pasted("options", VLLM_0_26, "--engine sglang", ("says vllm",), code=2),
    Pasted("options", VLLM_0_26[4:], "", ("names no model", "--model"), code=2),
    Pasted("options", VLLM_0_33[2:], "", ("names no model",), code=2),
    Pasted("options", ("served_model_name=['DeepSeek-V4-Pro']", *NAMELESS),
           says=("No known", "for v4-pro")),
    Pasted("options", ("--served-model-name DeepSeek-V4-Flash", *NAMELESS),
           says=("7,236 blocks",)),
    # ---- pipelines
    Pasted("pipeline", tuple(pipeline(EVEN, (20, 14, 20, 20), (0, 1, 2, 3))),
           says=("Pipeline stage 1 binds",), never=("No known",)),
    Pasted("pipeline", ("VLLM_PP_LAYER_PARTITION=12,12,11,8",
                        *pipeline(UNEVEN, (20, 20, 20, 9), (0, 1, 2, 3))),
           says=("Pipeline stage 3 binds",), never=("No known",)),
    Pasted("pipeline", tuple(pipeline(EVEN, (20, 20, 20, 8), (0,))),
           says=("memory of its stages PP0 20.00 GiB printed; another stage binds",),
           never=("blocks per request", "not a capacity")),
    # ---- pools that run are not the first that are printed
    Pasted("capped", CAPPED, says=("printed 65,536 tokens", "65,536 run: the pool is capped",
                                   "8 requests of 8,192", "without the cap of full tokens")),
    Pasted("capped", DECODE, says=("printed 163,840 tokens", "16 requests of 9,216",
                                   "on each of 8 ranks")),
    Pasted("capped", (*SGLANG, "max_total_num_tokens=6859008, max_running_requests=64"),
           says=("6,859,008 tokens",), never=("capped", "No known")),
    # ---- a ratio that only the pools show
    Pasted("ratio", ("sglang version 0.5.20 model_path='/m/v4-pro' max_running_requests=32",
                     *find_engine("sglang:0.5.20").capacity(
                         deploy("v4-pro", concurrency=32, window_ratio=0.25), 60 * GIB).log_lines,
                     "DSV4 pool sizes: full=100000, swa=24832"),
           says=("sglang:0.5.20, v4-pro, 0 draft layers",), never=("No known",)),
    # ---- lines of other engines and models
    Pasted("lines", (("[2026-01-01 00:00:00 TP0] server_args=ServerArgs(model_path='/m/V3.2', "
                     "model='DeepSeek-V3.2', context_length=131072)"),
                     ("[2026-01-01 00:00 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, "
                     "#tokens: 1000000, KV size: 44.77 GB"),
                     ("[2026-01-01 00:00:00 TP0] max_total_num_tokens=1000000, "
                     "max_running_requests=48, context_len=131072")),
           says=("v3.2", "1,000,000 full tokens", "7 requests of 131,072"), never=("No known",)),
    Pasted("lines", ("model_path='deepseek-ai/DeepSeek-V4-Flash'",
                     ("[2026-01-01 DP3 TP3 EP3] max_total_num_tokens=500000, "
                     "max_running_requests=8, context_len=32768")),
           says=("500,000 full tokens", "8 requests of 32,768")),
    Pasted("lines", ("Jan 01 host sglang[7]: [2026-01-01 00:00:00 DP0 TP0] " + SGLANG[1],
                     SGLANG[0]), says=("6,859,008",), never=("No known",)),
    Pasted("lines", ("nothing of a cache",), says=("is not recognised",), code=2),
    Pasted("lines", (("server_args=ServerArgs(model_path='/m/DeepSeek-V4-Flash', "
                     "kt_method='MXFP4', context_length=32768)"),
                     ("DSv4 memory calculation: bytes_per_full_token=15955.85, "
                     "available_bytes=19.30 GB, full_token=1298688"),
                     "DSv4 pool sizes: full=1298688, swa=129792",
                     "DSv4 pool sizes: full=32768, swa=3072"),
           says=("ktransformers printed 32,768 tokens", "would hold 1,298,688", "15,955.85 B"),
           never=("No known", "sglang")),
    # ---- slots
    Pasted("slots", (("llama_model_loader: loaded meta data with 60 key-value pairs from "
                     "/m/DeepSeek-V4-Flash-Q4_K_M.gguf (version GGUF V3)"),
                     ("srv load_model: initializing, n_slots = 4, n_ctx_slot = 1048576, "
                     "kv_unified = 'true'")),
           says=("4 requests of 1,048,576", "27,695.56 MiB", "-np 1 takes 6,923.89 MiB")),
    Pasted("slots", ("llama_model_loader: - kv 2: general.name str = DeepSeek V4 Flash",
                     "llama_context: n_ubatch = 4096",
                     "llama_kv_cache: CUDA0 KV buffer size = 182.75 MiB",
                     ("llama_kv_cache: size = 182.75 MiB (4352 cells, 43 layers, 1/1 seqs), "
                     "K (bf16): 182.75 MiB, V (bf16): 0.00 MiB"),
                     "llama_kv_cache: CUDA0 KV buffer size = 330.75 MiB",
                     "llama_kv_cache: CUDA0 KV buffer size = 10.00 MiB",
                     "llama_kv_cache: CUDA0 KV buffer size = 82.69 MiB",
                     "CUDA0 DSV4 csa state buffer size = 1.31 MiB",
                     "CUDA0 DSV4 hca state buffer size = 10.00 MiB",
                     "CUDA0 DSV4 lid state buffer size = 0.33 MiB",
                     "initializing, n_slots = 1, n_ctx_slot = 64000, kv_unified = 'false'"),
           says=("617.83 MiB", "1 request of 64,000"), never=("No known",)),
    Pasted("slots", ("llama_model_loader: - kv 2: general.name str = DeepSeek V4 Flash",
                     "llama_context: n_ubatch = 512",
                     "CPU KV buffer size = 52.59 MiB",
                     ("llama_kv_cache: size = 52.59 MiB ( 768 cells, 44 layers, 3/3 seqs), K "
                     "(q8_0): 52.59 MiB, V (q8_0): 0.00 MiB"),
                     "CPU KV buffer size = 58.57 MiB",
                     "CPU KV buffer size = 7.97 MiB",
                     "CPU KV buffer size = 14.64 MiB",
                     "CPU DSV4 csa state buffer size = 11.81 MiB",
                     "CPU DSV4 hca state buffer size = 90.00 MiB",
                     ("llama_dsv4_comp_state: hca ratio = 128, state = 128 x 512, streams = 3, "
                     "rs_seq = 2, layers = 20, size = 90.00 MiB"),
                     "CPU DSV4 lid state buffer size = 2.95 MiB",
                     "CPU KV buffer size = 4.50 MiB",
                     ("llama_kv_cache: size = 4.50 MiB ( 768 cells, 1 layers, 3/3 seqs), K "
                     "(f16): 2.25 MiB, V (f16): 2.25 MiB"),
                     ("srv load_model: initializing, n_slots = 3, n_ctx_slot = 6912, kv_unified "
                     "= 'false'")),
           says=("1 draft layer", "3 requests of 6,912", "243.03 MiB"), never=("No known",)),
    Pasted("slots", ("ds4-server: loading /m/DeepSeek-V4-Flash-2bit.gguf",
                     ("context buffers 6732.77 MiB (ctx=384000, backend=metal, "
                     "prefill_chunk=2048, raw_kv_rows=2304, compressed_kv_rows=96002)")),
           says=("ds4", "6,732.77 MiB", "1 request of 384,000"), never=("No known",)),
    # ---- refusals have blocks of their own
    Pasted("refusal", ("vLLM version 0.22.0 model='deepseek-ai/DeepSeek-V4-Flash'",
                       ("ValueError: To serve at least one request with the model's max seq len "
                       "(30000), (6.66 GiB KV cache is needed, which is larger than the available "
                       "KV cache memory (5.44 GiB). Based on the available memory, the estimated "
                       "maximum model length is 13528.")),
           says=("refused to start", "(6.66 GiB), and 5.44 GiB hold"), code=1),
)  # fmt: skip
SHARED = (
    Pasted("01_explain_ignores_options/start.log", "", "--model v4-flash",
           ("7,203 blocks ÷ 1,279 blocks per request", "max_num_batched_tokens is 4,096"),
           ("v4-pro", "2,181")),
    Pasted("01_explain_ignores_options/start.log", "", "", ("add --model",), ("2,181",)),
    Pasted("01_explain_ignores_options/start_131k.log", "", "--model v4-flash",
           ("1,403,251 tokens are 10.71 requests of 131,072",)),
    Pasted("02_pipeline_log_false_arithmetic/start.log", "", "",
           ("A pipeline", "another stage binds", "memory' of PP1, PP2, PP3, PP4 and the layers",
            "1 request of 1,048,576"), ("98,486", "19,497")),
    Pasted("06_sglang_capped_pool/capped_ascend.log", "", "",
           ("printed 32,768 tokens", "1 request of 32,768"), ("26",)),
    Pasted("06_sglang_capped_pool/capped_mi355x.log", "", "",
           ("printed 262,144 tokens", "27 requests of 9,472"), ("61 requests",)),
    Pasted("08_sglang_ratio_from_pools/start.log", "", "",
           ("v4-pro, 0 draft layers", "32,781.44 B"), ("No known", "1 draft layer")),
    Pasted("08_sglang_ratio_from_pools/with_ratio.log", "", "", ("v4-pro, 0 draft layers",)),
    Pasted("21_async_flag_025/start.log", "", "", ("10,631 blocks ÷ 5,593 blocks",)),
)  # fmt: skip


def check(pasted: Pasted, path: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(path), "--verbose", *pasted.options.split()])
    printed = " ".join(result.output.split())
    assert result.exit_code in {pasted.code, pasted.code or 1}, printed  # 1: a known fault, too
    for part in pasted.says:
        assert part in printed
    for part in pasted.never:
        assert part not in printed


@pytest.mark.parametrize("pasted", ROWS, ids=lambda each: f"{each.kind} {each.options}")
def test_a_pasted_log_is_explained_by_what_it_prints(pasted: Pasted, tmp_path: Path) -> None:
    path = tmp_path / "start.log"
    path.write_text("\n".join(pasted.log), encoding="utf-8")
    check(pasted, path)


@pytest.mark.parametrize("pasted", SHARED, ids=lambda each: each.kind)
def test_a_recorded_log_is_explained_by_what_it_prints(pasted: Pasted) -> None:
    if not (CASES / pasted.kind).is_file():
        pytest.skip("the recorded cases are not here")
    check(pasted, CASES / pasted.kind)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_may_be_in_utf_16(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "start.log"
    mark = "\ufeff" if encoding[-2:] in ("le", "be") else ""
    path.write_bytes((mark + "\r\n".join(VLLM_0_26)).encode(encoding))
    check(Pasted("", "", says=("7,236 blocks",)), path)


def test_a_log_may_come_by_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text("\n".join(VLLM_0_26), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", f"cat start.log | {sys.executable} -m dsv4kv explain -"], cwd=tmp_path,
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "120"},
        timeout=120,
    )  # fmt: skip
    assert "7,236 blocks" in done.stdout, done.stderr
