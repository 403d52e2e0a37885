"""``dsv4kv watch``: a running server's cache, as it is recorded."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from rich.console import Group

    from dsv4kv.record.server import Glance

EPILOG = examples(
    "dsv4kv watch server                                 while dsv4kv record server … runs",
    "dsv4kv watch server --minutes 30",
)
_DRAWN_S = 1.0
_FOLDER = "A folder that dsv4kv record writes, or has written."


def watch(
    recording: Path = opt.required(_FOLDER, "RECORDING"),
    minutes: float = opt.option(
        "Minutes up to the last record.", min=0.1, rare=True, default=10.0
    ),
    limit_s: float | None = opt.option(
        "How long; 0 reads what there is, once.",
        None,
        "--seconds",
        rare=True,
        min=0.0,
        show_default="until Ctrl-C",
    ),
) -> None:
    """Watch the cache of a server that is recorded: hits, churn, cached blocks.

    Reported and inferred figures are separate. In a pipe it prints a line every 10 seconds.
    """
    from dsv4kv.cli.progress import Redrawn
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import Follower, Watched
    from dsv4kv.view.watch import watch_line

    if not is_recording(recording):
        raise ConfigError(f"{recording} is no recording: name a folder of dsv4kv record.")
    follower, watched = Follower(recording), Watched(minutes * 60.0)
    begun_s = monotonic()
    with suppress(KeyboardInterrupt), Redrawn(open_console()) as screen:  # the way to end it
        while True:
            for stream, record in follower.read():
                watched.take(stream, record)
                if limit_s and monotonic() - begun_s >= limit_s:
                    say(f"{recording}: not read to its end in {limit_s:g} s.", err=True)
                    break
            left_s = 1.0 if limit_s is None else limit_s - (monotonic() - begun_s)
            glance = watched.glance(follower.damaged)
            screen.show(partial(_draw, glance), watch_line(glance), last=left_s <= 0)
            if left_s <= 0:
                return
            sleep(min(_DRAWN_S, left_s))


def _draw(glance: "Glance") -> "Group":
    from rich.console import Group

    from dsv4kv.view.render import Drawing
    from dsv4kv.view.watch import dashboard

    return Group(*map(Drawing, dashboard(glance)))
