"""What a deployment's prefixes need: where hits end, and what they weigh outside the GPU.

Bytes that a prefix costs outside the GPU, and what the strategies for windows make of them.
Compressed entries are stored whole. Window entries and compressor states are about eight times
their volume, so they are stored in full, at checkpoints, or not at all.
Source: arXiv:2606.19348 §3.5.2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

from dsv4kv.engines.contract import Deployment, Engine
from dsv4kv.engines.rule import Rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import bytes_per_request
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import LayerCacheSchema, build_schema
from dsv4kv.sizing.scenario import Scenario

WindowStrategy = Literal["full", "periodic", "zero"]
WINDOW_STRATEGIES: tuple[WindowStrategy, ...] = ("full", "periodic", "zero")


@dataclass(frozen=True)
class OffloadedToken:
    """Bytes of one token of context that leave the GPU with its blocks.

    Attributes:
        useful_bytes: Of compressed entries and indexer keys.
        padded_bytes: With the padding of the engine's pages.
    """

    useful_bytes: Fraction
    padded_bytes: Fraction


@dataclass(frozen=True)
class Persistent:
    """A prefix on disk.

    Attributes:
        strategy: For windows and states.
        context_bytes: Compressed entries and indexer keys.
        window_bytes: Window entries.
        state_bytes: Compressor states.
        recompute_tokens: Tokens at most to be computed again before the prefix can be used.
    """

    strategy: WindowStrategy
    context_bytes: int
    window_bytes: int
    state_bytes: int
    recompute_tokens: int

    @property
    def total_bytes(self) -> int:
        """Everything stored."""
        return self.context_bytes + self.window_bytes + self.state_bytes


def offloaded_token(engine: Engine, deployment: Deployment) -> OffloadedToken:
    """What an engine's blocks of context weigh when they are moved; raises ``ConfigError``."""
    costs = [cost for cost in engine.costs(deployment) if cost.pool in ("main", "indexer")]
    useful = sum((cost.marginal_bytes for cost in costs), Fraction(0))
    padding = sum((cost.padding_bytes for cost in costs), Fraction(0))
    return OffloadedToken(useful, useful + padding)


def persistent_bytes(
    deployment: Deployment,
    tokens: int,
    strategy: WindowStrategy,
    *,
    period_tokens: int | None = None,
) -> Persistent:
    """Bytes of a prefix of so many tokens under a strategy.

    Args:
        deployment: Model, layers and formats.
        tokens: Length of the prefix.
        strategy: ``full`` stores every window entry; ``periodic`` window and state at every
            ``period_tokens``; ``zero`` neither.
        period_tokens: For ``periodic``.

    Raises:
        ConfigError: An unknown strategy, a negative length, or a period that is missing,
            misplaced or not positive.
    """
    _check(tokens, strategy, period_tokens)
    schemas = _schemas(deployment)
    held = bytes_per_request(schemas, tokens)
    context = held.compressed + held.indexer
    window = sum(s.window.format.entry_bytes for s in schemas if s.window)
    if strategy == "full":
        return Persistent(strategy, context, window * tokens, held.state if tokens else 0, 0)
    if strategy == "zero":
        replayed = min(tokens, len(schemas) * deployment.model.window_tokens)
        return Persistent(strategy, context, 0, 0, replayed)
    assert period_tokens is not None
    checkpoints = tokens // period_tokens
    entries = min(period_tokens, deployment.model.window_tokens)
    return Persistent(
        strategy,
        context,
        checkpoints * entries * window,
        checkpoints * held.state,
        min(tokens, period_tokens - 1),
    )


def _check(tokens: int, strategy: str, period_tokens: int | None) -> None:
    if strategy not in WINDOW_STRATEGIES:
        raise ConfigError(
            f"{strategy!r} is no window strategy: choose {', '.join(WINDOW_STRATEGIES)}."
        )
    if tokens < 0:
        raise ConfigError(f"a prefix of {tokens} tokens cannot be.")
    if (strategy == "periodic") != (period_tokens is not None):
        raise ConfigError("the strategy periodic takes a period, the others take none.")
    if period_tokens is not None and period_tokens <= 0:
        raise ConfigError(f"the period is {period_tokens} tokens: it must be at least 1.")


def _schemas(deployment: Deployment) -> Sequence[LayerCacheSchema]:
    """Layers of the model that this rank holds; drafts keep nothing worth storing."""
    return [
        build_schema(deployment.model, spec, formats=deployment.formats)
        for spec in build_schedule(deployment.model, layers=deployment.layers)
    ]


PERIOD_TOKENS = 8192
"""Distance of the checkpoints that the periodic strategy is reported with."""


@dataclass(frozen=True)
class Reuse:
    """Prefixes of one deployment, on the ranks of its first stage.

    Attributes:
        rule: How the engine finds them.
        offloaded: Bytes of one token of context that leave the GPU.
        persistent: A whole context stored in full, with checkpoints, without windows.
    """

    rule: Rule
    offloaded: OffloadedToken
    persistent: tuple[Persistent, ...]


def reuse_of(scenario: Scenario, context_tokens: int) -> Reuse | None:
    """What is known about prefixes; None for a model whose prefixes are not modelled."""
    engine, deployment = scenario.engine, scenario.deployment(0, context_tokens)
    if scenario.config.architecture == "flat":
        return None
    try:
        rule, moved = engine.rule(deployment), offloaded_token(engine, deployment)
    except ConfigError:
        return None
    return Reuse(
        rule,
        moved,
        (
            persistent_bytes(deployment, context_tokens, "full"),
            persistent_bytes(deployment, context_tokens, "periodic", period_tokens=PERIOD_TOKENS),
            persistent_bytes(deployment, context_tokens, "zero"),
        ),
    )


def reuse_document(reuse: Reuse | None) -> dict[str, Any] | None:
    """The same as plain values."""
    if reuse is None:
        return None
    return {
        "hit_multiple_tokens": reuse.rule.block_tokens,
        "shortest_prompt_tokens": reuse.rule.shortest_prompt_tokens,
        "replayed_tokens": reuse.rule.replayed_tokens,
        "needs": [asdict(need) for need in reuse.rule.needs],
        "offloaded_useful_bytes_per_token": float(reuse.offloaded.useful_bytes),
        "offloaded_padded_bytes_per_token": float(reuse.offloaded.padded_bytes),
        "persistent": [
            asdict(kept) | {"total_bytes": kept.total_bytes} for kept in reuse.persistent
        ],
    }
