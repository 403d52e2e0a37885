"""What a deployment's prefixes need: where hits end, and what they weigh outside the GPU."""

from dataclasses import asdict, dataclass
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.offload import OffloadedToken, Persistent, offloaded_token, persistent_bytes
from dsv4kv.sizing.prefix import PrefixRule, prefix_rule
from dsv4kv.sizing.scenario import Scenario

PERIOD_TOKENS = 8192
"""Distance of the checkpoints that the periodic strategy is told with."""


@dataclass(frozen=True)
class Reuse:
    """Prefixes of one deployment, on the ranks of its first stage.

    Attributes:
        rule: How the engine finds them.
        offloaded: Bytes of one token of context that leave the GPU.
        persistent: A whole context stored in full, with checkpoints, without windows.
    """

    rule: PrefixRule
    offloaded: OffloadedToken
    persistent: tuple[Persistent, ...]


def reuse_of(scenario: Scenario, context_tokens: int) -> Reuse | None:
    """What is known about prefixes; None for a model whose prefixes are not modelled."""
    name, deployment = scenario.engine.name, scenario.deployment(0, context_tokens)
    if scenario.config.architecture == "flat":
        return None
    try:
        rule, moved = prefix_rule(name, deployment), offloaded_token(name, deployment)
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
        "needs": [asdict(need) for need in reuse.rule.needs],
        "offloaded_useful_bytes_per_token": float(reuse.offloaded.useful_bytes),
        "offloaded_padded_bytes_per_token": float(reuse.offloaded.padded_bytes),
        "persistent": [
            asdict(kept) | {"total_bytes": kept.total_bytes} for kept in reuse.persistent
        ],
    }
