"""What a deployment's prefixes need: where hits end, and what they weigh outside the GPU.

Compressed entries are stored whole. Window entries and compressor states are about eight times
their volume, so they are stored in full, at checkpoints, or not at all.
Source: arXiv:2606.19348 §3.5.2.
"""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from dsv4kv.budget.scenario import Scenario
from dsv4kv.engines.contract import Deployment
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import bytes_per_request
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import build_schema

PERIOD_TOKENS = 8192
"""Distance of the checkpoints that the periodic strategy is reported with."""


@dataclass(frozen=True)
class Persistent:
    """A prefix on disk: ``recompute_tokens`` at most are computed again before it is used.

    The strategy ``full`` stores every window entry, ``periodic`` window and state at every
    ``PERIOD_TOKENS``, ``zero`` neither.
    """

    strategy: str
    context_bytes: int
    window_bytes: int
    state_bytes: int
    recompute_tokens: int

    @property
    def total_bytes(self) -> int:
        """Everything stored."""
        return self.context_bytes + self.window_bytes + self.state_bytes


def prefix_document(scenario: Scenario, context_tokens: int) -> dict[str, Any] | None:
    """Prefixes of a deployment as plain values, on the ranks of its first stage.

    None for a model whose prefixes are not modelled. Bytes of one token of context that leaves
    the GPU are its entries and indexer keys, without and with the padding of the engine's pages.
    """
    engine, deployment = scenario.engine, scenario.deployment(0, context_tokens)
    if scenario.config.architecture == "flat":
        return None
    try:
        rule, costs = engine.rule(deployment), engine.costs(deployment)
    except ConfigError:
        return None
    context = [cost for cost in costs if cost.pool in ("main", "indexer")]
    useful = sum((cost.marginal_bytes for cost in context), Fraction(0))
    padding = sum((cost.padding_bytes for cost in context), Fraction(0))
    return {
        "hit_multiple_tokens": rule.block_tokens,
        "shortest_prompt_tokens": rule.shortest_prompt_tokens,
        "replayed_tokens": rule.replayed_tokens,
        "needs": [asdict(need) for need in rule.needs],
        "offloaded_useful_bytes_per_token": float(useful),
        "offloaded_padded_bytes_per_token": float(useful + padding),
        "persistent": [
            asdict(kept) | {"total_bytes": kept.total_bytes}
            for kept in persist(deployment, context_tokens)
        ],
    }


def persist(
    deployment: Deployment, tokens: int, period: int = PERIOD_TOKENS
) -> tuple[Persistent, ...]:
    """A prefix by every strategy, of the layers that the rank holds; drafts keep nothing."""
    model = deployment.model
    schemas = [
        build_schema(model, spec, formats=deployment.formats)
        for spec in build_schedule(model, layers=deployment.layers)
    ]
    held = bytes_per_request(schemas, tokens)
    context = held.compressed + held.indexer
    window = sum(s.window.format.entry_bytes for s in schemas if s.window)
    checkpoints, entries = tokens // period, min(period, model.window_tokens)
    kept = checkpoints * entries * window
    recomputed = min(tokens, len(schemas) * model.window_tokens)
    return (
        Persistent("full", context, window * tokens, held.state if tokens else 0, 0),
        Persistent("periodic", context, kept, checkpoints * held.state, min(tokens, period - 1)),
        Persistent("zero", context, 0, 0, recomputed),
    )
