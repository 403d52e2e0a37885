"""What people paste, and launches as they were published: the rows of ``pasted.yaml``."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Pasted:
    """An input with the options and the environment that are given besides."""

    kind: str  # or where it is published
    text: str
    texts: dict[str, str] = field(default_factory=dict)
    which: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    unread: str = ""
    refused: str = ""
    gpu: str = "b200"
    uncounted: list[str] | None = None  # flags that change sizes and are not counted


_ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
PASTED, PUBLISHED = ([Pasted(**row) for row in _ROWS[name]] for name in ("pasted", "published"))
