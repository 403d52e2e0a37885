# mypy: ignore-errors
"""Ask vLLM and SGLang what they take by default: ``python ask.py FOLDER > recorded.json``.

``FOLDER`` holds ``vllm-VERSION`` and ``sglang-VERSION``, unpacked wheels. Their own functions are
cut out of their files and run with stand-ins for the GPU and for what they do not need; none of
their code is kept. DeepSeek-V4 runs on vLLM's V2 model runner from 0.28 on, and without a prefill
graph in SGLang: that is read, not run.
"""

import ast
import json
import sys
from enum import Enum
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

GPUS = {  # MiB as nvidia-smi reports them, name as the driver gives it
    "a100-80gb": (81_920, "NVIDIA A100-SXM4-80GB"),
    "h100": (81_559, "NVIDIA H100 80GB HBM3"),
    "h20": (97_871, "NVIDIA H20"),
    "h200": (143_771, "NVIDIA H200"),
    "b200": (183_359, "NVIDIA B200"),
    "b300": (275_040, "NVIDIA B300 SXM6 AC"),
    "mi300x": (196_608, "AMD Instinct MI300X"),
    "l40s": (46_068, "NVIDIA L40S"),
}
LAYOUTS = ((1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 8, 1), (2, 4, 1), (8, 1, 2))
GIB = 2**30


class Given(SimpleNamespace):
    """Arguments; those that are not given are None."""

    def __getattr__(self, name):
        return None


def cut(path, *names, **given):
    """Functions of a file, by name, with stand-ins for what they use."""
    tree = ast.parse(path.read_text())
    wanted = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    for node in wanted:
        node.decorator_list = []
    module = ast.Module(list(wanted), type_ignores=[])
    scope = dict(given)
    exec(
        compile("from __future__ import annotations\n" + ast.unparse(module), path, "exec"), scope
    )
    return SimpleNamespace(**{name: scope.get(name) for name in names})


def ask_vllm(folder, version, gpu, layout):
    mib, title = GPUS[gpu]
    tp, _, pp = layout
    platform = MagicMock()
    platform.get_device_total_memory.return_value = mib * 2**20
    platform.get_device_name.return_value = title
    platform.is_tpu.return_value = platform.is_cpu.return_value = False
    platform.is_device_capability.return_value = False
    usage = Enum("UsageContext", ["LLM_CLASS", "OPENAI_API_SERVER"])
    sys.modules["vllm.usage.usage_lib"] = SimpleNamespace(UsageContext=usage)
    own = cut(
        folder / "vllm/engine/arg_utils.py",
        "get_batch_defaults",
        "_set_default_max_num_seqs_and_batched_tokens_args",
        current_platform=platform,
        GiB_bytes=GIB,
        logger=MagicMock(),
        UsageContext=usage,
        SchedulerConfig=SimpleNamespace(
            DEFAULT_MAX_NUM_BATCHED_TOKENS=2048, DEFAULT_MAX_NUM_SEQS=128
        ),
    )
    args = SimpleNamespace(
        pipeline_parallel_size=pp,
        tensor_parallel_size=tp,
        max_num_batched_tokens=None,
        max_num_seqs=None,
        performance_mode="balanced",
        enable_chunked_prefill=True,
        get_batch_defaults=lambda world: own.get_batch_defaults(None, world),
    )
    model = SimpleNamespace(max_model_len=2**20, is_multimodal_model=False)
    parallel = SimpleNamespace(use_batched_dp_moe=False)
    fill = own._set_default_max_num_seqs_and_batched_tokens_args
    takes = fill.__code__.co_argcount
    fill(*(args, usage.OPENAI_API_SERVER, model, parallel)[:takes])
    batches = cut(folder / "vllm/config/vllm.py", "max_concurrent_batches").max_concurrent_batches
    v2 = tuple(map(int, version.split("."))) >= (0, 28)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=pp),
        # the V1 runner switches async scheduling off with pipeline stages
        scheduler_config=SimpleNamespace(async_scheduling=v2 or pp == 1),
        use_v2_model_runner=v2,
    )
    return {
        "step_tokens": args.max_num_batched_tokens,
        "request_limit": args.max_num_seqs,
        "overlap": batches(config) if batches else None,
    }


