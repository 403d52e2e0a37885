"""``dsv4kv watch``: a running server's cache, as it is recorded."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from dsv4kv.choices import listed
from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from rich.console import Group

    from dsv4kv.record.server import Glance
    from dsv4kv.replay.whatif import WhatIf

EPILOG = examples(
    "dsv4kv watch server                                 while dsv4kv record server … runs",
    "dsv4kv watch server --minutes 30 --rule vllm-v4:4096",
)
_DRAWN_S = 1.0
_REPLAYED_S = 30.0
_FOLDER = "A folder that dsv4kv record writes, or has written."
_RULE = f"Engine whose prefix cache the server has: {listed(RULES)}."
_COMMAND = "The server's launch command, or a file with it."


def watch(
    recording: Path = opt.required(_FOLDER, "RECORDING"),
    minutes: float = opt.option(
        "Minutes up to the last record.", min=0.1, rare=True, default=10.0
    ),
    rule: opt.Text = opt.option(_RULE, rare=True, show_default="from its metrics and command"),
    model: opt.Text = opt.option(opt.MODELS, "NAME|FILE", rare=True),
    command: opt.Text = opt.option(_COMMAND, "COMMAND|FILE"),
    set_: opt.Texts = opt.SET_RARE,
    limit_s: float | None = opt.option(
        "How long.", None, "--seconds", rare=True, min=0.0, show_default="until Ctrl-C"
    ),
) -> None:
    """Watch the cache of a server that is recorded: hits, churn, better settings.

    Reported and inferred figures are separate. The last minutes are replayed with
    other settings, to say which would find more. In a pipe it prints a line every 10 seconds.
    """
    from dsv4kv.budget.launch import read_command
    from dsv4kv.cli.progress import Redrawn
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import Follower, Watched
    from dsv4kv.replay.whatif import Asked, what_if
    from dsv4kv.view.watch import watch_line

    if not is_recording(recording):
        raise ConfigError(f"{recording} is no recording: name a folder of dsv4kv record.")
    reading = read_command(command) if command else None
    asked = Asked(rule, model, reading, tuple(set_ or ()))
    follower, watched = Follower(recording), Watched(minutes * 60.0)
    pool = ThreadPoolExecutor(1)  # replays the last minutes again and again
    running: Future[WhatIf] | None = None
    found: WhatIf | None = None
    begun_s, replayed_s = monotonic(), 0.0
    try:
        with suppress(KeyboardInterrupt), Redrawn(open_console()) as screen:  # the way to end it
            while True:
                for stream, record in follower.read():
                    watched.take(stream, record)
                left_s = 1.0 if limit_s is None else limit_s - (monotonic() - begun_s)
                now_s = monotonic()
                if running is None and (found is None or now_s - replayed_s > _REPLAYED_S):
                    replayed_s = now_s
                    running = pool.submit(what_if, watched.rows, watched.server, asked, recording)
                if running is not None and (left_s <= 0 or running.done()):
                    found, running = running.result(), None
                glance = watched.glance()
                drawn, line = partial(_draw, glance, found), watch_line(glance, found)
                screen.show(drawn, line, last=left_s <= 0)
                if left_s <= 0:
                    return
                sleep(min(_DRAWN_S, left_s))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _draw(glance: "Glance", found: "WhatIf | None") -> "Group":
    from rich.console import Group

    from dsv4kv.view.render import Drawing
    from dsv4kv.view.watch import dashboard

    return Group(*map(Drawing, dashboard(glance, found)))
