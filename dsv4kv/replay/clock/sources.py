"""From a configuration to times of steps by coefficients."""

from collections.abc import Sequence

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.replay.clock.coefficients import MeasuredOn, find_calibration, find_coefficients
from dsv4kv.replay.clock.steps import Deployment, ModelTimes, WeightModel


def open_times(
    config: ReplayConfig,
    model: DSV4Config,
    schemas: Sequence[LayerCacheSchema],
    weights: WeightModel,
) -> ModelTimes:
    """Times of steps by coefficients: calibrated, or the GPU's.

    Raises:
        ConfigError: An unknown GPU, a layout the model cannot have, a file that cannot be read,
            or nothing known of the deployment.
    """
    cost, gpu = config.cost, load_gpu(config.cost.gpu)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue, so a step cannot be timed."
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
    if cost.calibration is None:
        return ModelTimes(deployment, find_coefficients(gpu, weights.expert_kind))
    here = MeasuredOn(gpu=gpu.name, model=model.name, layout=deployment.layout.label)
    return ModelTimes(deployment, find_calibration(cost.calibration).used_on(here))


def find_layout(cost: CostSection, model: DSV4Config) -> Layout:
    """How the GPUs are used; raises ``ConfigError`` where the model cannot be spread so."""
    wish = LayoutWish(cost.gpus, cost.tp, cost.dp, cost.pp, cost.ep)
    return candidate_layouts(model, wish, cost.gpus)[0]
