"""One GPU's memory as a bar that needs no colour to be read."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dsv4kv.sizing.fit import RankUse
from dsv4kv.units import format_bytes

_BAR = 60
_LEGEND_COLUMNS = 3
# part of RankUse: character, style, words
_PARTS = {
    "weights": ("█", "blue", "weights"),
    "reserve": ("▓", "magenta", "reserve"),
    "transient": ("▞", "yellow", "indexer logits"),
    "fixed": ("▒", "cyan", "fixed"),
    "tokens": ("░", "green", "tokens"),
    "lost": ("╳", "red", "lost to rounding"),
    "free": ("·", "dim", "free"),
    "spare": ("-", "dim", "kept spare"),
}


def memory_bar(use: RankUse) -> Iterator[RenderableType]:
    """One GPU's memory as a bar of characters, and what they mean."""
    sizes = _sizes(use)
    whole = max(use.memory, sum(sizes.values()))
    bar, end, filled = Text(), 0, 0
    for name, size in sizes.items():
        filled += size
        character, style, _ = _PARTS[name]
        cells = round(_BAR * filled / whole) - end
        bar.append(character * cells, style)
        end += cells
    over = f"{format_bytes(whole)} of " if whole > use.memory else ""
    yield Text("one GPU  ").append(bar).append(f"  {over}{format_bytes(use.memory)}")
    legend = Table.grid(padding=(0, 3, 0, 0))
    shown = [_key(name, size) for name, size in sizes.items() if size]
    for start in range(0, len(shown), _LEGEND_COLUMNS):
        legend.add_row(*shown[start : start + _LEGEND_COLUMNS])
    yield Padding(legend, (0, 0, 0, 9))


def _key(name: str, size: int) -> Text:
    character, style, words = _PARTS[name]
    return Text(f"{character} ", style).append(f"{words} {format_bytes(size)}", "default")


def _sizes(use: RankUse) -> dict[str, int]:
    return {
        "weights": use.weights,
        "reserve": use.reserve,
        "transient": use.transient,
        "fixed": use.fixed + use.shared + use.in_flight,
        "tokens": use.tokens,
        "lost": use.lost,
        "free": max(0, use.free),
        "spare": use.memory - use.budget,
    }
