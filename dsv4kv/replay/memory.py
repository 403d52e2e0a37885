"""How the memory is divided: slots of requests, checkpoints, and blocks of context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.core.prompts import Strategy
from dsv4kv.engines.contract import RESERVE, SHARE, Deployment
from dsv4kv.engines.names import find_rule
from dsv4kv.engines.rule import Speculation, Variant
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.model import plan
from dsv4kv.model.config import DSV4Config, build_schedule
from dsv4kv.model.plan import HeldBytes, bytes_per_token, held_bytes
from dsv4kv.model.presets import load_model
from dsv4kv.replay.clock.steps import WeightModel
from dsv4kv.replay.mrc import parse_strategy
from dsv4kv.replay.rules import WINDOW_RATIO, check_model, find_drafts, layout_of
from dsv4kv.units import counted, format_bytes

_BLOCK_TOKENS = 128  # where neither the configuration nor a rule says


def _engine_bytes(
    config: ReplayConfig,
    rule: Variant,
    model: DSV4Config,
    schemas: Sequence[plan.LayerCacheSchema],
    held: HeldBytes,
) -> tuple[int, int, int]:
    """Bytes of a running request in addition to blocks, of a block, and of a page of windows.

    Groups share blocks of one size, which hold windows and states of running requests too (vLLM).
    Pools apart have pages of context, and pages of windows with CSA states (SGLang). A rule
    without windows keeps running requests' windows in slots. Raises ``ConfigError``.
    """
    if not rule.groups:
        return held.slot, held.block, 0
    if rule.policy.index == "hashed":
        deployment = describe_deployment(config, model, schemas)
        on_gpu = replace(deployment, arch=arch_of(config.cost))
        return 0, layout_of(rule, on_gpu).unit_bytes, 0
    pages = held.window_entries * schemas[0].block_tokens + held.checkpoint - held.windows
    return held.slot - held.checkpoint, held.block, pages


def arch_of(cost: CostSection) -> str | None:
    return load_gpu(cost.gpu).arch


def describe_deployment(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[plan.LayerCacheSchema]
) -> Deployment:
    """Formats that an engine sizes: its FP8 keys, where the configuration names none."""
    formats = config.model.formats
    return Deployment(
        model,
        plan.choose_formats(model, formats.main, formats.window, formats.indexer or "fp8"),
        max_context_tokens=config.cache.max_context_tokens or model.max_context_tokens,
        in_flight_tokens=config.scheduler.step_tokens,
        layers=tuple(s.layer.layer_idx for s in schemas if not s.layer.is_draft),
        draft_layers=sum(schema.layer.is_draft for schema in schemas),
        block_tokens=schemas[0].block_tokens,
        online_state=config.cache.state == "online",
    )


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes and numbers of everything that is held."""

    rule: Variant  # by which prompts are found, ``drafts`` made of tokens
    drafts: Speculation
    model: DSV4Config
    schemas: tuple[plan.LayerCacheSchema, ...]  # storage of every layer
    group: plan.TableGroup  # decides how many blocks a length needs
    block_tokens: int  # tokens of a block
    block_bytes: int  # bytes of a block, with what is kept with it
    beside_bytes: int  # window and state in them, which ``full`` keeps with every block
    slot_bytes: int
    # window and state of a prefix that ends at a whole block; by an engine's rule a page of its
    # pool of windows
    checkpoint_bytes: int
    num_slots: int
    num_checkpoints: int | None  # checkpoints, or pages of windows; None without a limit
    num_blocks: int
    total_bytes: int | None  # all memory; None where blocks are given instead
    max_context_tokens: int
    strategy: Strategy

    @cached_property
    def token_bytes(self) -> float:
        """Bytes that a token of context fills, without padding."""
        return float(bytes_per_token(self.schemas))

    @property
    def used_bytes(self) -> int:
        """What slots, checkpoints of a known number and blocks take."""
        checkpoints = (self.num_checkpoints or 0) * self.checkpoint_bytes
        slots = self.num_slots * self.slot_bytes
        return slots + checkpoints + self.num_blocks * self.block_bytes

    @property
    def held_bytes(self) -> int:
        return self.used_bytes if self.total_bytes is None else self.total_bytes

    @property
    def remainder_bytes(self) -> int:
        """Memory that is too little for one more block."""
        return self.held_bytes - self.used_bytes


