"""A server as its engine starts it: pools, host memory, limits and rule, as in ``budget``."""

from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from dsv4kv.clock.sources import find_layout
from dsv4kv.clock.weights import find_weights
from dsv4kv.config.bench import Section
from dsv4kv.config.replay import ReplayConfig, ServerSection, TierSection
from dsv4kv.engines.contract import Capacity
from dsv4kv.engines.registry import find_engine
from dsv4kv.engines.sglang.sizing import SglangEngine
from dsv4kv.engines.vllm.sizing import VllmEngine
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.model.presets import load_model
from dsv4kv.sizing.answer import capacity_of
from dsv4kv.sizing.flags import Texts
from dsv4kv.sizing.host import host_of
from dsv4kv.sizing.inputs import read_inputs
from dsv4kv.sizing.launch import read_command
from dsv4kv.sizing.scenario import Scenario, resolve

SectionT = TypeVar("SectionT", bound=Section)
_SIZES = ("tp", "dp", "pp", "ep")
_COUNTED = ("hicache", "native", "simple")
"""Tiers in host memory whose blocks are the GPU's."""
_LAUNCHERS = {"sglang": "python -m sglang.launch_server", "vllm": "vllm serve"}


def by_server(config: ReplayConfig) -> ReplayConfig:
    """The configuration with what its server says; the same without a server.

    Replicas of one server have their pools together, as one.

    Raises:
        ConfigError: A command that cannot be read, another model or number of GPUs than the
            configuration's, or an engine without a rule.
        DoesNotFit: The engine does not start with what it is given.
    """
    if not config.server.given:
        return config
    scenario = resolve(read_inputs(_texts(config)))[0]
    layout, settings = scenario.layout, scenario.settings
    if layout.gpus != config.cost.gpus:
        raise ConfigError(
            f"server runs on {layout.gpus} GPUs ({layout.label}), and cost.gpus is "
            f"{config.cost.gpus}: give --gpus {layout.gpus}."
        )
    pools, drafts = _pools(scenario), scenario.inputs.draft_tokens
    cache = {
        "memory_bytes": None,
        "num_blocks": pools.blocks * layout.dp,
        "num_checkpoints": None if pools.windows is None else pools.windows * layout.dp,
        "block_tokens": config.cache.block_tokens or scenario.inputs.block_tokens,
    }
    scheduler: dict[str, Any] = {"step_tokens": settings.step_tokens * layout.dp}
    if settings.request_limit:
        scheduler["max_requests"] = settings.request_limit * layout.dp
    speculative = config.scheduler.speculative
    if drafts and not speculative.draft_tokens:
        counted = isinstance(scenario.engine, SglangEngine)  # with the token that drafts follow
        scheduler["speculative"] = _changed(speculative, draft_tokens=drafts - counted)
    sizes = {name: getattr(layout, name) for name in _SIZES}
    rule = config.prefix.rule if config.prefix.rule != "ideal" else _rule(scenario)
    return _changed(
        config,
        server=_changed(config.server, engine=scenario.engine.name),
        cost=_changed(config.cost, **sizes),
        cache=_changed(config.cache, **cache),
        prefix=_changed(config.prefix, rule=rule),
        scheduler=_changed(config.scheduler, **scheduler),
        tiers=_changed(config.tiers, host=_host(config.tiers.host, scenario)),
    )


def _host(asked: TierSection, scenario: Scenario) -> TierSection:
    """Host memory of the command, in blocks for one of the GPU's, unless a tier is given."""
    inputs = scenario.inputs
    if asked.exists or inputs.host_tier not in _COUNTED:
        return asked
    context = scenario.context_tokens
    capacity, deployment = capacity_of(scenario, 0, context, 1), scenario.deployment(0, context)
    tier = host_of(inputs, scenario.engine, scenario.layout, deployment, capacity)
    if tier is None or capacity is None:
        return asked
    if tier.refusal:
        raise DoesNotFit(tier.refusal)
    ratio = inputs.host_ratio or Fraction(tier.pools[0].pages, capacity.units)
    return _changed(asked, ratio=float(ratio))


def holds_chunks(server: ServerSection) -> bool:
    """Whether a running request holds the windows of all of its prompt's last chunk.

    Up to SGLang 0.5.17 a leaf of the tree is locked whole (``SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT``
    is off).
    """
    engine = find_engine(server.engine) if server.engine else None
    return isinstance(engine, SglangEngine) and not engine.build.frees_windows


