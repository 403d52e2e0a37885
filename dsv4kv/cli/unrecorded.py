"""Runs of ``dsv4kv bench`` that keep no record: systems, tiers, transfer."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4kv.cli.records import write_json
from dsv4kv.errors import ConfigError, VerificationError
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from dsv4kv.config.load import ConfigT, Point
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


@dataclass(frozen=True)
class Ran:
    """What a run gave.

    Attributes:
        report: For people.
        document: For programs, JSON.
        wrong: A sentence for everything that is.
    """

    report: "Iterable[Part]"
    document: str
    wrong: Sequence[str]


def run_points(
    root: "type[ConfigT]",
    overrides: Sequence[str],
    axes: Sequence[str],
    run: "Callable[[Point[ConfigT]], Ran]",
    json_: str | None,
    *,
    silent: bool,
) -> None:
    """Run every point, print each report when it is there, and write the documents.

    With axes the JSON is a list, each point's document with its values in ``axis``.

    Raises:
        ConfigError: A setting or an axis that is none; nothing is run then.
        VerificationError: What is wrong at any point, after all.
    """
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.view.terminal import show

    documents, wrong = list[str](), list[str]()
    for point in expand_axes(load_config(None, overrides, root), overrides, axes):
        ran = run(point)
        at = ", ".join(f"{key}={value}" for key, value in point.axis.items())
        if not silent:
            show(_under(at, ran.report))
        documents.append(ran.document)
        if at:
            documents[-1] = json.dumps({"axis": point.axis, **json.loads(ran.document)})
        wrong += [f"{at}: {each}" if at else each for each in ran.wrong]
    if json_:
        write_json(f"[{', '.join(documents)}]" if axes else documents[0], json_)
    if wrong:
        raise VerificationError("\n".join(wrong))


def _under(heading: str, report: "Iterable[Part]") -> "Iterator[Part]":
    """A point's report under its values; one that is alone has none."""
    from dsv4kv.view.table import Text

    if heading:
        yield Text(heading, "strong")
        yield ""
    yield from report
    if heading:
        yield ""
