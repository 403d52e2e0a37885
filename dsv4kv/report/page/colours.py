"""The page's colours: one accent in shades, one colour per verdict, light and dark.

Charts are drawn in the light colours, each of which stands for its role and no other, so that a
page can put the role in its place and follow the reader's choice of light or dark.
"""

from typing import Final

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#15191e",
    "muted": "#59636e",
    "rule": "#d8dee4",
    "wash": "#f4f6f8",
    "accent": "#0a62a8",
    "tint": "#cfe2f1",
    "shade-1": "#5396c6",
    "shade-2": "#3f86bd",
    "shade-3": "#236fad",
    "shade-4": "#0b528c",
    "shade-5": "#073b66",
    "shade-6": "#04233e",
    "good": "#1a7340",
    "warning": "#8f5700",
    "bad": "#b42318",
    "heat": "#fbe3c4",
}
DARK: Final = {
    "paper": "#101418",
    "ink": "#e8ecf0",
    "muted": "#9aa5b1",
    "rule": "#2b333c",
    "wash": "#181e24",
    "accent": "#6cb6f0",
    "tint": "#1d3c56",
    "shade-1": "#3d76a3",
    "shade-2": "#4d8fc3",
    "shade-3": "#64a8dd",
    "shade-4": "#86c0ee",
    "shade-5": "#afd7f6",
    "shade-6": "#dbeefc",
    "good": "#63c58b",
    "warning": "#e5b25d",
    "bad": "#ff8f84",
    "heat": "#4a3513",
}
SHADES: Final = tuple(name for name in LIGHT if name.startswith("shade-"))
"""From the first of an ordered set of series to the last."""


def css_variables(colours: dict[str, str]) -> str:
    """``--paper:#ffffff;…``: declarations for a rule of a style sheet."""
    return "".join(f"--{role}:{colour};" for role, colour in colours.items())
