"""Runs of ``dsv4kv bench`` that keep no record: systems, tiers, transfer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv4kv.cli.records import write_json
from dsv4kv.errors import ConfigError, VerificationError
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from dsv4kv.view.table import Part


def refuse_unused(name: str, unused: Sequence[str], does: str = "runs") -> None:
    """Raise ``ConfigError`` for options that were given and mean nothing to a run."""
    if unused:
        raise ConfigError(
            f"{', '.join(unused)} means nothing to bench {name}: leave it out; what it {does} is "
            f"set by --set (keys: docs/{name}.md)."
        )


@contextmanager
def watching(what: str, *, silent: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far a run is: yields what hears the next step's name, those done, and all."""
    from dsv4kv.cli.progress import Watcher

    with Watcher(open_console(stderr=True, quiet=silent), "bench", what) as watcher:

        def on_step(name: str, done: int, total: int) -> None:
            watcher.name(f"bench {name}")
            watcher.reach(done, total)

        yield on_step


def finish(
    report: "Callable[[], Iterable[Part]]",
    document: Callable[[], str],
    wrong: Sequence[str],
    json_: str | None,
    *,
    silent: bool,
) -> None:
    """Print a report, write a document; raises ``VerificationError`` for what is wrong."""
    from dsv4kv.view.terminal import show

    if not silent:
        show(report())
    if json_:
        write_json(document(), json_)
    if wrong:
        raise VerificationError("\n".join(wrong))
