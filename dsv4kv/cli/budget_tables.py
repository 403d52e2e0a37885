"""The tables of ``dsv4kv budget``: pools, memory, layouts, options."""

from collections.abc import Sequence

from rich.table import Table

from dsv4kv.report.cells import ABSENT, new_table
from dsv4kv.sizing.advice import Option
from dsv4kv.sizing.answer import Answer
from dsv4kv.sizing.compare import LayoutLine
from dsv4kv.sizing.reuse import PERIOD_TOKENS, Reuse
from dsv4kv.units import format_bytes

_MEMORY = {
    "weights": "weights",
    "reserve": "reserve for activations, graphs, communication",
    "transient": "transient: indexer logits of one chunk",
    "shared": "cache held without any request",
    "fixed": "cache: fixed for every request",
    "in_flight": "cache: reserve for the tokens in flight",
    "tokens": "cache: tokens of context",
    "lost": "cache: lost to alignment and whole blocks",
}


def pools_table(found: Answer) -> Table:
    """What one request costs on one GPU, pool by pool."""
    table = new_table("Pools", "one request on one GPU")
    for header in ("pool", "layers"):
        table.add_column(header, no_wrap=True)
    for header in ("fixed", "in flight", "B per token", "B lost per token"):
        table.add_column(header, justify="right")
    for cost in found.costs:
        table.add_row(
            cost.pool,
            f"{cost.layer_type} × {cost.layers}" if cost.pool != "tables" else cost.layer_type,
            format_bytes(cost.fixed_bytes) if cost.fixed_bytes else ABSENT,
            format_bytes(cost.in_flight_bytes) if cost.in_flight_bytes else ABSENT,
            _per_token(float(cost.marginal_bytes)),
            _per_token(float(cost.padding_bytes)),
        )
    return table


def memory_table(found: Answer) -> Table:
    """The memory of the tightest GPU, to the byte."""
    use = found.use
    load = f"{found.concurrency:,} × {found.context:,} tokens over {found.scenario.layout.label}"
    table = new_table("One GPU", load)
    table.add_column("part")
    for header in ("size", "bytes"):
        table.add_column(header, justify="right")
    for name, words in _MEMORY.items():
        size = getattr(use, name)
        if size:
            table.add_row(words, format_bytes(size), f"{size:,}")
    table.add_row("free" if use.free >= 0 else "missing", format_bytes(use.free), f"{use.free:,}")
    table.add_row("may be used", format_bytes(use.budget), f"{use.budget:,}")
    return table


def layouts_table(layouts: Sequence[LayoutLine], context_tokens: int) -> Table:
    """The same GPUs laid out otherwise."""
    table = new_table("Layouts", f"requests of {context_tokens:,} tokens at once")
    table.add_column("layout")
    for header in ("copies of KV", "weights per GPU", "requests"):
        table.add_column(header, justify="right")
    for line in layouts:
        table.add_row(
            line.layout.label,
            f"{line.kv_copies}",
            format_bytes(line.weight_bytes),
            f"{line.concurrency:,}",
        )
    return table


def options_table(options: Sequence[Option], found: Answer) -> Table:
    """What to change, and what it gains."""
    note = (
        "what makes it fit first, the cheapest leading" if not found.fits else "largest gain first"
    )
    table = new_table("Change", note)
    table.add_column("option", no_wrap=True)
    table.add_column("why")
    table.add_column("frees per GPU", justify="right")
    table.add_column("requests", justify="right")
    if not found.fits:
        table.add_column("then")
    for option in options:
        change = f"{found.max_concurrency:,} → {option.concurrency:,}"
        cells = [option.change, option.reason, format_bytes(option.freed_bytes), change]
        if not found.fits:
            cells.append("fits" if option.fits else "still too much")
        table.add_row(*cells)
    return table


def prefix_table(reuse: Reuse, context_tokens: int) -> Table:
    """Where prefix hits end, and what a prefix weighs outside the GPU."""
    rule, moved = reuse.rule, reuse.offloaded
    note = (
        f"hits are multiples of {rule.block_tokens:,} tokens, the shortest prompt with one has "
        f"{rule.shortest_prompt_tokens:,}; a token moved out takes "
        f"{float(moved.padded_bytes):,.2f} B, {float(moved.useful_bytes):,.2f} B of them useful"
    )
    table = new_table(f"A prefix of {context_tokens:,} tokens, stored")
    table.caption, table.caption_justify = note, "left"
    table.add_column("windows")
    for header in ("entries and keys", "windows", "states", "tokens to recompute"):
        table.add_column(header, justify="right")
    for kept in reuse.persistent:
        period = f" ({PERIOD_TOKENS:,} tokens)" if kept.strategy == "periodic" else ""
        table.add_row(
            f"{kept.strategy}{period}",
            format_bytes(kept.context_bytes),
            format_bytes(kept.window_bytes),
            format_bytes(kept.state_bytes),
            f"{kept.recompute_tokens:,}",
        )
    return table


def _per_token(size: float) -> str:
    return f"{size:,.2f}" if size else ABSENT
