"""What a deployment keeps in host memory."""

from dataclasses import asdict
from typing import Any

from dsv4kv.choices import Implementation
from dsv4kv.engines.contract import Capacity, Deployment
from dsv4kv.engines.host import HostTier, HostWish
from dsv4kv.errors import ConfigError
from dsv4kv.sizing.inputs import Inputs
from dsv4kv.sizing.layout import NODE_GPUS, Layout

TIERS = {
    ("sglang", "hicache"): "sglang.host:size_hicache",
    ("sglang", "hisparse"): "sglang.host:size_hisparse",
    ("vllm", "native"): "vllm.host:size_offloading",
    ("vllm", "simple"): "vllm.host:size_simple",
    ("vllm", "lmcache"): "vllm.lmcache:size_server",
    ("vllm", "lmcache-local"): "vllm.lmcache:size_local",
}
"""What sizes which tier of which engine."""
SENT = {"sglang": "sglang.host:sent_of", "vllm": "vllm.host:sent_of"}
"""What a prompt's prefill side sends to its decode side."""


def _load(where: str) -> Any:
    return Implementation("", f"engines.{where}").load()


def host_of(
    inputs: Inputs, engine: Any, layout: Layout, deployment: Deployment, capacity: Capacity | None
) -> HostTier | None:
    """The host pools of one rank; None where none are asked for, or the GPU has no cache.

    Raises:
        ConfigError: A tier that the engine does not have, or refuses.
    """
    tier = "hisparse" if inputs.hisparse else inputs.host_tier
    if tier is None or capacity is None or not capacity.units:
        return None
    family = engine.name.partition(":")[0]
    size = TIERS.get((family, tier))
    if size is None:
        known = ", ".join(f"{name} of {whose}" for whose, name in TIERS)
        raise ConfigError(f"--host-tier {tier}: {engine.name} has none; known are {known}.")
    wish = HostWish(
        tier,
        ratio=inputs.host_ratio,
        size_bytes=inputs.host_size,
        memory_bytes=inputs.host_memory,
        layout=inputs.host_layout,
        storage=inputs.host_storage,
        ranks=min(layout.gpus, NODE_GPUS),
        tp=layout.tp,
        replica_ranks=layout.tp * layout.pp,
        node_replicas=max(1, min(layout.gpus, NODE_GPUS) // (layout.tp * layout.pp)),
        retention=inputs.retention,
        chunk_tokens=inputs.host_chunk,
    )
    found: HostTier = _load(size)(engine, deployment, capacity, wish)
    return found


def sent_of(role: str | None, engine: Any, deployment: Deployment) -> int | None:
    """Bytes of a prompt of full context that a rank sends from prefill to decode."""
    send = SENT.get(engine.name.partition(":")[0])
    if role is None or send is None:
        return None
    sent = _load(send)(engine, deployment, deployment.max_context_tokens)
    return sent.bytes if sent else None


def host_document(tier: HostTier | None) -> dict[str, Any] | None:
    """The host pools as plain values, with their sums."""
    if tier is None:
        return None
    pools = [asdict(pool) | {"total_bytes": pool.total_bytes} for pool in tier.pools]
    sums = {"holder_bytes": tier.holder_bytes, "node_bytes": tier.node_bytes}
    return asdict(tier) | {"pools": pools} | sums
