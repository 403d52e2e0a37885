"""A progress bar on the terminal, for a run that counts tokens."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from dsv4kv.config.axes import AxisCase


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
