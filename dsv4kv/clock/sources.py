"""From a configuration to times of steps, by each of ``choices.CLOCKS``."""

from collections.abc import Sequence
from pathlib import Path

from dsv4kv.choices import CLOCKS
from dsv4kv.clock.coefficients import MeasuredOn, find_calibration, find_coefficients
from dsv4kv.clock.steps import Deployment, ModelTimes, StepTimes
from dsv4kv.clock.tables import TableTimes, open_own, open_shipped
from dsv4kv.clock.weights import WeightModel
from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.names import find_name
from dsv4kv.sizing.gpus import Gpu, gpu_names, load_gpu
from dsv4kv.sizing.layout import Layout, LayoutWish, candidate_layouts


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
    times: StepTimes = CLOCKS[cost.clock].load()(deployment, model, gpu, cost)
    return times


def find_gpu(cost: CostSection) -> Gpu:
    """The GPU named; raises ``ConfigError`` with the nearest names."""
    if cost.gpu is None:
        raise ConfigError(
            "no memory bandwidth is given: name a GPU (cost.gpu), a bandwidth "
            "(cost.bandwidth_gbps) or a run that measured one (cost.peaks)."
        )
    otherwise = ", or its bandwidth as cost.bandwidth_gbps"
    return load_gpu(find_name(cost.gpu, gpu_names(), "GPU", otherwise))


def find_layout(cost: CostSection, model: DSV4Config) -> Layout:
    """How the GPUs are used; raises ``ConfigError`` where the model cannot be spread so."""
    wish = LayoutWish(cost.gpus, cost.tp, cost.dp, cost.pp, cost.ep)
    return candidate_layouts(model, wish, cost.gpus)[0]


def name_deployment(gpu: Gpu, model: DSV4Config, layout: Layout) -> MeasuredOn:
    """A deployment as a calibration names it."""
    return MeasuredOn(gpu=gpu.name, model=model.name, layout=layout.label)


def by_model(deployment: Deployment, model: DSV4Config, gpu: Gpu, cost: CostSection) -> ModelTimes:
    """By coefficients: calibrated, or the GPU's."""
    if cost.calibration is not None:
        here = name_deployment(gpu, model, deployment.layout)
        return ModelTimes(deployment, find_calibration(cost.calibration).used_on(here))
    return ModelTimes(deployment, find_coefficients(gpu, deployment.weights.expert_kind))


def by_table(deployment: Deployment, model: DSV4Config, gpu: Gpu, cost: CostSection) -> TableTimes:
    """By steps that were measured: the user's, or shipped ones."""
    if cost.table is not None:
        return open_own(deployment, Path(cost.table))
    return open_shipped(deployment, model.name, gpu.name)


def by_aiconfigurator(
    deployment: Deployment, model: DSV4Config, gpu: Gpu, _: CostSection
) -> TableTimes:
    """By aiconfigurator-core; raises ``ConfigError`` where it is not installed."""
    from dsv4kv.clock.aiconfigurator import open_engine

    return open_engine(deployment, model.name, gpu.name)
