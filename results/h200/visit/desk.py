"""Where a step answers its questions."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visit import rows
from visit.plan import QUESTIONS, Step
from visit.questions import GPUS, Question

if TYPE_CHECKING:
    from visit.place import Place

NO_TOOL = 77
"""Exit code of a step without its tool: a rehearsal skips it."""


class NoTool(Exception):
    """A program that a step needs is not on PATH."""


def find_tool(name: str) -> str:
    """Where a program is; raises ``NoTool``."""
    if found := shutil.which(name):
        return found
    raise NoTool(f"{name} is not on PATH")


@dataclass
class Desk:
    """A step's place: it answers here, and keeps its files here.

    Attributes:
        step: The step at work.
        file: Of rows.
        folder: Kept files: records and reports.
        small: Whether the kernels' CPU twin stands for the GPU, at small sizes.
        gpu: Name of the GPU, as the driver has it.
    """

    step: Step
    file: Path
    folder: Path
    small: bool
    gpu: str = ""

    def answer(
        self,
        name: str,
        measured: float | None,
        interval: Sequence[float] | None = None,
        /,
        **detail: Any,
    ) -> None:
        """Keep the answer to a question, in its unit; None says why in ``detail``."""
        question = QUESTIONS[name]
        bar = question.bar
        row = {
            "kind": "answer",
            "step": self.step.name,
            "question": name,
            "words": question.words,
            "unit": question.unit,
            "predicted": question.on(self.card()),
            "wanted": str(bar) if bar else None,
            "measured": measured,
            "interval": interval,
            "verdict": self._judge(question, measured),
        }
        self._keep(row | {"detail": detail})

    def note(self, name: str, /, **detail: Any) -> None:
        """Keep something that no question asked for."""
        self._keep({"kind": "note", "step": self.step.name, "name": name, "detail": detail})

    def card(self) -> str:
        """The card whose predictions hold; what has none is shown without."""
        return next((name for name in GPUS if name in self.gpu), "")

    def _judge(self, question: Question, measured: float | None) -> str:
        bar = question.bar
        if measured is None:
            return "no answer"
        if self.small:
            return "rehearsed"
        if bar is None or self.card() not in bar.gpus:
            return "no bar"
        return "met" if bar.is_met(measured) else "missed"

    def _keep(self, row: rows.Row) -> None:
        told = {"gpu": self.gpu, "at_utc": datetime.now(UTC).isoformat(timespec="seconds")}
        rows.append(self.file, row | told)

    @contextmanager
    def place(self) -> Iterator["Place"]:
        """The GPU, or its twin; from then on answers bear its name."""
        from visit.place import open_place

        with open_place(small=self.small) as place:
            self.gpu = place.facts.name
            yield place