def plan_memory(config: ReplayConfig) -> MemoryPlan:
    """Divide the memory of a configuration; raises ``ConfigError``."""
    model, rule = load_model(config.model.preset), find_rule(config.prefix.rule)
    try:
        drafts = find_drafts(config.prefix.rule, rule, config.prefix.speculation)
    except ConfigError as error:
        raise ConfigError(f"prefix.speculation: {error}") from None
    check_model(config.prefix.rule, rule, model)
    own_tokens = rule.block_tokens_on(arch_of(config.cost)) or _BLOCK_TOKENS
    block_tokens = config.cache.block_tokens or own_tokens
    schemas = _schemas(config, model, block_tokens)
    groups = plan.table_groups(schemas, "model")
    if not groups:
        raise ConfigError("none of the layers held has compressed KV: there is nothing to reuse.")
    window = model.window_tokens if any(schema.window for schema in schemas) else 0
    try:
        strategy = parse_strategy(
            config.prefix.strategy, window_tokens=window, layers=len(schemas)
        )
    except ConfigError as error:
        raise ConfigError(f"prefix.strategy: {error}") from None
    held, beside_bytes = held_bytes(schemas), 0
    slot_bytes, block_bytes, kept_bytes = held.slot, held.block, held.checkpoint
    if rule.engine:
        slot_bytes, block_bytes, kept_bytes = _engine_bytes(config, rule, model, schemas, held)
    elif config.prefix.reuse and strategy.kind == "full":
        # every window entry of a block's tokens, and the state at its end
        states = sum(schema.state_bytes for schema in schemas if schema.indexer)
        beside_bytes = held.window_entries * block_tokens + states
        block_bytes += beside_bytes
    keeps = rule.engine or (config.prefix.reuse and strategy.kind not in ("full", "zero"))
    checkpoints, blocks = _divide(
        config, rule, slot_bytes, kept_bytes if keeps else 0, block_bytes
    )
    return MemoryPlan(
        rule=rule,
        drafts=drafts,
        model=model,
        schemas=schemas,
        group=groups[0],
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        beside_bytes=beside_bytes,
        slot_bytes=slot_bytes,
        checkpoint_bytes=kept_bytes,
        num_slots=config.scheduler.max_requests,
        num_checkpoints=checkpoints,
        num_blocks=blocks,
        total_bytes=config.cache.memory_bytes,
        max_context_tokens=config.cache.max_context_tokens or model.max_context_tokens,
        strategy=strategy,
    )


def _schemas(
    config: ReplayConfig, model: DSV4Config, block_tokens: int
) -> tuple[plan.LayerCacheSchema, ...]:
    section = config.model
    formats = section.formats
    specs = build_schedule(
        model,
        layers=section.layers,
        stage=section.pipeline.stage,
        stages=section.pipeline.stages,
        draft_layers=section.draft_layers,
    )
    build = partial(
        plan.build_schema,
        model,
        formats=plan.choose_formats(model, formats.main, formats.window, formats.indexer),
        block_tokens=block_tokens,
        state=config.cache.state,
        draft_tokens=config.scheduler.speculative.draft_tokens,
    )
    return tuple(map(build, specs))


def _divide(
    config: ReplayConfig, rule: Variant, slot_bytes: int, kept_bytes: int, block_bytes: int
) -> tuple[int | None, int]:
    """Checkpoints, or an engine's pages of windows, none where they have no bytes; and blocks."""
    cache, slots, engine = config.cache, config.scheduler.max_requests, bool(rule.engine)
    checkpoints, blocks = cache.num_checkpoints if kept_bytes else 0, cache.num_blocks
    if blocks is None:
        left = (cache.memory_bytes or 0) - slots * slot_bytes
        if engine:
            blocks = left * WINDOW_RATIO // (WINDOW_RATIO * block_bytes + kept_bytes)
        else:
            if checkpoints is None:
                checkpoints = max(0, int(left * cache.checkpoint_share)) // kept_bytes
            blocks = (left - checkpoints * kept_bytes) // block_bytes
    if blocks < 1:
        held = f"{slots} slots of {format_bytes(slot_bytes)}"
        if not engine:
            held += f" and {checkpoints} checkpoints of {format_bytes(kept_bytes)}"
        whose = f", as prefix.rule {config.prefix.rule} has them" if engine else ""
        raise ConfigError(
            f"cache.memory_bytes is {format_bytes(cache.memory_bytes or 0)}: {held} leave no room "
            f"for a block of {format_bytes(block_bytes)}{whose}: give more memory or lower "
            "scheduler.max_requests."
        )
    if checkpoints is None and engine:
        checkpoints = blocks // WINDOW_RATIO
    return checkpoints, blocks


def check_fit(cost: CostSection, memory: MemoryPlan, weights: WeightModel) -> None:
    """Refuse GPUs that cannot hold their shares of weights and cache."""
    gpu = load_gpu(cost.gpu)
    usable = int(gpu.memory_bytes * SHARE) - RESERVE
    held = weights.held_bytes + memory.held_bytes
    if held <= usable * cost.gpus:
        return
    raise DoesNotFit(
        f"{format_bytes(weights.held_bytes)} of weights and {format_bytes(memory.held_bytes)} of "
        f"cache do not fit on {counted(cost.gpus, 'GPU')} of {gpu.name}: every GPU lacks "
        f"{format_bytes(-(-held // cost.gpus) - usable)} ({format_bytes(usable)} of its "
        f"{format_bytes(gpu.memory_bytes)} can be used: {float(SHARE):.0%} less "
        f"{format_bytes(RESERVE)}, as dsv4kv budget has it). {ceil(held / usable)} are the "
        "minimum: give cost.gpus (--gpus), or less cache.memory_bytes."
    )
