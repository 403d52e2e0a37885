"""DeepSeek-V3.2 in SGLang: one pool of tokens, entries and indexer keys of every layer.

Source: SGLang 0.5.23, ``DefaultPoolConfigurator`` of ``pool_configurator.py``.
"""

from collections.abc import Sequence
from fractions import Fraction

from dsv4kv.engines.contract import DRAFT, Capacity, Deployment, Layer, PoolCost
from dsv4kv.engines.host import Sent
from dsv4kv.errors import ConfigError

PAGE_TOKENS = 64
_KEY_BYTES = 132  # FP8, on every NVIDIA GPU


def costs_of(deployment: Deployment, layers: Sequence[Layer]) -> tuple[PoolCost, ...]:
    """Bytes of a token in entries and in keys; a draft layer is like the others."""
    held = [layer for layer in layers if layer.held]
    keyed = [layer for layer in held if layer.selects or layer.kind == DRAFT]
    _check(deployment)
    entry = Fraction(deployment.formats.main.entry_bytes)
    return (
        PoolCost("main", "dsa", len(held), marginal_bytes=entry * len(held)),
        PoolCost("indexer", "dsa", len(keyed), marginal_bytes=Fraction(_KEY_BYTES) * len(keyed)),
    )


def request_bytes(deployment: Deployment, layers: Sequence[Layer], tokens: int) -> int:
    """Bytes of a request in whole pages."""
    page = deployment.block_tokens or PAGE_TOKENS
    return -(-tokens // page) * page * _token_bytes(deployment, layers)


def sent_of(deployment: Deployment, layers: Sequence[Layer], tokens: int) -> Sent:
    """Every layer's entries and keys in whole pages, each a descriptor."""
    pages = -(-tokens // (deployment.block_tokens or PAGE_TOKENS))
    buffers = sum(cost.layers for cost in costs_of(deployment, layers))
    return Sent(request_bytes(deployment, layers, tokens), pages * buffers)


def capacity(deployment: Deployment, layers: Sequence[Layer], available_bytes: int) -> Capacity:
    """Tokens of the memory in whole pages."""
    page, cell = deployment.block_tokens or PAGE_TOKENS, _token_bytes(deployment, layers)
    tokens = available_bytes // cell // page * page
    needed = -(-deployment.max_context_tokens // page) * page
    return Capacity(
        cache_bytes=tokens * cell,
        units=tokens,
        unit_bytes=Fraction(cell),
        units_per_request=Fraction(needed),
        printed_tokens=tokens or None,
        concurrency=Fraction(tokens, needed),
        log_lines=(f"max_total_num_tokens={tokens}",),
    )


def _token_bytes(deployment: Deployment, layers: Sequence[Layer]) -> int:
    return int(sum(cost.marginal_bytes for cost in costs_of(deployment, layers)))


def _check(deployment: Deployment) -> None:
    if deployment.formats.indexer.entry_bytes != _KEY_BYTES:
        raise ConfigError(
            f"SGLang keeps V3.2's indexer keys in fp8, not {deployment.formats.indexer.name}: "
            "choose it."
        )
