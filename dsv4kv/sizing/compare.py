"""One deployment beside others: the same GPUs laid out otherwise, other contexts."""

from dataclasses import dataclass, replace

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.baseline import kv_heads
from dsv4kv.sizing.fit import max_concurrency
from dsv4kv.sizing.layout import Layout
from dsv4kv.sizing.scenario import Scenario, fix_layout, resolve

CURVE_TOKENS = (4096, 32_768, 131_072, 1_048_576)


@dataclass(frozen=True)
class LayoutLine:
    """What one layout of the same GPUs holds.

    Attributes:
        layout: The layout.
        kv_copies: Copies of every request's KV.
        weight_bytes: Weights on the fullest GPU.
        concurrency: Requests of the context that fit at once.
    """

    layout: Layout
    kv_copies: int
    weight_bytes: int
    concurrency: int


def curve(scenario: Scenario) -> list[tuple[int, int]]:
    """Requests that fit at once, at some contexts up to the model's limit."""
    limit = scenario.config.max_context_tokens
    contexts = sorted({min(tokens, limit) for tokens in CURVE_TOKENS})
    return [(tokens, max_concurrency(scenario, tokens)) for tokens in contexts]


def compare_layouts(scenario: Scenario, context_tokens: int) -> list[LayoutLine]:
    """The layout beside all GPUs of a stage as tensor parallel, and as data parallel."""
    layout = scenario.layout
    ranks = layout.tp * layout.dp
    fixed = fix_layout(scenario)
    lines = [_layout_line(scenario, context_tokens)]
    for tp in (ranks, 1):
        try:
            (other,) = resolve(replace(fixed, tp=tp, dp=ranks // tp, ep=None))
        except ConfigError:
            continue
        if (other.layout.tp, other.layout.dp) != (layout.tp, layout.dp):
            lines.append(_layout_line(other, context_tokens))
    return lines


def count_copies(scenario: Scenario) -> int:
    """Copies of every request's KV: tensor parallel ranks beyond the KV heads hold the same."""
    tp = scenario.layout.tp
    return tp // min(tp, kv_heads(scenario.config))


def _layout_line(scenario: Scenario, context_tokens: int) -> LayoutLine:
    return LayoutLine(
        scenario.layout,
        count_copies(scenario),
        max(scenario.weight_bytes),
        max_concurrency(scenario, context_tokens),
    )