def ask_sglang(folder, gpu, layout):
    mib, _ = GPUS[gpu]
    tp, dp, pp = layout
    phase = lambda: SimpleNamespace(max_bs=None, bs=None, backend="disabled")  # noqa: E731
    decode = phase()
    decode.backend = "full"
    graphs = SimpleNamespace(decode=decode, prefill=phase())
    cfg = Given(
        device="cuda",
        cuda_graph_config=graphs,
        disable_piecewise_cuda_graph=True,
        piecewise_cuda_graph_max_tokens=1,
        piecewise_cuda_graph_tokens=[1],
        tp_size=tp * dp,
        pp_size=pp,
        dp_size=dp,
        attn_dp_size=dp,
        enable_dp_attention=dp > 1,
        disaggregation_mode="null",
        model_path="m",
        _cuda_graph_config_locked=set(),
        moe_a2a_backend="none",
    )
    cfg.use_mla_backend = lambda: False
    cfg.get_model_config = lambda: SimpleNamespace(is_multimodal=False)
    graphs_of = "cuda_graph_batch_sizes", "decode_cuda_graph_batch_sizes"
    graphs_of += "prefill_graph_batch_sizes", "prefill_cuda_graph_batch_sizes"
    for name in (*graphs_of, "piecewise_cuda_graph_tokens"):
        setattr(cfg, f"_generate_{name}", lambda *_: [1])
    cfg._resolved = lambda: cfg
    backend = SimpleNamespace(DISABLED="disabled", BREAKABLE="breakable")
    sizes = MagicMock(return_value=[1])

    def declare(_args, _where, **values):
        vars(cfg).update(values)

    platform = SimpleNamespace(is_xpu=False, is_hip=False)
    given = {
        "get_device_memory_capacity": lambda *_: mib,
        "resolving_view": lambda _: cfg,
        "resolved_view": lambda _: cfg,
        "_resolved_view": lambda _: cfg,
        "declare_resolution": declare,
        "model_config_of": lambda _: SimpleNamespace(is_multimodal=False),
        "post_capture_kv_sizing_planned": lambda _: False,
        "use_mla_backend": lambda _: False,
        "attn_dp_enabled_of": lambda _: dp > 1,
        "get_platform": lambda: platform,
        "Backend": backend,
        "Phase": MagicMock(),
        "copy": SimpleNamespace(deepcopy=lambda value: value),
        "envs": MagicMock(),
        "is_xpu": lambda: False,
        "logger": MagicMock(),
        "_DEFAULT_PP_PREFILL_CUDA_GRAPH_MAX_TOKENS": 8192,
    }
    given["envs"].SGLANG_ENABLE_POST_CAPTURE_KV_SIZING.get.return_value = False
    hooks = SimpleNamespace(
        generate_cpu_graph_batch_sizes=sizes,
        generate_decode_cuda_graph_batch_sizes=sizes,
        generate_prefill_cuda_graph_batch_sizes=sizes,
        resolved_view=lambda _: cfg,
        expand_multimodal_decode_graph_to_running_limit=lambda *_: None,
    )
    for name in ("cuda_graph_hook", "overrides", "model_overrides.qwen3_vl"):
        sys.modules[f"sglang.srt.arg_groups.{name}"] = hooks
    hook = folder / "sglang/srt/arg_groups/memory_hook.py"
    names = ("handle_gpu_memory_settings", "reserve_for_graph_mb", "reserve_for_deepep_a2a_mb")
    if hook.is_file():
        own = cut(hook, *names, **given)
        run = own.handle_gpu_memory_settings
    else:
        own = cut(folder / "sglang/srt/server_args.py", "_handle_gpu_memory_settings", **given)
        run = own._handle_gpu_memory_settings
    run(*(cfg, mib)[: run.__code__.co_argcount])
    return {"memory_fraction": cfg.mem_fraction_static, "step_tokens": cfg.chunked_prefill_size}


def main():
    """Versions that answer alike make one line."""
    told = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        engine, _, version = folder.name.partition("-")
        for gpu, layout in product(GPUS, LAYOUTS):
            if engine == "vllm":
                found = ask_vllm(folder, version, gpu, layout)
            else:
                found = ask_sglang(folder, gpu, layout)
            row = {"engine": engine, "gpu": gpu, "layout": layout} | found
            told.setdefault(json.dumps(row), []).append(version)
    for row, versions in told.items():
        sys.stdout.write(json.dumps(json.loads(row) | {"versions": versions}) + "\n")


if __name__ == "__main__":
    main()
