"""``dsv4kv record``: write down what a running server does, to make a trace of it."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv4kv.recording.folder import Recording
    from dsv4kv.recording.source import Source

EPILOG = """\
[bold]Examples[/bold]

dsv4kv record server --events tcp://127.0.0.1:5557                 until Ctrl-C

dsv4kv record server --events tcp://127.0.0.1:5557 --seconds 600   ten minutes
"""


def _events(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="KV events")


def record(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder to record into; one that is there already goes on."
        ),
    ],
    events: Annotated[
        str | None,
        _events(
            "Where the server publishes KV events (its --kv-events-config): tcp://HOST:PORT, or a "
            "file of such messages.",
            "URL|FILE",
        ),
    ] = None,
    replay: Annotated[
        str | None,
        _events("Where it sends again what was lost: its replay_endpoint.", "URL"),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            min=1,
            help="Data-parallel ranks; each publishes a port above the last.",
            rich_help_panel="KV events",
        ),
    ] = 1,
    verbatim: Annotated[
        bool,
        _events("Keep messages as they came, too: with the tokens of every prompt."),
    ] = False,
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.0, help="How long to record.", show_default="until Ctrl-C"
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no line while it goes on.")
    ] = False,
) -> None:
    """Record a running server's KV events, requests and metrics into a folder.

    Prompts, tokens, keys and addresses are not written: numbers stand for them that nobody can
    read back. A recording that was interrupted, also by kill -9, goes on where it stopped.
    """
    from dsv4kv.errors import ConfigError
    from dsv4kv.recording.folder import Recording
    from dsv4kv.recording.run import Live, run

    if events is None:
        raise ConfigError("nothing to record: give --events.")
    live = Live()
    with Recording(out, hear=live.hear) as recording:
        sources = list(_events_of(events, replay, ranks, recording, verbatim=verbatim))
        show = _Line(live, quiet=quiet)
        with suppress(KeyboardInterrupt):  # the way to end it
            run(sources, recording, limit_s=limit_s, tick=show)
    say(f"{out}: {live.line()}")


class _Line:
    """Shows how far it is: one line that is drawn anew; in a log one in ten seconds."""

    def __init__(self, live: Any, *, quiet: bool) -> None:
        self._live, self._console = live, open_console(stderr=True, quiet=quiet)
        self._ticks = 0

    def __call__(self) -> None:
        from dsv4kv.cli.progress import EVERY_S

        self._ticks += 1
        if self._console.is_terminal:
            self._console.print(self._live.line(), end="\r", highlight=False, soft_wrap=True)
        elif self._ticks % EVERY_S == 0:
            self._console.print(self._live.line(), highlight=False)


def _events_of(
    events: str, replay: str | None, ranks: int, recording: "Recording", *, verbatim: bool
) -> "Iterator[Source]":
    from dsv4kv.recording.events import MessageFile, Publisher, Socket, ranks_of
    from dsv4kv.recording.veil import Veil

    veil = Veil(recording.salt)
    if "://" not in events:
        publisher = Publisher(0, recording, veil, verbatim=verbatim)
        yield MessageFile(Path(events), publisher)
        return
    replays = ranks_of(replay, ranks) if replay else [None] * ranks
    for rank, (url, again) in enumerate(zip(ranks_of(events, ranks), replays, strict=True)):
        yield Socket(url, again, Publisher(rank, recording, veil, verbatim=verbatim))
