"""Memory that comes and goes within a step: the indexer's logits.

A CSA layer scores every query token of a chunk against every indexer key it may see, in float32,
before the top k are taken. No engine counts it as cache.
Source: sglang#39095, vllm#45663.
"""

from dsv4kv.errors import ConfigError

_CSA_RATIO = 4
_ALIGN_KEYS = 256
_LOGIT_BYTES = 4


def indexer_logits_bytes(query_tokens: int, context_tokens: int) -> int:
    """Bytes of one CSA layer's logits for a chunk of so many tokens at the end of a context.

    Raises:
        ConfigError: A negative count.
    """
    if query_tokens < 0 or context_tokens < 0:
        raise ConfigError("tokens of a chunk and of a context cannot be negative.")
    keys = -(-context_tokens // _CSA_RATIO)
    return query_tokens * -(-keys // _ALIGN_KEYS) * _ALIGN_KEYS * _LOGIT_BYTES
