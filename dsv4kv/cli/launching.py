"""A line on the terminal, for launches that run one after the other."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from dsv4kv.bench.fresh import Outcome, Task


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
