"""Whose bytes a store keeps: objects of another model have equal sizes and mean something else."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

DIGEST_DIGITS = 32
_FOLDER_DIGITS = 12


@dataclass(frozen=True)
class Namespace:
    """Caches whose bytes mean the same.

    Attributes:
        model: The model's name.
        revision: Of its weights: other weights fill the same layout with other numbers.
        layout: Formats and geometry, as JSON has it.
    """

    model: str
    revision: str
    layout: Mapping[str, object]

    @property
    def facts(self) -> str:
        """Everything that distinguishes these caches from others, as JSON."""
        return json.dumps(vars(self), sort_keys=True, indent=1)

    @property
    def digest(self) -> str:
        """Hexadecimal digits that stand for it."""
        return sha256(self.facts.encode()).hexdigest()[:DIGEST_DIGITS]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        safe = re.sub(r"[^A-Za-z0-9.-]", "_", self.model)
        return f"{safe}_{self.digest[:_FOLDER_DIGITS]}"
