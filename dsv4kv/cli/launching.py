"""A line on the terminal, for launches that run one after the other."""

import signal
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from dsv4kv.bench.fresh import Outcome, Task


class LaunchWatcher:
    """Shows which launch runs and how many have gone wrong; gone when the last has ended.

    Meanwhile a polite end (SIGTERM, as a CI job that is cancelled gets) is a Ctrl-C: what was
    measured is kept, and no process or folder is left behind.
    """

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
        self._terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        signal.signal(signal.SIGTERM, self._terminate)

    def tell(self, outcomes: "Sequence[Outcome]", task: "Task") -> None:
        """Count what has ended and name what begins."""
        lost = sum(outcome.record is None for outcome in outcomes)
        words = [f"bench {task.side}".strip(), *([f"{lost} lost"] if lost else [])]
        self._progress.update(self._task, completed=len(outcomes), description=", ".join(words))
