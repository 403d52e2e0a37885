"""What an engine's rule takes of the memory: its units, and how many there are of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema, choose_formats
from dsv4kv.prefix.analysis.rule_pool import WINDOW_RATIO
from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.engines.vllm import V0_33
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class EngineUnits:
    """Bytes of an engine's units.

    Attributes:
        slot_bytes: What a running request takes beside blocks.
        block_bytes: A block, or a page of context.
        window_bytes: A page of a pool of windows; 0 where there is none.
    """

    slot_bytes: int
    block_bytes: int
    window_bytes: int = 0


def engine_units(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> EngineUnits:
    """The units of ``prefix.rule``.

    vLLM's groups for V4 share blocks of one size, which hold windows and states of running
    requests too (vLLM 0.33, as ``dsv4kv budget`` sizes it). SGLang has pages of context and pages
    of windows with CSA states. A rule with one pool knows nothing of windows: running requests
    have theirs in slots.

    Raises:
        ConfigError: A format or a state that vLLM does not have.
    """
    blocks = sum(schema.block_bytes for schema in schemas)
    match config.prefix.rule.partition(":")[0]:
        case "vllm-v4":
            return EngineUnits(0, V0_33.layout(_deployment(config, model, schemas)).unit_bytes)
        case "sglang-v4":
            rings = sum(schema.state_bytes for schema in schemas if not schema.indexer)
            return EngineUnits(rings, blocks, _window_page_bytes(schemas))
        case _:
            return EngineUnits(sum(schema.slot_bytes for schema in schemas), blocks)


def divide_for_engine(config: ReplayConfig, units: EngineUnits) -> tuple[int, int]:
    """Pages of windows and blocks; raises ``ConfigError`` where not one block has room."""
    cache, slots = config.cache, config.scheduler.max_requests
    blocks = cache.num_blocks
    if blocks is None:
        left = (cache.memory_bytes or 0) - slots * units.slot_bytes
        blocks = left * WINDOW_RATIO // (WINDOW_RATIO * units.block_bytes + units.window_bytes)
    if blocks < 1:
        raise ConfigError(
            f"cache.memory_bytes is {format_bytes(cache.memory_bytes or 0)}: {slots} slots of "
            f"{format_bytes(units.slot_bytes)} leave no room for a block of "
            f"{format_bytes(units.block_bytes)}, as prefix.rule {config.prefix.rule} has them: "
            "give more memory or lower scheduler.max_requests."
        )
    return blocks // WINDOW_RATIO if units.window_bytes else 0, blocks


def _deployment(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> Deployment:
    formats = config.model.formats
    return Deployment(
        model,
        choose_formats(model, formats.main, formats.window, formats.indexer or "fp8"),
        max_context_tokens=config.cache.max_context_tokens or model.max_context_tokens,
        in_flight_tokens=config.scheduler.step_tokens,
        layers=tuple(s.layer.layer_idx for s in schemas if not s.layer.is_draft),
        draft_layers=sum(schema.layer.is_draft for schema in schemas),
        block_tokens=schemas[0].block_tokens,
        online_state=config.cache.state == "online",
    )


def _window_page_bytes(schemas: Sequence[LayerCacheSchema]) -> int:
    """The window entries of a page's tokens, and the CSA states at its end."""
    tokens = schemas[0].block_tokens
    windows = sum(s.window.format.entry_bytes * tokens for s in schemas if s.window)
    return windows + sum(schema.state_bytes for schema in schemas if schema.indexer)
