"""What cached prefixes and checkpoints weigh for a model."""

from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.model.budget import bytes_per_request, bytes_per_token
from dsv4kv.model.checkpoint import at_whole_block
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import build_schema


@dataclass(frozen=True)
class PrefixCosts:
    """Bytes of one model's prefixes, page padding left out.

    Attributes:
        token_bytes: Compressed entries and indexer keys of one token of context.
        window_token_bytes: Window entries of one token, all layers together.
        state_bytes: Compressor states at the end of a block, where HCA layers have none.
        window_tokens: Tokens of a window.
        layers: Layers of the model.
    """

    token_bytes: Fraction
    window_token_bytes: int
    state_bytes: int
    window_tokens: int
    layers: int

    @property
    def checkpoint_bytes(self) -> int:
        """One window and one set of states."""
        return self.window_tokens * self.window_token_bytes + self.state_bytes


def prefix_costs(model: DSV4Config) -> PrefixCosts:
    """Costs of a model with its own formats; raises ``ConfigError``."""
    schemas = [build_schema(model, spec) for spec in build_schedule(model)]
    window = sum(schema.window.format.entry_bytes for schema in schemas if schema.window)
    return PrefixCosts(
        token_bytes=bytes_per_token(schemas),
        window_token_bytes=window,
        state_bytes=bytes_per_request([at_whole_block(schema) for schema in schemas], 1).state,
        window_tokens=model.window_tokens,
        layers=len(schemas),
    )
