"""How the memory is divided: slots of requests, checkpoints, and blocks of context."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dsv4kv.config.replay import PrefixSection, ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.budget import bytes_per_token
from dsv4kv.model.checkpoint import checkpoint_bytes
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import LayerCacheSchema, build_schema, choose_formats
from dsv4kv.model.sharing import TableGroup, table_groups
from dsv4kv.prefix.analysis.rules import RULES, Rule, find_drafts, find_rule
from dsv4kv.prefix.analysis.strategy import STRATEGIES, Strategy, parse_strategy
from dsv4kv.replay.engine_memory import divide_for_engine, engine_units
from dsv4kv.units import format_bytes

_WITHOUT_CHECKPOINTS = ("full", "zero")
DEFAULT_BLOCK_TOKENS = 128
"""Tokens of a block where neither the configuration nor a rule says."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes and numbers of everything that is held.

    Attributes:
        model: The model.
        schemas: Storage of every layer.
        group: Decides how many blocks a length needs.
        block_tokens: Tokens of a block.
        block_bytes: Bytes of a block, with what is kept beside it.
        beside_bytes: Of which window and state, that ``full`` keeps beside every block.
        slot_bytes: Window and state of a running request.
        checkpoint_bytes: Window and state of a prefix that ends at a whole block; by an engine's
            rule a page of its pool of windows.
        num_slots: Requests that hold a slot.
        num_checkpoints: Checkpoints, or pages of windows; None for as many as are wanted.
        num_blocks: Blocks of context.
        total_bytes: All memory; None where blocks are given instead.
        max_context_tokens: Longest request.
        strategy: What is kept of windows and states.
    """

    model: DSV4Config
    schemas: tuple[LayerCacheSchema, ...]
    group: TableGroup
    block_tokens: int
    block_bytes: int
    beside_bytes: int
    slot_bytes: int
    checkpoint_bytes: int
    num_slots: int
    num_checkpoints: int | None
    num_blocks: int
    total_bytes: int | None
    max_context_tokens: int
    strategy: Strategy

    @property
    def token_bytes(self) -> float:
        """Bytes that a token of context fills, padding left out."""
        return float(bytes_per_token(self.schemas))

    @property
    def held_bytes(self) -> int:
        """All memory, or what slots, checkpoints of a known number and blocks take."""
        if self.total_bytes is not None:
            return self.total_bytes
        return self._parts_bytes

    @property
    def _parts_bytes(self) -> int:
        checkpoints = (self.num_checkpoints or 0) * self.checkpoint_bytes
        slots = self.num_slots * self.slot_bytes
        return slots + checkpoints + self.num_blocks * self.block_bytes

    @property
    def remainder_bytes(self) -> int:
        """Memory that is too little for one more block."""
        if self.total_bytes is None:
            return 0
        return self.total_bytes - self._parts_bytes


def plan_memory(config: ReplayConfig) -> MemoryPlan:
    """Divide the memory of a configuration.

    Raises:
        ConfigError: The model has no blocks, or the memory does not hold the slots and a block.
    """
    model, rule = load_model(config.model.preset), _read_rule(config.prefix)
    block_tokens = config.cache.block_tokens or rule.block_tokens or DEFAULT_BLOCK_TOKENS
    schemas = _schemas(config, model, block_tokens)
    groups = table_groups(schemas, "model")
    if not groups:
        raise ConfigError("none of the layers held has compressed KV: there is nothing to reuse.")
    strategy = _read_strategy(config.prefix.strategy, model, len(schemas))
    slot_bytes = sum(schema.slot_bytes for schema in schemas)
    kept_bytes = sum(map(checkpoint_bytes, schemas))
    full = config.prefix.reuse and strategy.kind == "full"
    beside_bytes = _full_bytes(schemas, block_tokens) if full else 0
    block_bytes = beside_bytes + sum(schema.block_bytes for schema in schemas)
    keeps = config.prefix.reuse and strategy.kind not in _WITHOUT_CHECKPOINTS
    if rule.open:
        units = engine_units(config, model, schemas)
        slot_bytes, block_bytes, beside_bytes = units.slot_bytes, units.block_bytes, 0
        kept_bytes = units.window_bytes
        checkpoints: int | None
        checkpoints, blocks = divide_for_engine(config, units)
    else:
        checkpoints, blocks = _divide(config, slot_bytes, kept_bytes if keeps else 0, block_bytes)
    return MemoryPlan(
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


def _read_rule(prefix: PrefixSection) -> Rule:
    try:
        rule = find_rule(prefix.rule)
    except ConfigError as error:
        guess = _guess(prefix.rule, tuple(RULES))
        raise ConfigError(f"prefix.rule: {error}{guess}") from None
    try:
        find_drafts(prefix.rule, prefix.speculation)
    except ConfigError as error:
        raise ConfigError(f"prefix.speculation: {error}") from None
    return rule


def _guess(text: str, known: Sequence[str]) -> str:
    """A question that ends a sentence about a name nobody knows; empty if none is close."""
    close = get_close_matches(text, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def _read_strategy(text: str, model: DSV4Config, layers: int) -> Strategy:
    try:
        return parse_strategy(text, window_tokens=model.window_tokens, layers=layers)
    except ConfigError as error:
        raise ConfigError(f"prefix.strategy: {error}{_guess(text, STRATEGIES)}") from None


def _schemas(
    config: ReplayConfig, model: DSV4Config, block_tokens: int
) -> tuple[LayerCacheSchema, ...]:
    section = config.model
    formats = section.formats
    specs = build_schedule(
        model,
        layers=section.layers,
        stage=section.pipeline.stage,
        stages=section.pipeline.stages,
        draft_layers=section.draft_layers,
    )
    return tuple(
        build_schema(
            model,
            spec,
            formats=choose_formats(model, formats.main, formats.window, formats.indexer),
            block_tokens=block_tokens,
            state=config.cache.state,
            draft_tokens=config.scheduler.speculative.draft_tokens,
        )
        for spec in specs
    )


def _full_bytes(schemas: Sequence[LayerCacheSchema], block_tokens: int) -> int:
    """Beside one block: every window entry of its tokens, and the state at its end."""
    entries = sum(
        schema.window.format.entry_bytes * block_tokens for schema in schemas if schema.window
    )
    return entries + sum(schema.state_bytes for schema in schemas if schema.indexer)


def _divide(
    config: ReplayConfig, slot_bytes: int, checkpoint_bytes: int, block_bytes: int
) -> tuple[int | None, int]:
    """Checkpoints and blocks; no checkpoints where they have no bytes."""
    cache = config.cache
    checkpoints = cache.num_checkpoints if checkpoint_bytes else 0
    if cache.num_blocks is not None or cache.memory_bytes is None:
        return checkpoints, cache.num_blocks or 0
    slots = config.scheduler.max_requests
    left = cache.memory_bytes - slots * slot_bytes
    if checkpoints is None:
        checkpoints = max(0, int(left * cache.checkpoint_share)) // checkpoint_bytes
    blocks = (left - checkpoints * checkpoint_bytes) // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"cache.memory_bytes is {format_bytes(cache.memory_bytes)}: {slots} slots of "
            f"{format_bytes(slot_bytes)} and {checkpoints} checkpoints of "
            f"{format_bytes(checkpoint_bytes)} leave no room for a block of "
            f"{format_bytes(block_bytes)}: give more memory or lower scheduler.max_requests."
        )
    return checkpoints, blocks