class _Pools(NamedTuple):
    """Blocks of a replica, and pages of windows where they have a pool of their own."""

    blocks: int
    windows: int | None


def _changed(section: SectionT, **values: Any) -> SectionT:
    return section.model_copy(update=values)


def _texts(config: ReplayConfig) -> Texts:
    """Options of ``dsv4kv budget`` that describe the server."""
    server, drafts = config.server, config.scheduler.speculative.draft_tokens
    engine = server.engine or ""
    family = engine.partition(":")[0]
    model = load_model(config.model.preset)
    layout = find_layout(config.cost, model)
    texts = {name: str(getattr(layout, name)) for name in _SIZES}
    if server.command is not None:
        texts = _read(config, server.command, _LAUNCHERS.get(family))
    texts = {"gpu": config.cost.gpu or "", **texts, "model": config.model.preset}
    if engine:
        texts["engine"] = engine
    if drafts and "draft-tokens" not in texts:
        texts["draft-tokens"] = str(drafts + (texts["engine"].startswith("sglang")))
        texts.setdefault("draft-layers", str(config.model.draft_layers or 1))
    if config.cost.changed("experts", "weight_bytes"):
        texts["weights"] = str(find_weights(config, model)[1].total_bytes)
    if config.cache.max_context_tokens:
        texts["context"] = str(config.cache.max_context_tokens)
    return texts


def _read(config: ReplayConfig, command: str, launcher: str | None) -> Texts:
    """What a launch command says; flags alone are those of ``launcher``."""
    if command.lstrip().startswith("-"):
        if launcher is None:
            raise ConfigError(
                "server.command begins with a flag, and server.engine does not say whose: give "
                "sglang or vllm there, or the whole command."
            )
        command = f"{launcher} {command}"
    preset = config.model.preset
    found = read_command(command, model=preset).texts
    served = found.get("model", preset)
    if served != preset:
        raise ConfigError(
            f"server.command serves {served}, and model.preset is {preset}: give --model {served}."
        )
    return found


def _pools(scenario: Scenario) -> _Pools:
    """Of the smallest pipeline stage."""
    context = scenario.context_tokens
    stages = range(scenario.layout.pp)
    return min(
        _pools_of(scenario, stage, capacity_of(scenario, stage, context, 1)) for stage in stages
    )


def _pools_of(scenario: Scenario, stage: int, capacity: Capacity | None) -> _Pools:
    engine = scenario.engine
    lines = capacity.log_lines if capacity else ()
    if capacity is None or not capacity.units or (lines and capacity.printed_tokens is None):
        raise DoesNotFit(
            f"{engine.name} does not start on {scenario.layout.label} of {scenario.gpu.name}: "
            f"{lines[-1] if lines else 'its weights leave no memory for a cache'}. Ask dsv4kv "
            "budget for a layout that does."
        )
    context = scenario.context_tokens
    if isinstance(engine, SglangEngine) and scenario.config.kind != "flat":
        pools = engine.pools(scenario.deployment(stage, context))
        page = pools.page_tokens
        return _Pools(capacity.units // page, pools.sizes(capacity.units, 0).swa // page)
    return _Pools(capacity.units, None)


_VLLM_V4 = {0: "vllm-v4:semantic", 4096: "vllm-v4:4096", None: "vllm-v4:dense"}


def _rule(scenario: Scenario) -> str:
    """The ``prefix.rule`` of a server."""
    kind, settings = scenario.config.kind, scenario.settings
    family = scenario.engine.name.partition(":")[0]
    if isinstance(scenario.engine, SglangEngine):
        rules = {
            "v4": f"sglang-v4:{'tail' if settings.frees_windows else 'dense'}",
            "v41": "sglang-v41:encoder" if settings.replays_windows else "sglang-v41",
            "flat": "sglang",
        }
        return rules[kind]
    if not isinstance(scenario.engine, VllmEngine):
        raise ConfigError(f"server is {family}: requests are replayed by vllm or sglang.")
    retention = scenario.inputs.retention
    if kind == "v4" and retention not in _VLLM_V4:
        raise ConfigError(
            f"server keeps windows every {retention} tokens, and prefix.rule knows 0, 4,096 and "
            "dense (every block): choose one of them, or name a rule."
        )
    return {"v4": _VLLM_V4.get(retention, ""), "v41": "vllm-v41", "flat": "vllm"}[kind]
