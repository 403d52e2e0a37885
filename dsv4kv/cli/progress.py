"""A progress bar on the terminal, for a run that counts tokens."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dsv4kv.config.axes import AxisCase

if TYPE_CHECKING:
    from dsv4kv.bench.launches import Outcome, Task


class ProgressWatcher:
    """Shows how far a run is and how long it will still take; gone when it ends."""

    def __init__(self, console: Console) -> None:
        """Draw on ``console``; nothing is drawn where that is no terminal."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} tokens"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def start(self, total_tokens: int) -> None:
        """Begin to count."""
        self._task = self._progress.add_task("bench", total=total_tokens)

    def case(self, case: AxisCase) -> None:
        """Name the case that runs now."""
        point = ", ".join(f"{key}={value}" for key, value in case.axis.items())
        if self._task is not None and point:
            self._progress.update(self._task, description=point)

    def advance(self, tokens: int) -> None:
        """Count tokens."""
        if self._task is not None:
            self._progress.advance(self._task, tokens)


class LaunchWatcher:
    """Shows which launch runs and how many have gone wrong; gone when the last has ended."""

    def __init__(self, console: Console, launches: int) -> None:
        """Draw on ``console``; nothing is drawn where that is no terminal."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("launches"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("bench", total=launches)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tell(self, outcomes: "Sequence[Outcome]", task: "Task") -> None:
        """Count what has ended and name what begins."""
        lost = sum(outcome.record is None for outcome in outcomes)
        words = [f"bench {task.side}".strip(), *([f"{lost} lost"] if lost else [])]
        self._progress.update(self._task, completed=len(outcomes), description=", ".join(words))
