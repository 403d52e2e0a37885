"""TensorRT-LLM's sizing rules: bytes of a token, and whole blocks of windows and states.

Derived from the source of ``DeepseekV4CacheManager``, not seen in a log: it prints no line that
these rules could be compared with.
"""

from collections import Counter
from fractions import Fraction

from dsv4kv.engines.contract import Capacity, Deployment, Engine, PoolCost, held_layers
from dsv4kv.engines.trtllm import FAMILY
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DRAFT, LayerSpec

_BLOCK_TOKENS = (128, 256)
_MAIN = ("bf16", "fp8", "fp8_ds_mla")
_STATE_BYTES = 4


class TrtllmEngine(Engine):
    """The one version whose sizes are known."""

    family = FAMILY
    name = "trtllm"
    shares_rest = True

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Marginal bytes of compressed KV and indexer keys; fixed blocks of windows and states.

        Bytes of an entry are divided by its tokens and rounded down, layer by layer.
        """
        model, formats, drafts = deployment.model, deployment.formats, deployment.draft_tokens
        kinds = Counter(layer.kind for layer in _held(deployment))
        kinds["all"] = kinds.total() - kinds[DRAFT]
        block, main = _block_tokens(deployment), formats.main
        costs = []
        for pool, kind, entry, ratio in (
            ("main", "csa", main, 4),
            ("indexer", "csa", formats.indexer, 4),
            ("main", "hca", main, 128),
        ):
            marginal = Fraction(entry.entry_bytes // ratio * kinds[kind])
            costs.append(PoolCost(pool, kind, kinds[kind], marginal_bytes=marginal))
        csa = 2 * (model.head_dim + model.index_dim)  # overlaps: two groups of four
        for pool, kind, tokens, row in (
            ("window", "all", model.window_tokens, formats.window.entry_bytes),
            ("window", DRAFT, model.window_tokens, formats.window.entry_bytes),
            ("state", "csa", 8, 2 * csa * _STATE_BYTES),  # kv and score
            ("state", "hca", 128, 2 * model.head_dim * _STATE_BYTES),
        ):
            rows = -(-(tokens + drafts) // block) * block
            costs.append(PoolCost(pool, kind, kinds[kind], fixed_bytes=rows * row * kinds[kind]))
        return tuple(cost for cost in costs if cost.layers)

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Whole blocks of context, windows and states; a step's tokens are among the context."""
        costs, block = self.costs(deployment), _block_tokens(deployment)
        per_token = sum((cost.marginal_bytes for cost in costs), Fraction(0))
        covered = -(-tokens // block) * block
        return int(per_token * covered) + sum(cost.fixed_bytes for cost in costs)

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        context, block = deployment.max_context_tokens, _block_tokens(deployment)
        needed = self.request_bytes(deployment, context, in_flight=0)
        per_request = -(-context // block)
        unit = Fraction(needed, per_request)
        units = int(max(0, available_bytes) / unit)
        return Capacity(
            cache_bytes=int(units * unit),
            units=units,
            unit_bytes=unit,
            units_per_request=Fraction(per_request),
            printed_tokens=None,
            concurrency=Fraction(units, per_request),
            log_lines=(),
        )


def _held(deployment: Deployment) -> tuple[LayerSpec, ...]:
    formats = deployment.formats
    if formats.main.name not in _MAIN or formats.window != formats.main:
        raise ConfigError(
            f"TensorRT-LLM keeps windows and compressed KV in one format, not "
            f"{formats.window.name} and {formats.main.name}: choose {', '.join(_MAIN)} for both."
        )
    if formats.indexer.name == "bf16":
        raise ConfigError("TensorRT-LLM keeps indexer keys in fp8 or mxfp4: choose one of them.")
    if deployment.state_bytes != _STATE_BYTES or deployment.online_state:
        raise ConfigError("TensorRT-LLM keeps the compressor state in float32: choose fp32.")
    return held_layers(deployment, "trtllm")


def _block_tokens(deployment: Deployment) -> int:
    block = deployment.block_tokens or TrtllmEngine.block_tokens
    if block not in _BLOCK_TOKENS:
        raise ConfigError(f"block_tokens is {block}: TensorRT-LLM takes 128 or 256.")
    return block
