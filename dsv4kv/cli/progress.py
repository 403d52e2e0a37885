"""How far something is and how long it will still take: a bar, or lines without a terminal.

A log gets a line every ten seconds, so that a long run is not taken for one that hangs.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsv4kv.config.load import Point

if TYPE_CHECKING:
    from dsv4kv.bench.launches import Outcome, Task

EVERY_S = 10.0
"""Seconds between lines."""
_REDRAWN_S = 0.1
_ESTIMATED_S = 3600.0  # of the past, to estimate the time left: launches take a minute


class Watcher:
    """Counts what is done of a total, on ``console`` where it is not quiet.

    ``total``: None where it is not known, nor the time left. ``after_s``: no bar for what
    takes less.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        unit: str,
        total: int | None = 0,
        clock: Callable[[], float] = monotonic,
        *,
        after_s: float = 0.0,
    ) -> None:
        self._console, self._unit, self._clock = console, unit, clock
        self._name, self._done, self._total = name, 0, total
        self._begun = self._shown = clock()
        self._after_s, self._live = after_s, console.is_terminal
        of = "" if total is None else " / {task.total:,.0f}"
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,.0f}}{of} {unit}"),
            *(
                [TimeElapsedColumn()]
                if total is None
                else [TextColumn("left"), TimeRemainingColumn()]
            ),
            console=console,
            transient=True,
            speed_estimate_period=_ESTIMATED_S,
            disable=not self._live,
        )
        self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Self:
        if not self._after_s:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def start(self, total: int | None) -> None:
        self._total = total
        self._begun = self._shown = self._clock()
        self._bar.reset(self._task, total=total)

    def name(self, name: str) -> None:
        self._name = name
        self._bar.update(self._task, description=name)

    def case(self, case: Point[Any]) -> None:
        if case.axis:
            self.name(", ".join(f"{key}={value}" for key, value in case.axis.items()))

    def advance(self, count: int = 1) -> None:
        self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total
        now = self._clock()
        if now - self._shown < (_REDRAWN_S if self._live else EVERY_S):
            return  # counting a million requests must not wait for us
        self._shown = now
        if self._live:
            if now - self._begun >= self._after_s:
                self._bar.start()
            self._bar.update(self._task, completed=done, total=total)
        else:
            line = self._line(now - self._begun)
            self._console.print(line, highlight=False, soft_wrap=True)

    def show_launches(self, outcomes: "Sequence[Outcome]", task: "Task") -> None:
        """Count launches that have ended and name what begins."""
        lost = sum(outcome.record is None for outcome in outcomes)
        words = [f"bench {task.side}".strip(), *([f"{lost} lost"] if lost else [])]
        self.name(", ".join(words))
        self.reach(len(outcomes), self._total)

    def _line(self, taken_s: float) -> str:
        done, total = self._done, self._total
        of = "" if total is None else f" of {total:,}"
        line = f"{self._name}: {done:,}{of} {self._unit}, {taken_s:.0f} s"
        if total is None or not total / 100 <= done < total:  # of the first few, no estimate
            return line
        return f"{line}, about {taken_s * (total / done - 1):.0f} s left"


class Redrawn:
    """What is drawn anew in a terminal; elsewhere a line every ten seconds, and the last."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        """With ``transient`` it is erased at the end, and no line is printed at the beginning."""
        self._console = console
        self._shown_s = monotonic() if transient else float("-inf")
        self._live = Live(console=console, auto_refresh=False, transient=transient)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, drawn: Callable[[], RenderableType], line: str, *, last: bool = False) -> None:
        if self._console.is_terminal:
            self._live.update(drawn(), refresh=True)
        elif last or monotonic() - self._shown_s >= EVERY_S:
            self._shown_s = monotonic()
            self._console.print(line, highlight=False, soft_wrap=True)
