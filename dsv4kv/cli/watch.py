"""``dsv4kv watch``: a running server's cache, as it is recorded."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

from dsv4kv.choices import listed
from dsv4kv.cli import examples
from dsv4kv.cli.options import Model, Settings, Text, argument, option
from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from dsv4kv.record.server import Follower, Glance, Watched
    from dsv4kv.replay.whatif import Asked, WhatIf

EPILOG = examples(
    "dsv4kv watch server                                 while dsv4kv record server … goes on",
    "dsv4kv watch server --minutes 30 --rule vllm-v4:4096",
)
_DRAWN_S = 1.0
_REPLAYED_S = 30.0
_RULE = f"By whose rule the server finds prompts: {listed(RULES)}."


def watch(
    recording: Annotated[
        Path,
        argument(
            "A folder that dsv4kv record writes, or has written.", "RECORDING", show_default=True
        ),
    ],
    minutes: Annotated[float, option("How many minutes, up to the last record.", min=0.1)] = 10.0,
    rule: Annotated[Text, option(_RULE, show_default="from its metrics and command")] = None,
    model: Model = None,
    command: Annotated[
        Text, option("The server's launch command, or a file with it.", "COMMAND|FILE")
    ] = None,
    set_: Settings = None,
    limit_s: Annotated[
        float | None, option("How long.", None, "--seconds", min=0.0, show_default="until Ctrl-C")
    ] = None,
) -> None:
    """Watch the cache of a server that is recorded: hits, churn, what settings lose.

    What the server reports is kept apart from what is inferred. The last minutes are replayed with
    other settings, to say which would find more. In a pipe it prints a line every 10 seconds.
    """
    from dsv4kv.budget.launch import read_command
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import Follower, Watched
    from dsv4kv.replay.whatif import Asked

    if not is_recording(recording):
        raise ConfigError(f"{recording} is no recording: name a folder of dsv4kv record.")
    reading = read_command(command) if command else None
    replays = _Replays(recording, Asked(rule, model, reading, tuple(set_ or ())))
    with suppress(KeyboardInterrupt):  # the way to end it
        _follow(Follower(recording), Watched(minutes * 60.0), replays, limit_s)


class _Replays:
    """Replays the last minutes again and again, in a thread that nobody waits for."""

    def __init__(self, folder: Path, asked: "Asked") -> None:
        self._folder, self._asked = folder, asked
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[WhatIf] | None = None
        self._begun_s = 0.0
        self.found: WhatIf | None = None

    def turn(self, watched: "Watched", *, wait: bool = False) -> None:
        """Take what has been found; begin anew where that is old."""
        from dsv4kv.replay.whatif import what_if

        now_s = monotonic()
        if self._running is None and (self.found is None or now_s - self._begun_s > _REPLAYED_S):
            self._begun_s = now_s
            arguments = watched.rows, watched.server, self._asked, self._folder
            self._running = self._pool.submit(what_if, *arguments)
        if self._running is not None and (wait or self._running.done()):
            self.found, self._running = self._running.result(), None

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _follow(
    follower: "Follower", watched: "Watched", replays: _Replays, limit_s: float | None
) -> None:
    """Draw what comes until the time is over; then once more, with a replay of all of it."""
    from rich.console import Group

    from dsv4kv.cli.progress import Redrawn
    from dsv4kv.view.render import Drawing
    from dsv4kv.view.watch import dashboard, watch_line

    def draw(glance: "Glance", found: "WhatIf | None") -> Group:
        return Group(*map(Drawing, dashboard(glance, found)))

    begun_s = monotonic()
    try:
        with Redrawn(open_console()) as screen:
            while True:
                for stream, record in follower.read():
                    watched.take(stream, record)
                left_s = 1.0 if limit_s is None else limit_s - (monotonic() - begun_s)
                replays.turn(watched, wait=left_s <= 0)
                glance, found = watched.glance(), replays.found
                drawn = partial(draw, glance, found)
                screen.show(drawn, watch_line(glance, found), last=left_s <= 0)
                if left_s <= 0:
                    return
                sleep(min(_DRAWN_S, left_s))
    finally:
        replays.close()
