"""From a configuration to times of steps, by each of ``CLOCKS``.

aiconfigurator-core is the user's to install; 0.12.0 is what was read. ``AicEngine`` adds up
measured times of modules; it is asked at the nodes of a table like those shipped, once, and steps
are looked up there.
"""

from collections.abc import Sequence
from typing import Any

from dsv4kv.budget.gpus import Gpu, load_gpu
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.config.replay import CLOCKS, CostSection, ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.replay.clock.coefficients import MeasuredOn, find_calibration, find_coefficients
from dsv4kv.replay.clock.steps import Deployment, ModelTimes, StepTimes, WeightModel
from dsv4kv.replay.clock.tables import StepTable, TableTimes, shipped_factors

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


def read_table(engine: Any, draft_tokens: int) -> StepTable:
    """What an ``AicEngine`` says at the nodes, in ms."""
    step, chunk = engine.decode_step_latency, engine.predict_prefill_latency
    return StepTable(
        batch_per_rank=_ROWS,
        decode_ms={each: tuple(step(rows, each, 2) for rows in _ROWS) for each in _CONTEXTS},
        prefill_tokens=_TOKENS,
        prefill_ms_by_prefix={
            each: tuple(chunk(1, tokens + each, each) for tokens in _TOKENS) for each in _PREFIXES
        },
        draft_tokens=draft_tokens,
    )


def open_engine(
    deployment: Deployment, model: str, gpu: str, _: CostSection | None = None
) -> TableTimes:
    """Times of a deployment by aiconfigurator-core.

    Raises:
        ConfigError: It is not installed, or knows no such deployment.
    """
    try:
        from aiconfigurator_core import AicEngine
        from aiconfigurator_core.sdk.engine import compile_engine
    except ImportError as error:
        raise ConfigError(
            "cost.source is aiconfigurator, which is not installed: pip install "
            "aiconfigurator-core, or take cost.source model or table."
        ) from error
    layout, drafts = deployment.layout, deployment.draft_passes
    if model not in _MODELS or gpu not in _SYSTEMS or layout.pp > 1:
        raise ConfigError(
            f"cost.source is aiconfigurator, and it is not asked for {model} on {gpu} with "
            f"{layout.label}: take {', '.join(_MODELS)} on {', '.join(_SYSTEMS)}, without pp."
        )
    is_fp8 = gpu.startswith("h") or deployment.weights.expert_kind == "fp8"
    try:
        spec = compile_engine(
            f"deepseek-ai/{_MODELS[model]}",
            _SYSTEMS[gpu],
            "sglang",
            None,
            tp_size=layout.tp,
            attention_dp_size=layout.dp,
            moe_tp_size=layout.tp * layout.dp // layout.ep,
            moe_ep_size=layout.ep,
            moe_quant_mode=_HOPPER if is_fp8 else _BLACKWELL,
            nextn=drafts,
        )
        table = read_table(AicEngine.from_spec(spec), drafts)
    except Exception as error:  # whatever a foreign planner raises
        place = f"{model} on {gpu} with {layout.label}"
        raise ConfigError(f"aiconfigurator-core has no times of {place}: {error}") from error
    return TableTimes(deployment, table, shipped_factors(), "aiconfigurator-core, as installed")


def open_times(
    config: ReplayConfig,
    model: DSV4Config,
    schemas: Sequence[LayerCacheSchema],
    weights: WeightModel,
) -> StepTimes:
    """Times of steps by ``cost.source``, which is not ``stated``.

    Raises:
        ConfigError: An unknown GPU, a layout the model cannot have, a file that cannot be read,
            or nothing known of the deployment.
    """
    cost, gpu = config.cost, find_gpu(config.cost)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue: give cost.bandwidth_gbps."
        )
    deployment = Deployment(
        layers=len(schemas),
        state_bytes=2 * model.hidden_size,
        weights=weights,
        layout=find_layout(cost, model),
        draft_passes=config.scheduler.speculative.draft_tokens,
        all_to_all=cost.all_to_all,
        bytes_per_s=gpu.bandwidth_gbps * 1e9,
    )
    times: StepTimes = CLOCKS[cost.clock].load()(deployment, model.name, gpu.name, cost)
    return times


def find_gpu(cost: CostSection) -> Gpu:
    """The GPU named; raises ``ConfigError`` with the nearest names."""
    if cost.gpu is None:
        raise ConfigError(
            "no memory bandwidth is given: name a GPU (cost.gpu), a bandwidth "
            "(cost.bandwidth_gbps) or a run that measured one (cost.peaks)."
        )
    return load_gpu(cost.gpu)


def find_layout(cost: CostSection, model: DSV4Config) -> Layout:
    """How the GPUs are used; raises ``ConfigError`` where the model cannot be spread so."""
    wish = LayoutWish(cost.gpus, cost.tp, cost.dp, cost.pp, cost.ep)
    return candidate_layouts(model, wish, cost.gpus)[0]


def by_model(deployment: Deployment, model: str, gpu: str, cost: CostSection) -> ModelTimes:
    """By coefficients: calibrated, or the GPU's."""
    if cost.calibration is not None:
        here = MeasuredOn(gpu=gpu, model=model, layout=deployment.layout.label)
        return ModelTimes(deployment, find_calibration(cost.calibration).used_on(here))
    return ModelTimes(deployment, find_coefficients(load_gpu(gpu), deployment.weights.expert_kind))
