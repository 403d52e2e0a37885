"""TensorRT-LLM's sizing rules: bytes of a token, and whole blocks of windows and states.

Derived from the source of ``DeepseekV4CacheManager``, not seen in a log: it prints no line that
these rules could be compared with.
"""

from collections.abc import Iterator
from fractions import Fraction

from dsv4kv.engines.contract import DRAFT, Capacity, Deployment, Engine, Layer, PoolCost, layers_of
from dsv4kv.engines.trtllm import FAMILY
from dsv4kv.errors import ConfigError

_BLOCK_TOKENS = (128, 256)
_MAIN = ("bf16", "fp8", "fp8_ds_mla")
_RATIO = {"csa": 4, "hca": 128}
_STATE_TOKENS = {"csa": 8, "hca": 128}  # CSA overlaps: two groups of four
_STATE_BYTES = 4


class TrtllmEngine(Engine):
    """The one version whose sizes are known."""

    family = FAMILY
    name = "trtllm"

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Marginal bytes of compressed KV and indexer keys; fixed blocks of windows and states."""
        layers = _held(deployment)
        return (*_context_costs(deployment, layers), *_fixed_costs(deployment, layers))

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Whole blocks of context, windows and states; a step's tokens are among the context."""
        costs, block = self.costs(deployment), _block_tokens(deployment)
        per_token = sum((cost.marginal_bytes for cost in costs), Fraction(0))
        covered = -(-tokens // block) * block
        return int(per_token * covered) + sum(cost.fixed_bytes for cost in costs)

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """Requests of full context; no line, since none is known."""
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


def _held(deployment: Deployment) -> list[Layer]:
    formats, state = deployment.formats, deployment.state_bytes
    if formats.main.name not in _MAIN or formats.window != formats.main:
        raise ConfigError(
            f"TensorRT-LLM keeps windows and compressed KV in one format, not "
            f"{formats.window.name} and {formats.main.name}: choose {', '.join(_MAIN)} for both."
        )
    if formats.indexer.name == "bf16":
        raise ConfigError("TensorRT-LLM keeps indexer keys in fp8 or mxfp4: choose one of them.")
    if state != _STATE_BYTES or deployment.online_state:
        raise ConfigError("TensorRT-LLM keeps the compressor state in float32: choose fp32.")
    _block_tokens(deployment)
    return [layer for layer in layers_of(deployment, "trtllm") if layer.held]


def _block_tokens(deployment: Deployment) -> int:
    block = deployment.block_tokens or TrtllmEngine.block_tokens
    if block not in _BLOCK_TOKENS:
        raise ConfigError(f"block_tokens is {block}: TensorRT-LLM takes 128 or 256.")
    return block


def _context_costs(deployment: Deployment, layers: list[Layer]) -> Iterator[PoolCost]:
    """Bytes of an entry are divided by its tokens and rounded down, layer by layer."""
    formats = deployment.formats
    for pool, kind, entry in (
        ("main", "csa", formats.main),
        ("indexer", "csa", formats.indexer),
        ("main", "hca", formats.main),
    ):
        count = sum(layer.kind == kind for layer in layers)
        if count:
            per_token = Fraction(entry.entry_bytes // _RATIO[kind] * count)
            yield PoolCost(pool, kind, count, marginal_bytes=per_token)


def _fixed_costs(deployment: Deployment, layers: list[Layer]) -> Iterator[PoolCost]:
    model, drafts = deployment.model, deployment.draft_tokens
    entry = deployment.formats.window.entry_bytes
    window = _whole_blocks(deployment, model.window_tokens + drafts) * entry
    for layer_type, count in (
        ("all", sum(layer.kind != DRAFT for layer in layers)),
        (DRAFT, sum(layer.kind == DRAFT for layer in layers)),
    ):
        if count:
            yield PoolCost("window", layer_type, count, fixed_bytes=window * count)
    for kind, tokens in _STATE_TOKENS.items():
        count = sum(layer.kind == kind for layer in layers)
        dims = 2 * (model.head_dim + model.index_dim) if kind == "csa" else model.head_dim
        row = 2 * dims * _STATE_BYTES  # kv and score
        if count:
            rows = _whole_blocks(deployment, tokens + drafts)
            yield PoolCost("state", kind, count, fixed_bytes=rows * row * count)


def _whole_blocks(deployment: Deployment, tokens: int) -> int:
    block = _block_tokens(deployment)
    return -(-tokens // block) * block
