"""Tables of steps from aiconfigurator-core, which the user installs; 0.12.0 is what was read.

``AicEngine`` adds up measured times of modules; it is asked at the nodes of a table like those
shipped, once, and steps are looked up there.
"""

from itertools import product
from typing import Any

from dsv4kv.clock.steps import Deployment
from dsv4kv.clock.tables import StepTable, TableTimes, shipped_factors
from dsv4kv.errors import ConfigError

_MODELS = {"v4-flash": "DeepSeek-V4-Flash", "v4-pro": "DeepSeek-V4-Pro"}
_SYSTEMS = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
_HOPPER, _BLACKWELL = "fp8_block", "w4a8_mxfp4_mxfp8_trtllm"
"""Kernels of the experts that were measured in SGLang; on Hopper FP8 alone."""
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CONTEXTS = (1024, 4096, 16_384, 65_536, 131_072, 262_144)
_TOKENS = (256, 1024, 2048, 4096, 8192, 16_384)
_PREFIXES = (0, 16_384, 65_536, 131_072)


def open_engine(deployment: Deployment, model: str, gpu: str) -> TableTimes:
    """Times of a deployment.

    Raises:
        ConfigError: It is not installed, or knows no such deployment.
    """
    engine = _compile(deployment, model, gpu)
    try:
        table = read_table(engine, deployment.draft_passes)
    except Exception as error:  # whatever a foreign planner raises
        raise _unknown(deployment, model, gpu, error) from error
    return TableTimes(deployment, table, shipped_factors(), "aiconfigurator-core, as installed")


def read_table(engine: Any, draft_tokens: int) -> StepTable:
    """What an ``AicEngine`` says at the nodes, in ms."""
    decode: dict[int, list[float]] = {context: [] for context in _CONTEXTS}
    for context, rows in product(_CONTEXTS, _ROWS):
        decode[context].append(engine.decode_step_latency(rows, context, 2))
    prompt: dict[int, list[float]] = {prefix: [] for prefix in _PREFIXES}
    for prefix, tokens in product(_PREFIXES, _TOKENS):
        prompt[prefix].append(engine.predict_prefill_latency(1, tokens + prefix, prefix))
    return StepTable(
        batch_per_rank=_ROWS,
        decode_ms={context: tuple(row) for context, row in decode.items()},
        prefill_tokens=_TOKENS,
        prefill_ms_by_prefix={prefix: tuple(row) for prefix, row in prompt.items()},
        draft_tokens=draft_tokens,
    )


def _compile(deployment: Deployment, model: str, gpu: str) -> Any:
    try:
        from aiconfigurator_core import AicEngine
        from aiconfigurator_core.sdk.engine import compile_engine
    except ImportError as error:
        raise ConfigError(
            "cost.source is aiconfigurator, which is not installed: pip install "
            "aiconfigurator-core, or take cost.source model or table."
        ) from error
    layout = deployment.layout
    if model not in _MODELS or gpu not in _SYSTEMS or layout.pp > 1:
        raise ConfigError(
            f"cost.source is aiconfigurator, and it is not asked for {model} on {gpu} with "
            f"{layout.label}: take {', '.join(_MODELS)} on {', '.join(_SYSTEMS)}, without pp."
        )
    ranks = layout.tp * layout.dp
    is_fp8 = gpu.startswith("h") or deployment.weights.expert_kind == "fp8"
    try:
        spec = compile_engine(
            f"deepseek-ai/{_MODELS[model]}",
            _SYSTEMS[gpu],
            "sglang",
            None,
            tp_size=layout.tp,
            attention_dp_size=layout.dp,
            moe_tp_size=ranks // layout.ep,
            moe_ep_size=layout.ep,
            moe_quant_mode=_HOPPER if is_fp8 else _BLACKWELL,
            nextn=deployment.draft_passes,
        )
    except Exception as error:  # whatever a foreign planner raises
        raise _unknown(deployment, model, gpu, error) from error
    return AicEngine.from_spec(spec)


def _unknown(deployment: Deployment, model: str, gpu: str, error: Exception) -> ConfigError:
    place = f"{model} on {gpu} with {deployment.layout.label}"
    return ConfigError(f"aiconfigurator-core has no times of {place}: {error}")
